"""Leader epochs of a broker's logs: what goes back is raised, what contradicts the broker's file is refused,
and no sound batch is cut off for its epoch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import format_checkpoint
from stratalog.log.isolation import Isolation
from stratalog.log.leader_epoch_cache import EpochEntry, format_epochs, parse_epochs
from stratalog.log.recovery.log_recovery import RecoveryReport
from stratalog.manager.directories.partition_metadata import write_partition_metadata
from stratalog.migration.import_staging import MAX_IMPORTED_EPOCH
from stratalog.migration.topic_importer import ImportReport, ImportSettings, TopicImporter
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch import batches, decode
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.file_names import segment_path
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_logs import TieredLogs

NAME = TopicPartition("orders", 0)
SOURCE = f"/kafka/{NAME}"


class World:
    """A broker's directory with one partition, of batches with the epochs that a test gives them."""

    def __init__(self, epochs: Sequence[Sequence[int]], file: Sequence[tuple[int, int]] | None) -> None:
        """`epochs`: of the batches, which hold two records each, by segment. `file`: of leader epochs."""
        self.clock = ManualClock()
        self.disk = MemoryFileSystem()
        self.store = MemoryObjectStore(self.clock)
        self.ids = SequentialIds(3)
        self.disk.make_directories(SOURCE)
        write_partition_metadata(self.disk, SOURCE, UUID(int=11))
        self.end_offset = 0
        for segment in epochs:
            data, base_offset = b"", self.end_offset
            for epoch in segment:
                data += encode_batch(
                    [Record(0, 5, b"k", b"%d" % (self.end_offset + delta)) for delta in range(2)],
                    base_offset=self.end_offset,
                    leader_epoch=epoch,
                )
                self.end_offset += 2
            self.write(segment_path(SOURCE, base_offset, ".log"), data)
        if file is not None:
            entries = [EpochEntry(*entry) for entry in file]
            self.write(f"{SOURCE}/leader-epoch-checkpoint", format_epochs(entries))

    def write(self, path: str, data: bytes) -> None:
        file = self.disk.open_append(path)
        file.append([data])
        file.close()

    def close_cleanly(self, *, is_known: bool = True) -> None:
        self.write("/kafka/.kafka_cleanshutdown", b"")
        if is_known:
            offsets = format_checkpoint({NAME: self.end_offset})
            self.write("/kafka/recovery-point-offset-checkpoint", offsets.encode())

    def run(self) -> ImportReport:
        settings = ImportSettings(
            log_dirs=("/kafka",),
            data_dir="/data",
            config={},
            owner="owner",
            allows_missing_checkpoints=True,
        )
        scheduler = ManualScheduler(self.clock)
        return TopicImporter(
            self.disk, self.store, self.clock, scheduler, self.ids, random.Random(0), settings
        ).run()

    def recovery(self) -> RecoveryReport:
        [topic] = self.run().topics
        return topic.partitions[0].log.recovery

    def require_whole(self) -> list[int]:
        """Every record is served, and more can be appended; the epochs of the batches."""
        logs = TieredLogs(self.disk, self.store, self.clock, self.ids)
        found = logs.open_topic(logs.catalog.topics()["orders"])[NAME]
        assert found.reason == ""
        found.log.check()
        data = b""
        while (offset := next_offset(data)) < self.end_offset:
            found_data = found.log.reader.read(offset, 1 << 20, Isolation.LOG_END).batches
            assert found_data
            data += found_data
        located = list(batches(data))
        records = [record for position, _ in located for record in decode(data, position)]
        assert [(record.offset, record.value) for record in records] == [
            (offset, b"%d" % offset) for offset in range(self.end_offset)
        ]
        logs.close()
        return [header.leader_epoch for _, header in located]

    def source_files(self) -> dict[str, bytes | None]:
        return {path: data for path, data in self.disk.contents().items() if path.startswith(SOURCE)}


def next_offset(data: bytes) -> int:
    return max((header.next_offset for _, header in batches(data)), default=0)


# A cluster was made anew over old directories: epochs begin at 0 again, and the file forgets the higher ones.
AGAIN = ([(17, 17, 0, 1)], [(0, 4), (1, 6)])
AGAIN_IN_SEGMENTS = ([(16, 17), (0, 0, 1), (1,)], [(0, 4), (1, 8)])


