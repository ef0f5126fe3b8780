"""Moves between two log directories: what comes along, and how they end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from stratalog.base.errors import (
    DataDirectoryError,
    InvalidRequestError,
    LogStoreError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.cleaner.throttler import Throttler
from stratalog.log.checkpoint import OffsetCheckpoint
from stratalog.log.log_config import LogConfig
from stratalog.log.retention.late_removal import RETRY_MS
from stratalog.manager.directories.manifest import (
    MANIFEST_FILE,
    PartitionEntry,
    PartitionState,
    read_manifest,
)
from stratalog.manager.moves.log_move import LogMove, MoveProgress, MoveState
from stratalog.manager.partitions.put_away import PutAway
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.compacted_log import CompactedLog
from tests.support.cleaner.stepped_throttler import SteppedThrottler
from tests.support.logs.crash_moments import NOTHING_KEPT
from tests.support.logs.edited_manifest import edit_manifest
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import (
    DATA_DIR,
    OTHER_DIR,
    PARTITION,
    PARTITION_DIR,
    SMALL_SEGMENTS,
    TOPIC_ID,
    LogMachine,
    machine_on,
)
from tests.support.logs.moving_log import OTHER_PARTITION_DIR, MovingLog

NEXT_TOPIC_ID = UUID(int=8)


def test_everything_comes_along_byte_for_byte() -> None:
    moving = MovingLog()
    disk = moving.disk.inner
    file = disk.open_append(f"{PARTITION_DIR}/00000000000000000007.cut")
    file.append([b"for a human"])
    moving.ledger.flush(moving.log)
    moving.restart()
    before, sealed_count = moving.files(PARTITION_DIR), len(moving.log.reader.segments()) - 1
    assert sealed_count > 3
    assert moving.begin().run() is MoveState.DONE
    after = moving.files(OTHER_PARTITION_DIR)
    active = f"{moving.log.local_log.segments.active.base_offset:020d}"
    kept = {name: data for name, data in before.items() if not name.startswith(active) or "log" in name}
    assert {name: after.get(name) for name in kept} == kept
    # What the active segment's indexes hold is in memory.
    assert {name for name in after if name not in kept} <= {
        f"{active}.{kind}" for kind in ("index", "timeindex", "snapshot")
    }
    assert any(name.endswith(".txnindex") for name in after)
    moving.ledger.verify(moving.log, after_crash=False)
    moving.append()
    moving.ledger.verify(moving.log, after_crash=False)
    moving.machine.clock.advance(60_000)
    assert moving.left_over() == []
    moving.restart()
    assert moving.log.local_log.directory == OTHER_PARTITION_DIR
    assert moving.log.recovery_report.was_clean
    moving.ledger.verify(moving.log, after_crash=False)


def test_segments_keep_the_time_when_they_were_written() -> None:
    """Retention asks for it where records have no time."""
    moving = MovingLog()
    name = "00000000000000000000.log"
    written_ms = 1_600_000_000_000
    moving.disk.set_modified_ms(f"{PARTITION_DIR}/{name}", written_ms)
    assert moving.begin().run() is MoveState.DONE
    assert moving.disk.modified_ms(f"{OTHER_PARTITION_DIR}/{name}") == written_ms


def test_a_log_moves_back_to_where_it_was() -> None:
    moving = MovingLog()
    moving.machine.stop()
    edit_manifest(moving.disk, DATA_DIR, PARTITION, import_epoch=5)
    moving.log = moving.machine.start()
    for number in range(4):
        target = (OTHER_DIR, DATA_DIR)[number % 2]
        assert moving.begin(lambda _: moving.append(), target).run() is MoveState.DONE
        assert moving.log.local_log.directory == f"{target}/{PARTITION}"
        moving.end_transaction(committed=number % 2 == 0)
        moving.append()
        moving.ledger.verify(moving.log, after_crash=False)
    assert [one.state for one in moving.manager.moves.progress()] == [MoveState.DONE]
    entry = read_manifest(moving.disk, DATA_DIR).partitions[PARTITION]
    assert entry == PartitionEntry(
        topic_id=TOPIC_ID,
        state=PartitionState.LIVE,
        log_start_offset=0,
        move_number=4,
        moving_to="",
        import_epoch=5,
    )
    moving.manager.check()
    moving.restart()
    moving.ledger.verify(moving.log, after_crash=False)


def fill(history: CompactedLog) -> None:
    for number in range(60):
        # Every third key comes once, so that something stays of each segment.
        key = f"k{number}" if number % 3 == 0 else f"often{number % 5}"
        history.put(f"{key}=v{history.log.offsets.log_end_offset}")
    history.log.roll()


def test_a_compacted_log_with_holes_moves_and_is_cleaned_again() -> None:
    config = LogConfig(
        segment_bytes=1024,
        index_interval_bytes=100,
        cleanup_policy=frozenset({"compact"}),
        remote_storage_enable=False,
    )
    history = CompactedLog(config)
    machine = history.machine = machine_on(MemoryFileSystem(), config)
    history.log = log = machine.start()
    fill(history)
    assert history.clean()
    fill(history)
    tries = list[bool]()
    cleaned_offset, horizon_ms = cleaner_state(machine, DATA_DIR)
    assert cleaned_offset is not None
    assert horizon_ms is not None
    # It is due, and may not be cleaned.
    machine.manager.moves.throttler = SteppedThrottler(
        machine.clock, lambda _: tries.append(history.clean() is not None)
    )
    expected = read_local(log)
    assert len(expected) < log.offsets.log_end_offset
    assert machine.manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
    assert tries
    assert not any(tries)
    assert read_local(log) == expected
    assert cleaner_state(machine, DATA_DIR) == (None, None)
    assert cleaner_state(machine, OTHER_DIR) == (cleaned_offset, horizon_ms)
    assert history.clean()
    assert history.read_table() == history.table()
    history.restart(is_clean=True)
    assert history.read_table() == history.table()


def cleaner_state(machine: LogMachine, directory: str) -> tuple[int | None, int | None]:
    """The offset and the horizon of the log in that directory."""
    offsets = OffsetCheckpoint(machine.disk, f"{directory}/{CLEANER_OFFSET_FILE}").read()
    entry = read_manifest(machine.disk, directory).partitions.get(PARTITION)
    return offsets.get(PARTITION), None if entry is None else entry.horizon_ms


def test_progress_says_how_far_it_is() -> None:
    moving = MovingLog()
    seen: list[MoveProgress] = []
    move = moving.begin(lambda _: seen.append(move.progress))
    size_bytes = moving.log.local_log.segments.size_bytes
    assert move.progress == MoveProgress(
        partition=PARTITION,
        source_path=DATA_DIR,
        target_path=OTHER_DIR,
        state=MoveState.WAITING,
        copied_bytes=0,
        remaining_bytes=size_bytes,
        reason="",
    )
    assert move.run() is MoveState.DONE
    assert all(one.state is MoveState.COPYING for one in seen)
    assert [one.copied_bytes + one.remaining_bytes for one in seen] == [size_bytes] * len(seen)
    copied = [one.copied_bytes for one in seen]
    assert copied == sorted(set(copied))
    assert move.progress == moving.manager.moves.progress()[0]
    assert move.progress._replace(reason="") == MoveProgress(
        partition=PARTITION,
        source_path=DATA_DIR,
        target_path=OTHER_DIR,
        state=MoveState.DONE,
        copied_bytes=size_bytes,
        remaining_bytes=0,
        reason="",
    )


def test_a_move_waits_for_its_throttle() -> None:
    moving = MovingLog()
    clock, moved_s = moving.machine.clock, list[float]()
    throttler = moving.manager.moves.throttler = Throttler(clock, max_bytes_per_s=1000)
    move = moving.manager.begin_move(PARTITION, OTHER_DIR)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(move.run)
        while not running.done():
            clock.advance(10)
        moved_s.append(clock.monotonic_s())
        assert running.result() is MoveState.DONE
    # All but the last bit, which is copied under the log's locks, and what is paid at once.
    assert throttler.max_bytes_per_s == 1000
    assert moved_s[0] > (moving.log.local_log.segments.size_bytes - 3 * 1024) / 1000 - 1


def test_a_move_is_cancelled_before_it_begins() -> None:
    moving = MovingLog()
    move = moving.begin()
    assert move.cancel("not wanted") is MoveState.CANCELLED
    assert move.run() is MoveState.CANCELLED
    assert move.progress.reason == "not wanted"
    assert moving.left_over() == []
    assert moving.begin().run() is MoveState.DONE


def test_a_move_is_durable_once_it_is_accepted() -> None:
    """One that had not begun was lost by a stop or a kill: it waits for a thread behind many others."""
    for is_killed in (True, False):
        moving = MovingLog()
        assert moving.begin().state is MoveState.WAITING
        if not is_killed:
            moving.machine.stop()
        machine = machine_on(moving.disk.reopened(NOTHING_KEPT), SMALL_SEGMENTS, 2)
        log = machine.start()
        assert log.local_log.directory == PARTITION_DIR
        manager = machine.manager
        assert [(one.partition, one.target_path) for one in manager.moves.wanted] == [(PARTITION, OTHER_DIR)]
        [shown] = manager.moves.progress()
        assert (shown.state, shown.source_path, shown.copied_bytes) == (MoveState.WAITING, DATA_DIR, 0)
        assert manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
        assert log.local_log.directory == OTHER_PARTITION_DIR
        assert manager.moves.wanted == ()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_move_that_is_cancelled_before_it_begins_is_not_wanted_any_more(is_resumed: bool) -> None:
    moving = MovingLog()
    move = moving.begin()
    if is_resumed:
        moving.restart()
        move = moving.begin()
    move.ask_to_end("not wanted")
    moving.begin(target=OTHER_DIR).cancel("not wanted either")
    machine = machine_on(moving.disk.reopened(NOTHING_KEPT), SMALL_SEGMENTS, 2)
    machine.start()
    assert machine.manager.moves.progress() == () == machine.manager.moves.wanted
    assert PARTITION not in read_manifest(machine.disk, OTHER_DIR).partitions


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_move_that_cannot_be_recorded_is_refused(error: int) -> None:
    disk = HookedDisk()
    moving = MovingLog(disk)

    def refuse(name: str, path: str) -> None:
        if name == "append" and path.startswith(f"{OTHER_DIR}/{MANIFEST_FILE}"):
            raise OSError(error, os.strerror(error), path)

    disk.before = refuse
    with pytest.raises(DataDirectoryError) as refused:
        moving.begin()
    assert refused.value.fields["path"] == OTHER_DIR
    assert moving.manager.moves.progress() == ()
    moving.append()
    disk.before = None
    if error == errno.ENOSPC:
        assert moving.begin().run() is MoveState.DONE
    moving.ledger.verify(moving.log, after_crash=False)


class Interrupting:
    """After so many steps another thread does something that ends the move. Used by the mover's thread."""

    def __init__(self, pool: ThreadPoolExecutor, moving: MovingLog, work: Callable[[], object]) -> None:
        self._pool = pool
        self._moving = moving
        self._work = work
        self.result: object = None

    def __call__(self, step: int) -> None:
        if step == 2:
            self.result = self._pool.submit(self._work)
            throttler = self._moving.manager.moves.throttler
            assert isinstance(throttler, SteppedThrottler)
            assert throttler.is_interrupted.wait(30)


