"""The state directory of a compactor without a server: what commands see in it, and what they may change."""

from __future__ import annotations

import errno
import json
import os
import posixpath
from uuid import UUID

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.base.file_contents import write_file
from stratalog.base.types import TopicIdPartition
from stratalog.cli.store_access.compactor_state import SHOW_INTERVAL_S, CompactorState, FailedShard
from stratalog.compaction.compaction_progress import CompactionProgress
from stratalog.compaction.exclusion.exclusion_file import ExclusionFile
from stratalog.compaction.job_history import Exclusion
from stratalog.remote.objects.spool import DATA_SUFFIX, SCRATCH_SUFFIX
from stratalog.server.background.tier_compaction import operation_progress
from stratalog.server.operations.operation import OperationKind, OperationView
from stratalog.server.rpc.admin.operation_convert import view_message
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.v1 import operation_pb2

DIRECTORY = "/var/compactor"
URL = "s3://bucket/prefix"
STORE, OTHER_STORE = UUID(int=1), UUID(int=2)
ORDERS = UUID(int=3)


class World:
    """A disk with the state of one compactor."""

    def __init__(self) -> None:
        self.disk, self.clock = MemoryFileSystem(), ManualClock()
        self.state = self.seen()

    def seen(self) -> CompactorState:
        """The state as another process has it."""
        return CompactorState(self.disk, self.clock, DIRECTORY)

    def exclude(self, shard: int, *exclusions: tuple[int, Exclusion]) -> None:
        file = ExclusionFile(self.disk, self.state.exclusions_path(shard))
        file.write({TopicIdPartition(ORDERS, number): one for number, one in exclusions})


def running(done_job_count: int) -> operation_pb2.Operation:
    progress = operation_progress(CompactionProgress(done_job_count=done_job_count, job_count=9))
    view = OperationView(UUID(int=7), 1, OperationKind.COMPACTION, ("orders",), 1_000, progress=progress)
    return view_message(view, lambda _: True)


def failed(since_ms: int) -> Exclusion:
    return Exclusion("damaged", since_ms, since_ms + 1_000, 2)


def done_jobs(state: CompactorState) -> list[int]:
    found = [one.progress.compaction for one in state.operations()]
    return [one.done_job_count for one in found if one is not None]


def test_the_compaction_that_runs_is_seen_until_its_process_ends() -> None:
    world = World()
    with world.state.held(URL, STORE):
        assert world.seen().operations() == []
        world.state.show(running(1), {})
        [found] = world.seen().operations()
        assert (found.topics, found.start_time_ms, found.kind) == (("orders",), 1_000, "compaction")
        world.state.show(running(2), {})
        assert done_jobs(world.seen()) == [1], "no more often than once a second"
        world.clock.advance(round(SHOW_INTERVAL_S * 1000))
        world.state.show(running(3), {})
        assert done_jobs(world.seen()) == [3]
        world.state.show(None, {})
        world.state.show(running(4), {})
        assert done_jobs(world.seen()) == [4], "another compaction begins"
        left = world.disk.read_file(f"{DIRECTORY}/compactor.json")
    # As a process leaves it that was killed.
    world.disk.open_append(f"{DIRECTORY}/compactor.json").truncate(0)
    world.disk.open_append(f"{DIRECTORY}/compactor.json").append([left])
    assert world.seen().operations() == []
    with world.state.held(URL, STORE):
        assert world.seen().operations() == [], "the next one has not begun"


def test_a_directory_has_one_compactor_of_one_store() -> None:
    world = World()
    with (
        world.state.held(URL, STORE),
        pytest.raises(InvalidConfigError) as busy,
        world.seen().held(URL, STORE),
    ):
        pass
    assert busy.value.fields == {"name": "state-dir", "value": DIRECTORY}
    assert "another compactor has the state directory" in busy.value.message
    with pytest.raises(InvalidConfigError) as other, world.seen().held("file:///other", OTHER_STORE):
        pass
    assert other.value.fields == {"name": "state-dir", "value": DIRECTORY, "store": URL}
    with world.seen().held(URL, STORE):
        pass


def test_a_command_that_looks_at_the_moment_of_the_start_does_not_prevent_it() -> None:
    world = World()
    world.disk.make_directories(DIRECTORY)
    lock = world.disk.try_lock(f"{DIRECTORY}/compactor.lock")
    assert lock is not None

    class Clock(ManualClock):
        def sleep(self, duration_s: float) -> None:
            super().sleep(duration_s)
            assert lock is not None
            lock.release()

    with CompactorState(world.disk, Clock(), DIRECTORY).held(URL, STORE):
        assert world.disk.try_lock_shared(f"{DIRECTORY}/compactor.lock") is None


def test_what_is_left_alone_is_seen_with_names_and_can_be_reset() -> None:
    world = World()
    world.exclude(0, (0, failed(5_000)), (1, Exclusion("no times", 6_000, None, 0)))
    world.exclude(12, (2, failed(7_000)))
    with world.state.held(URL, STORE):
        world.state.show(None, {str(ORDERS): "orders"})
    with world.seen().held(URL, STORE):
        # A process that has died before its first compaction.
        pass
    found = world.seen().excluded()
    assert [(one.topic, one.partition, one.since_ms, one.until_ms, one.failure_count) for one in found] == [
        ("orders", 0, 5_000, 6_000, 2),
        ("orders", 1, 6_000, -1, 0),
        ("orders", 2, 7_000, 8_000, 2),
    ]
    assert world.seen().resets() == []
    assert not world.seen().reset("orders", 1), "it has not failed"
    assert not world.seen().reset("others", 0)
    assert not world.seen().reset("orders", 3)
    assert world.seen().reset("orders", 2)
    assert world.seen().reset(str(ORDERS), 0), "a topic without a name has an id"
    assert not world.seen().reset("orders", 2), "it was reset already"
    assert [one.partition for one in world.seen().excluded()] == [1]
    reset = world.state.resets()
    assert reset == [TopicIdPartition(ORDERS, 0), TopicIdPartition(ORDERS, 2)]
    world.state.forget_reset(reset[0])
    assert world.state.resets() == reset[1:]


