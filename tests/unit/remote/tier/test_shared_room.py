"""Shards share the memory and the disk of their uploads: on a full disk none of them needs a file."""

from __future__ import annotations

import pytest

from stratalog.base.errors import OverloadedError
from stratalog.base.types import TopicPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.objects.scratch_disk import ScratchDisk
from stratalog.remote.objects.spool_memory import SpoolMemory
from stratalog.remote.tier.object_builder import ObjectBuilder
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_logs import TieredLogs

MEMORY_BYTES = 8_000
STALL_S = 600


class Neighbour(ManualClock):
    """A clock, and the uploads of another shard, which have all memory until the clock says so. Belongs to
    one thread."""

    def __init__(self, memory: SpoolMemory, until_s: float) -> None:
        super().__init__()
        self.waited_s = 0.0
        self._memory = memory
        self._until_s = until_s
        self._held_bytes = memory.left_bytes
        assert memory.take(self._held_bytes)

    def sleep(self, duration_s: float) -> None:
        super().sleep(duration_s)
        self.waited_s += duration_s
        if self.waited_s >= self._until_s and self._held_bytes:
            self._memory.give_back(self._held_bytes)
            self._held_bytes = 0


class FullSite:
    """A log with rolled segments on a full disk, beside another shard. Not thread-safe."""

    def __init__(self, *, until_s: float) -> None:
        self.memory = SpoolMemory(MEMORY_BYTES)
        self.clock = Neighbour(self.memory, until_s)
        self.disk = FullFileSystem()
        store = MemoryObjectStore(self.clock)
        self.logs = TieredLogs(self.disk, store, self.clock, SequentialIds(1), read_bytes=1_000)
        self.logs.uploader._builder._memory = self.memory  # pyright: ignore[reportPrivateUsage]  # that of all shards
        self.logs.create_topic("t", 1)
        self.log = self.logs.logs[TopicPartition("t", 0)]
        self.expected = [
            found
            for number in range(100)
            for found in self.logs.append(self.log, [Record(0, 1000 + number, b"k", b"v" * 60)])
        ]
        self.logs.seal()
        assert self.log.local_log.segments.size_bytes > MEMORY_BYTES
        self.disk.fill("/spool")

    def check(self) -> None:
        """All is in the store once, and nothing of the room is kept."""
        assert self.logs.tiered_records(self.log) == self.expected
        assert self.memory.left_bytes == MEMORY_BYTES


def test_an_upload_on_a_full_disk_waits_for_the_memory_of_other_shards() -> None:
    site = FullSite(until_s=20)
    report = site.logs.upload()
    assert (report.refused, report.failed) == ([], [])
    assert 20 <= site.clock.waited_s < 21
    site.check()


def test_an_upload_that_gets_no_memory_on_a_full_disk_says_so_and_loses_nothing() -> None:
    site = FullSite(until_s=STALL_S + 1)
    with pytest.raises(OverloadedError) as caught:
        site.logs.upload()
    assert caught.value.fields == {"directory": "/spool", "waited_s": STALL_S}
    site.clock.sleep(1)
    site.logs.upload()
    site.check()


def test_shards_that_look_at_once_get_no_room_twice() -> None:
    """Each would have fitted alone."""
    filesystem, clock = MemoryFileSystem(free_bytes=3_000), ManualClock()
    memory, disk = SpoolMemory(MEMORY_BYTES), ScratchDisk(filesystem)
    logs = TieredLogs(filesystem, MemoryObjectStore(clock), clock, SequentialIds(1))
    own = logs.uploader._builder  # pyright: ignore[reportPrivateUsage]  # its settings
    filesystem.make_directories("/spool")
    builders = [
        ObjectBuilder(filesystem, logs.metadata, own.spool(0), memory=memory, disk=disk) for _ in range(4)
    ]
    rooms = [one.room(own.spool(0), 1_000) for one in builders]
    sizes = [None if room is None else room.object_bytes for room in rooms]
    assert sizes == [1_000, 1_000, 1_000, 500], "one in files, and each in half of the memory that is left"
    left_bytes = [room.memory.left_bytes for room in rooms[1:] if room is not None]
    assert left_bytes == [4_000, 2_000, 1_000]
    assert disk.promised_bytes == 2_000
    for room in rooms:
        assert room is not None
        room.end()
    assert (memory.left_bytes, disk.promised_bytes) == (MEMORY_BYTES, 0)
    again = builders[0].room(own.spool(0), 1_000)
    assert again is not None
    assert again.memory is memory, "there is room for files again"