@pytest.mark.parametrize(
    "kind", ["cancel", "truncate", "start anew", "let go", "delete", "set aside", "close"]
)
def test_whatever_needs_the_log_for_itself_ends_the_move(kind: str) -> None:
    moving = MovingLog()
    manager, log = moving.manager, moving.log
    works: dict[str, Callable[[], object]] = {
        "cancel": lambda: move.cancel("by hand"),
        "truncate": lambda: manager.truncate_to(PARTITION, 20),
        "start anew": lambda: manager.truncate_fully_and_start_at(PARTITION, 500),
        "let go": lambda: manager.let_go(PARTITION),
        "delete": lambda: manager.delete_log(PARTITION),
        "set aside": lambda: manager.set_aside(PARTITION, "fenced"),
        "close": moving.machine.stop,
    }
    with ThreadPoolExecutor(1) as pool:
        interrupting = Interrupting(pool, moving, works[kind])
        move = moving.begin(interrupting)
        assert move.run() is MoveState.CANCELLED
    assert log.local_log.directory == PARTITION_DIR
    # A process that stops leaves the wish to the next one.
    entry = read_manifest(moving.disk, OTHER_DIR).partitions.get(PARTITION)
    is_wish = kind == "close"
    assert entry == (PartitionEntry(TOPIC_ID, PartitionState.INCOMING, 0, 1) if is_wish else None)
    assert moving.disk.exists(OTHER_PARTITION_DIR) == is_wish
    if kind in ("cancel", "truncate", "start anew"):
        assert {"truncate": 20, "start anew": 500}.get(
            kind, log.offsets.log_end_offset
        ) >= log.offsets.log_end_offset
        moving.log.check()