def test_there_is_nothing_before_the_first_compaction() -> None:
    world = World()
    with pytest.raises(InvalidConfigError) as missing:
        world.seen().excluded()
    assert missing.value.fields == {"name": "state-dir", "value": DIRECTORY}
    assert world.seen().operations() == []
    world.disk.make_directories(DIRECTORY)
    assert world.seen().excluded() == []
    assert not world.seen().reset("orders", 0)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"store": {}}', b'{"store": 1, "operation": 2, "topics": 3}']
)
def test_damage_costs_names_and_no_more(damage: bytes) -> None:
    world = World()
    world.exclude(0, (0, failed(5_000)))
    world.disk.open_append(f"{DIRECTORY}/compactor.json").append([damage])
    assert [(one.topic, one.topic_id) for one in world.seen().excluded()] == [("", str(ORDERS))]
    with world.state.held(URL, STORE):
        assert world.seen().operations() == []
        document = {"store": {"url": URL, "store_id": ""}, "operation": {"topics": 5}, "topics": {}}
        world.disk.open_append(f"{DIRECTORY}/compactor.json").truncate(0)
        world.disk.open_append(f"{DIRECTORY}/compactor.json").append([json.dumps(document).encode()])
        assert world.seen().operations() == []


def test_a_disk_that_is_full_does_not_end_a_compaction(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    disk = FullFileSystem(world.disk)
    state = CompactorState(disk, world.clock, DIRECTORY)
    line = "is not written, so commands see an older state"
    with state.held(URL, STORE):
        for count in (1, 2):
            disk.fill(DIRECTORY)
            for _ in range(3):
                state.show(running(1), {})
                state.show(None, {})
            assert caplog.text.count(line) == count, "once when it begins"
            disk.fill(None)
            state.show(None, {})


def test_a_shard_that_fails_is_shown_until_it_does_not() -> None:
    world = World()
    with world.state.held(URL, STORE):
        world.state.note_failed_shards({1: "lost", 3: "damaged"}, 5_000)
        world.state.show(None, {})
    with (next_one := world.seen()).held(URL, STORE):
        assert world.seen().failed_shards() == (
            FailedShard(1, 5_000, "lost"),
            FailedShard(3, 5_000, "damaged"),
        )
        next_one.note_failed_shards({1: "damaged", 2: "lost"}, 6_000)
        next_one.show(None, {})
        assert world.seen().failed_shards() == (
            FailedShard(1, 5_000, "damaged"),
            FailedShard(2, 6_000, "lost"),
        )
        next_one.note_failed_shards({}, 7_000)
        next_one.show(None, {})
        assert not world.seen().failed_shards()


def use(name: str, state: CompactorState) -> None:
    """Do with the directory what a command does."""
    if name == "run":
        with state.held(URL, STORE):
            pass
    elif name == "status":
        state.operations()
    elif name == "excluded":
        state.excluded()
    else:
        state.reset("orders", 0)


@pytest.mark.parametrize(
    ("command", "call", "code"),
    [
        ("run", "make_directories", errno.EROFS),
        ("run", "try_lock", errno.EACCES),
        ("run", "read_file", errno.EIO),
        ("status", "read_file", errno.EACCES),
        ("excluded", "list_directory", errno.EACCES),
        ("reset", "read_file", errno.ENOTDIR),
    ],
)
def test_a_directory_that_cannot_be_used_is_refused_with_its_path(command: str, call: str, code: int) -> None:
    disk = FaultyFileSystem()
    disk.make_directories(DIRECTORY)
    disk.fail_where(lambda entry: entry.startswith(call), number=code)
    with pytest.raises(InvalidConfigError) as refused:
        use(command, CompactorState(disk, ManualClock(), DIRECTORY))
    fields = refused.value.fields
    assert (fields["name"], fields["value"]) == ("state-dir", DIRECTORY)
    assert os.strerror(code) in str(fields["reason"])


def test_scratch_of_a_killed_compactor_is_removed_by_the_next_one_alone() -> None:
    world = World()
    files = [
        f"{world.state.scratch_directory}/{name}"
        for name in (f"0000/a{SCRATCH_SUFFIX}", f"0003/b{DATA_SUFFIX}")
    ]

    def left() -> list[bool]:
        return [world.disk.exists(path) for path in files]

    with world.state.held(URL, STORE):
        for path in files:
            world.disk.make_directories(posixpath.dirname(path))
            write_file(world.disk, path, [b"scratch"])
        with pytest.raises(InvalidConfigError), world.seen().held(URL, STORE):
            pass
        assert left() == [True, True], "they are those of a compactor that runs"
    with world.seen().held(URL, STORE):
        assert left() == [False, False]
    assert world.seen().excluded() == []
