"""A partition as a broker's log directory: what the batches ask of the segments."""

from __future__ import annotations

from uuid import UUID

from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.manager.log_export import LogExport
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds

ORDERS = TopicPartition("orders", 0)
FAR = 2**31


def test_a_hole_that_no_index_reaches_over_lies_between_segments() -> None:
    disk, clock = MemoryFileSystem(), ManualClock()
    batches = [
        encode_batch([Record(0, 1000, b"k", b"v" * 5000)], base_offset=offset, leader_epoch=0)
        for offset in (0, 1, FAR + 5, FAR + 6)
    ]
    with LogExport(disk, clock, ManualScheduler(clock), SequentialIds(), "/kafka") as target:
        partition = target.begin(
            ORDERS, UUID(int=9), LogConfig(), base_offset=0, log_start_offset=0, log_end_offset=FAR + 7
        )
        partition.append(b"".join(batches))
        target.end(partition)
        target.publish()
    names = [name for name in disk.list_directory(f"/kafka/{ORDERS}") if name.endswith(".log")]
    assert sorted(names) == [f"{0:020d}.log", f"{FAR + 5:020d}.log"]
    for name, held in zip(sorted(names), (batches[:2], batches[2:]), strict=True):
        assert disk.read_file(f"/kafka/{ORDERS}/{name}") == b"".join(held)