def test_a_move_that_cannot_be_is_refused() -> None:
    moving = MovingLog()
    manager = moving.manager

    def refusal(kind: type[LogStoreError], partition: TopicPartition, target: str) -> dict[str, object]:
        with pytest.raises(kind) as failure:
            manager.begin_move(partition, target)
        return failure.value.fields

    here, there = ({**PARTITION.error_fields, "path": path} for path in (DATA_DIR, OTHER_DIR))
    assert refusal(InvalidRequestError, PARTITION, DATA_DIR) == here
    assert refusal(InvalidRequestError, PARTITION, "/nowhere") == {"path": "/nowhere"}
    assert refusal(UnknownTopicOrPartitionError, TopicPartition("unknown", 0), OTHER_DIR)
    manager.directories.alter_cordons([OTHER_DIR])
    assert refusal(InvalidRequestError, PARTITION, OTHER_DIR) == there
    manager.directories.alter_cordons([])
    moving.disk.make_directories(OTHER_PARTITION_DIR)
    assert refusal(DataDirectoryError, PARTITION, OTHER_DIR) == {"path": OTHER_PARTITION_DIR}
    moving.disk.remove_tree(OTHER_PARTITION_DIR)
    move = manager.begin_move(PARTITION, OTHER_DIR)
    assert refusal(InvalidRequestError, PARTITION, OTHER_DIR) == PARTITION.error_fields
    assert move.run() is MoveState.DONE