@pytest.mark.parametrize("was_clean", [True, False])
@pytest.mark.parametrize("has_recovery_point", [True, False])
@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize(("epochs", "file"), [AGAIN, AGAIN_IN_SEGMENTS], ids=["one", "segments"])
def test_epochs_that_begin_again_are_raised(
    epochs: Sequence[Sequence[int]],
    file: Sequence[tuple[int, int]],
    has_file: bool,
    has_recovery_point: bool,
    was_clean: bool,
) -> None:
    world = World(epochs, file if has_file else None)
    if was_clean:
        world.close_cleanly(is_known=has_recovery_point)
    elif has_recovery_point:
        offsets = format_checkpoint({NAME: world.end_offset - 2})
        world.write("/kafka/recovery-point-offset-checkpoint", offsets.encode())
    source = world.source_files()
    recovery = world.recovery()
    assert (recovery.epochs_raised_from, recovery.truncated_bytes) == (4, 0)
    assert world.source_files() == source
    flat = [epoch for segment in epochs for epoch in segment]
    assert world.require_whole() == [max(flat[: count + 1]) for count in range(len(flat))]
    path = f"/data/{NAME}/leader-epoch-checkpoint"
    assert parse_epochs(world.disk.read_file(path))[-1].epoch == 17


def test_what_ascends_is_linked_and_left_alone() -> None:
    world = World([(16, 17), (17, 18), (18,)], None)
    world.close_cleanly()
    assert world.recovery().epochs_raised_from is None
    assert world.disk.link_count(segment_path(SOURCE, 0, ".log")) == 2
    assert world.require_whole() == [16, 17, 17, 18, 18]


@pytest.mark.parametrize(
    ("epochs", "file", "was_clean"),
    [
        # A flipped bit, in the last batch and before it.
        ([(0, 0, 0, 2**30)], [(0, 0)], True),
        ([(0, 0, 2**30, 0)], [(0, 0)], True),
        ([(0, 0, 2**30, 0)], [(0, 0)], False),
        ([(5, 5, 1, 5)], [(5, 0)], True),
        ([(5, 5, 1, 5)], [(5, 0)], False),
        ([(5, 5), (1, 5)], [(5, 0)], False),
        ([(5, 5), (1, 5), (5,)], [(5, 0)], True),
        # Behind the place where epochs begin again.
        ([(17, 17, 0, 3, 0)], [(0, 4)], True),
        ([(17, 17, 0, 3, 0)], [(0, 4), (1, 8)], False),
        # The file.
        ([(0, 0)], [(0, 0), (5, 2)], True),
        ([(0, 0)], [(0, 0), (5, 2)], False),
    ],
)
def test_what_contradicts_the_file_is_refused(
    epochs: Sequence[Sequence[int]], file: Sequence[tuple[int, int]], was_clean: bool
) -> None:
    world = World(epochs, file)
    if was_clean:
        world.close_cleanly()
    with pytest.raises(DataDirectoryError):
        world.run()
    assert not any(path.startswith(f"/data/{NAME}") for path in world.disk.contents())
    # What the message says helps.
    world.disk.unlink(f"{SOURCE}/leader-epoch-checkpoint")
    assert world.recovery().truncated_bytes == 0
    flat = [epoch for segment in epochs for epoch in segment]
    assert world.require_whole() == [max(flat[: count + 1]) for count in range(len(flat))]


def test_a_torn_batch_of_a_lower_epoch_is_cut_off() -> None:
    world = World([(17, 17, 0, 1)], [(0, 4)])
    path = segment_path(SOURCE, 0, ".log")
    file = world.disk.open_append(path)
    file.truncate(file.size() - 1)
    file.close()
    recovery = world.recovery()
    assert recovery.truncated_bytes > 0
    world.end_offset = 6
    assert world.require_whole() == [17, 17, 17]


@pytest.mark.parametrize("room", [0, 1, 999_999])
def test_an_epoch_that_leaves_no_room_is_refused(room: int) -> None:
    world = World([(2**31 - 1 - room,)], [(2**31 - 1 - room, 0)])
    world.close_cleanly()
    with pytest.raises(DataDirectoryError):
        world.run()
    assert not any("orders" in path for path in world.disk.contents() if path.startswith("/data"))
    logs = TieredLogs(world.disk, world.store, world.clock, world.ids)
    assert logs.claimed.epoch < 10
    logs.close()


def test_the_highest_epoch_that_is_imported_leaves_room() -> None:
    world = World([(MAX_IMPORTED_EPOCH,)], [(MAX_IMPORTED_EPOCH, 0)])
    world.close_cleanly()
    world.run()
    for _ in range(3):
        assert world.require_whole() == [MAX_IMPORTED_EPOCH]
