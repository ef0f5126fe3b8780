"""The right to go on with a local log: only the directory has it that owned the shard before, with a log that
agrees with the store.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.metadata.ownership.ownership import ReconciledLog
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.decoded_records import decode_all
from tests.support.logs.overwriting import flip
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

NAME = TopicPartition("t", 0)
DIRECTORY = "/data/t-0"


class World(TieredSite):
    """A store, and the disks of two machines."""

    def __init__(self) -> None:
        super().__init__()
        self.other_disk = MemoryFileSystem()

    def copy(self) -> World:
        """Another world that goes on from here."""
        other = World()
        for found in self.bucket.list(""):
            other.bucket.put(found.key, self.bucket.get(found.key).data)
        other.disk = self.disk.after_crash(Survival(Kept.ALL, Kept.ALL))
        other.ids = self.ids
        return other

    def claim(self, disk: MemoryFileSystem | None = None) -> TieredLogs:
        """A server that has opened no log yet."""
        return self.start(disk, opens=False)


def append(logs: TieredLogs, count: int, *, seal: bool = False) -> list[Record]:
    found = logs.append(logs.logs[NAME], [Record(0, 5, b"k", b"v")] * count)
    if seal:
        logs.seal()
        logs.upload()
    return found


def first_run(world: World) -> tuple[TopicEntry, list[Record], list[Record]]:
    """Some records in the store, some on the disk only."""
    logs = world.claim()
    topic = logs.create_topic("t", 1)
    tiered, local = append(logs, 3, seal=True), append(logs, 2)
    logs.close()
    return topic, tiered, local


def reopened(logs: TieredLogs, topic: TopicEntry) -> ReconciledLog:
    found = logs.open_topic(topic)[NAME]
    found.log.check()
    assert found.log.offsets.tiered_end_offset == 3
    return found


def untouched(logs: TieredLogs) -> None:
    logs.close()


def began_empty(logs: TieredLogs) -> None:
    log = logs.logs[NAME]
    log.truncation.truncate_fully_and_start_at(0)
    log.appender.append_as_leader(one_batch(), 1)
    logs.close()


def restored(logs: TieredLogs) -> None:
    log = logs.logs[NAME]
    batches = log.reader.read(0, 1 << 20).batches + log.reader.read(3, 1 << 20).batches
    log.truncation.truncate_fully_and_start_at(0)
    log.appender.append_as_follower(batches)
    logs.close()


def without_the_tiered_part(logs: TieredLogs) -> None:
    logs.logs[NAME].retention.delete_local_segments(ignore_retention=True)
    logs.close()


Change = Callable[[TieredLogs], None]


@pytest.mark.parametrize(
    ("change", "has_other_owner", "on_other_disk", "reason", "local_range"),
    [
        (untouched, False, False, "", (0, 5)),
        (restored, False, False, "", (0, 5)),
        (without_the_tiered_part, False, False, "", (3, 5)),
        (began_empty, False, False, "before the tiered end", (3, 3)),
        (untouched, False, True, "", (3, 3)),
        (untouched, True, True, "", (3, 4)),
        (untouched, True, False, "another data directory", (3, 3)),
    ],
)
def test_a_log_goes_on_or_is_set_aside(
    change: Change, has_other_owner: bool, on_other_disk: bool, reason: str, local_range: tuple[int, int]
) -> None:
    world = World()
    topic, tiered, _ = first_run(world)
    logs = world.claim()
    logs.open_topic(topic)
    change(logs)
    if has_other_owner:
        other = world.claim(world.other_disk)
        other.open_topic(topic)
        append(other, 1)
        other.close()
    logs = world.claim(world.other_disk if on_other_disk else None)
    assert (logs.claimed.trusted_epoch < logs.claimed.epoch) == (on_other_disk == has_other_owner)
    found = reopened(logs, topic)
    assert reason in found.reason
    assert (found.log.offsets.local_log_start_offset, found.log.offsets.log_end_offset) == local_range
    if reason:
        assert found.set_aside_path is not None
        assert any(name.endswith(".log") for name in world.disk.list_directory(found.set_aside_path))
    else:
        assert found.set_aside_path is None
    assert logs.tiered_records(found.log) == tiered
    assert [record.offset for record in append(logs, 1)] == [local_range[1]]


def test_a_start_that_died_before_it_looked_at_the_logs_makes_none_of_them_good() -> None:
    world = World()
    topic, _, _ = first_run(world)
    other = world.claim(world.other_disk)
    other.open_topic(topic)
    other.close()
    # Owns the shard again, and stops for ever before it has opened any log.
    world.claim().close()
    logs = world.claim()
    assert (logs.claimed.epoch, logs.claimed.trusted_epoch) == (4, 3)
    found = reopened(logs, topic)
    assert "another data directory" in found.reason
    # What is written from now on stays good, however often it is started again.
    append(logs, 2)
    logs.close()
    for epoch in (5, 6):
        logs = world.claim()
        assert (logs.claimed.epoch, logs.claimed.trusted_epoch) == (epoch, 3)
        found = reopened(logs, topic)
        assert (found.reason, found.log.offsets.log_end_offset) == ("", 5)
        logs.close()


def test_a_copied_directory_differs_from_the_one_that_went_on() -> None:
    world = World()
    topic, _, _ = first_run(world)
    copy = world.disk.after_crash(Survival(Kept.ALL, Kept.ALL))
    logs = world.claim()
    reopened(logs, topic)
    logs.close()
    found = world.claim(copy)
    assert found.claimed.trusted_epoch == found.claimed.epoch


def test_a_log_of_this_owner_that_contradicts_the_store_is_a_matter_for_a_human() -> None:
    """It has as many records, from the same owner, of another content: it was restored from elsewhere."""
    world = World()
    topic, _, _ = first_run(world)
    logs = world.claim()
    log = logs.manager.open_log(NAME, topic.topic_id, logs_config(topic))
    log.truncation.truncate_fully_and_start_at(0)
    log.appender.append_as_leader(one_batch(b"other", count=5), 1)
    logs.close()
    before = contents(world.disk)
    logs = world.claim()
    with pytest.raises(DataDirectoryError) as failure:
        logs.open_topic(topic)
    assert failure.value.fields["path"] == DIRECTORY
    assert contents(world.disk) == before


@pytest.mark.parametrize("had_other_owner", [False, True])
def test_no_damage_is_taken_for_another_owner(had_other_owner: bool) -> None:
    """Any byte of the log, tiered or not: what only this disk has is kept, or nothing was touched."""
    world = World()
    if had_other_owner:
        world.claim(world.other_disk).close()
    topic, _, local = first_run(world)
    is_served: set[bool] = set()
    for base_offset in (0, 3):
        path = f"{DIRECTORY}/{base_offset:020d}.log"
        # Those of the first epoch, and one of every other byte, another one from byte to byte.
        bits = {*range(8 * 12, 8 * 16), *range(0, 8 * world.disk.file_size(path), 15)}
        for bit in sorted(bits):
            damaged = world.copy()
            flip(damaged.disk, path, bit // 8, bit % 8)
            before = contents(damaged.disk)
            logs = damaged.claim()
            assert (logs.claimed.trusted_epoch > 0) == had_other_owner
            try:
                found = logs.open_topic(topic)[NAME]
            except DataDirectoryError:
                assert contents(damaged.disk) == before, (path, bit)
                is_served.add(False)
                continue
            assert (found.reason, found.set_aside_path) == ("", None), (path, bit)
            if base_offset == 0:
                assert decode_all(found.log.reader.read(3, 1000).batches) == local, (path, bit)
                is_served.add(True)
    assert is_served == {False, True}, "damaged records that the store has do not keep the rest from readers"


def test_an_empty_log_moves_to_the_tiered_end_without_being_set_aside() -> None:
    world = World()
    topic, _, _ = first_run(world)
    other = world.claim(world.other_disk)
    other.manager.open_log(NAME, topic.topic_id, logs_config(topic))
    other.close()
    found = reopened(world.claim(world.other_disk), topic)
    assert (found.set_aside_path, found.log.offsets.log_end_offset) == (None, 3)


def test_logs_that_are_not_tiered_are_left_alone() -> None:
    world = World()
    logs = world.claim()
    topic = logs.create_topic("t", 1, {"remote.storage.enable": "false"})
    append(logs, 2)
    logs.close()
    other = world.claim(world.other_disk)
    other.close()
    found = world.claim().open_topic(topic)[NAME]
    assert (found.reason, found.log.offsets.log_end_offset) == ("", 2)


def test_a_log_start_that_moved_meanwhile_is_learnt() -> None:
    world = World()
    topic, _, _ = first_run(world)
    logs = world.claim()
    (tip,) = logs.metadata.state().partitions
    logs.metadata.advance_log_start({tip: 2}, epoch=None, catalog_seq=None)
    assert reopened(logs, topic).log.offsets.log_start_offset == 2


def contents(disk: MemoryFileSystem) -> dict[str, bytes]:
    """The segments of the partition."""
    names = [name for name in disk.list_directory(DIRECTORY) if name.endswith(".log")]
    return {name: disk.read_file(f"{DIRECTORY}/{name}") for name in names}


def logs_config(topic: TopicEntry) -> LogConfig:
    return LogConfig.from_overrides(topic.config)


def one_batch(value: bytes = b"v", count: int = 1) -> bytes:
    return encode_batch([Record(0, 5, b"k", value)] * count)