def test_a_directory_without_room_is_refused() -> None:
    moving = MovingLog(free_bytes=2000)
    with pytest.raises(DataDirectoryError) as failure:
        moving.manager.begin_move(PARTITION, OTHER_DIR)
    assert failure.value.fields["free_bytes"] == 2000


def test_what_other_moves_still_take_is_not_free() -> None:
    second, third = TopicPartition("orders", 1), TopicPartition("orders", 2)

    def with_second(free_bytes: int) -> MovingLog:
        """And with a third log that is in the other directory."""
        moving = MovingLog(free_bytes=free_bytes)
        for partition, elsewhere in ((second, OTHER_DIR), (third, DATA_DIR)):
            moving.manager.directories.alter_cordons([elsewhere])
            log = moving.manager.open_log(partition, TOPIC_ID, SMALL_SEGMENTS)
            moving.manager.directories.alter_cordons([])
            log.appender.append_as_leader(encode_batch([Record(0, 1000, b"k", b"v" * 500)]), 1)
        return moving

    rehearsal = with_second(1 << 40)
    sizes = [rehearsal.manager.log(one).local_log.segments.size_bytes for one in (PARTITION, second)]
    moving = with_second(sum(sizes) - 1)
    first = moving.begin()
    with pytest.raises(DataDirectoryError) as failure:
        moving.manager.begin_move(second, OTHER_DIR)
    assert failure.value.fields["moving_bytes"] == sizes[0]
    # The other way there is room.
    moving.manager.begin_move(third, DATA_DIR).cancel("enough")
    first.cancel("enough")
    moving.manager.begin_move(second, OTHER_DIR).cancel("enough")
    moving = with_second(sum(sizes))
    moving.begin()
    assert moving.manager.begin_move(second, OTHER_DIR).state is MoveState.WAITING


def test_a_partition_that_goes_takes_the_wish_for_its_move_along() -> None:
    moving = MovingLog()
    with ThreadPoolExecutor(1) as pool:
        moving.begin(Interrupting(pool, moving, moving.machine.stop)).run()
    manager = moving.machine.open()
    assert manager.moves.wanted
    manager.delete_log(PARTITION)
    assert not manager.moves.wanted
    moving.machine.clock.advance(60_000)
    assert moving.left_over() == []


def delete_at(disk: HookedDisk, moving: MovingLog, operation: str, path: str) -> None:
    """Delete the log in the middle of the next such operation."""

    def before(name: str, at: str) -> None:
        if name == operation and at.startswith(path):
            disk.before = None
            moving.manager.delete_log(PARTITION)

    disk.before = before


def require_no_move(moving: MovingLog) -> None:
    """No trace of a move is left, and a topic of that name begins anew in the target and stays."""
    manager = moving.manager
    assert manager.moves.progress() == ()
    assert PARTITION not in read_manifest(moving.disk, OTHER_DIR).partitions
    manager.directories.alter_cordons([DATA_DIR])
    log = manager.open_log(PARTITION, NEXT_TOPIC_ID, SMALL_SEGMENTS, is_first_opening=True)
    assert log.local_log.directory == OTHER_PARTITION_DIR
    moving.machine.clock.advance(10 * RETRY_MS)
    assert not moving.machine.scheduler.failures
    entry = read_manifest(moving.disk, OTHER_DIR).partitions[PARTITION]
    assert (entry.topic_id, entry.state) == (NEXT_TOPIC_ID, PartitionState.LIVE)
    assert moving.disk.exists(OTHER_PARTITION_DIR)
    log.check()


@pytest.mark.parametrize(
    ("operation", "path"),
    [("free_bytes", OTHER_DIR), ("append", f"{OTHER_DIR}/{MANIFEST_FILE}")],
    ids=["before it is noted", "while it is noted"],
)
def test_a_partition_that_is_deleted_while_its_move_is_accepted_does_not_move(
    operation: str, path: str
) -> None:
    disk = HookedDisk()
    moving = MovingLog(disk)
    delete_at(disk, moving, operation, path)
    with pytest.raises(UnknownTopicOrPartitionError):
        moving.begin()
    assert disk.before is None
    require_no_move(moving)


def test_a_partition_that_is_let_go_while_its_move_is_accepted_does_not_move() -> None:
    disk = HookedDisk()
    moving = MovingLog(disk)

    def before(name: str, path: str) -> None:
        if name == "append" and path.startswith(f"{OTHER_DIR}/{MANIFEST_FILE}"):
            disk.before = None
            moving.manager.let_go(PARTITION)

    disk.before = before
    with pytest.raises(UnknownTopicOrPartitionError):
        moving.begin()
    assert moving.manager.moves.progress() == ()
    assert PARTITION not in read_manifest(disk, OTHER_DIR).partitions


def test_a_move_that_is_accepted_while_its_log_is_deleted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = MovingLog()
    close, moves = moving.log.close, list[LogMove]()

    def begin_and_close(*, flush: bool = True) -> None:
        moves.append(moving.begin())
        close(flush=flush)

    monkeypatch.setattr(moving.log, "close", begin_and_close)
    moving.manager.delete_log(PARTITION)
    [move] = moves
    assert move.run() is MoveState.CANCELLED
    require_no_move(moving)


def test_a_move_of_a_log_that_was_deleted_leaves_the_next_topic_alone() -> None:
    moving = MovingLog()
    manager, log = moving.manager, moving.log
    manager.delete_log(PARTITION)
    manager.open_log(PARTITION, NEXT_TOPIC_ID, SMALL_SEGMENTS, is_first_opening=True)
    with pytest.raises(UnknownTopicOrPartitionError):
        manager.moves.begin(log, OTHER_DIR)
    manager.delete_log(PARTITION)
    require_no_move(moving)


def test_a_topic_gets_no_records_of_a_copy_that_could_not_be_withdrawn_yet() -> None:
    disk = HookedDisk()
    moving = MovingLog(disk)
    with ThreadPoolExecutor(1) as pool:
        moving.begin(Interrupting(pool, moving, moving.machine.stop)).run()
    manager = moving.machine.open()
    assert disk.exists(OTHER_PARTITION_DIR)

    def refuse(name: str, path: str) -> None:
        if name == "append" and path.startswith(f"{OTHER_DIR}/{MANIFEST_FILE}"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)

    disk.before = refuse
    manager.delete_log(PARTITION)
    disk.before = None
    assert PARTITION in read_manifest(disk, OTHER_DIR).partitions
    manager.directories.alter_cordons([DATA_DIR])
    log = manager.open_log(PARTITION, NEXT_TOPIC_ID, SMALL_SEGMENTS, is_first_opening=True)
    assert (log.local_log.directory, log.offsets.log_end_offset) == (OTHER_PARTITION_DIR, 0)
    moving.machine.clock.advance(10 * RETRY_MS)
    assert not moving.machine.scheduler.failures
    assert read_manifest(disk, OTHER_DIR).partitions == {PARTITION: PartitionEntry(NEXT_TOPIC_ID)}
    assert disk.exists(OTHER_PARTITION_DIR)
    log.check()


def test_only_a_copy_of_that_topic_is_discarded() -> None:
    moving = MovingLog()
    manager = moving.manager
    moving.begin()
    source, target = (manager.directories.at(path) for path in (DATA_DIR, OTHER_DIR))

    def keep_files(*_paths: str) -> None:
        pass

    away = PutAway(manager.removals, SequentialIds(9), manager.directories, lambda: 0, keep_files)
    source.checkpoints.put_recovery_point(PARTITION, 3)
    away.discard_copy(source, PARTITION, TOPIC_ID)
    away.discard_copy(target, PARTITION, NEXT_TOPIC_ID)
    assert (source.topic_id(PARTITION), target.topic_id(PARTITION)) == (TOPIC_ID, TOPIC_ID)
    target.checkpoints.put_recovery_point(PARTITION, 3)
    away.discard_copy(target, PARTITION, TOPIC_ID)
    assert target.topic_id(PARTITION) is None
    # A recovery point goes with its entry, and not with that of another one.
    source.checkpoints.forget_unlisted(PARTITION)
    assert [one.checkpoints.recovery_point(PARTITION) for one in (source, target)] == [3, 0]
