"""Slices that a kernel has made are divided among objects as slices that come alone are."""

from __future__ import annotations

from array import array
from functools import partial
from uuid import UUID

import pytest

from stratalog.base.scheduler import run_here
from stratalog.compaction.kept_records import KeptTally
from stratalog.compaction.output.job_output import JobOutput
from stratalog.compaction.output.output_stream import OutputStream
from stratalog.compaction.output.part_sends import PartSends
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.native.batch_filter import COMPACTED_COLUMNS, CompactedSlices
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind, crc_of
from stratalog.remote.objects.object_ref import format_object_name
from stratalog.remote.objects.object_writer import ObjectWriterSettings
from stratalog.remote.objects.repeated_put import PutAttempts, RepeatedWrites
from stratalog.remote.objects.slice_builder import SliceBuilder, SliceEnd, SliceStart
from stratalog.remote.objects.spool import Spool
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds

HASHING = KeyHashing(b"0123456789abcdef")
KIND = 0
END_OFFSET = 10
BATCH = encode_batch([Record(0, 1, b"a", b"value"), Record(1, 2, b"b", None)], base_offset=0)


def compacted(batch: bytes, count: int) -> CompactedSlices:
    """Slices of one batch each, so many, in the form that a kernel gives them."""
    builder = SliceBuilder(start_of(0), data_position=0, index_interval_bytes=4096, max_record_count=1 << 32)
    builder.add(batch, 0)
    builder.sum_up(batch)
    entry, stream, _ = builder.build(SliceEnd(END_OFFSET))
    assert stream is not None
    assert entry.last_batch is not None
    tally = KeptTally()
    for position, header in batches(batch):
        tally.add(batch, position, header, header.records_count)
    numbers = (
        entry._asdict()
        | tally.result()._asdict()
        | dict.fromkeys(("dropped_tombstone_count", "has_delete_horizon", "delete_horizon_ms"), 0)
    )
    numbers |= {
        "last_base_offset": 0,
        "leader_epoch": entry.last_batch.epoch,
        "last_crc": entry.last_batch.crc,
    }
    numbers |= {"interval_count": 1, "key_bytes": stream.size_bytes, "key_count": stream.entry_count}
    numbers["keys_crc"] = stream.crc
    columns = array("q", [0, 0, entry.max_timestamp]).tobytes()
    row = array("q", [numbers[name] for name in COMPACTED_COLUMNS])
    return CompactedSlices(batch * count, columns * count, b"".join(stream.parts) * count, row * count)


def start_of(partition: int) -> SliceStart:
    return SliceStart(UUID(int=7), "topic", partition, 0, HASHING)


@pytest.mark.parametrize(
    ("max_bytes", "slice_counts"),
    [
        (1, [1, 1, 1, 1, 1]),
        (2 * len(BATCH), [2, 2, 1]),
        (2 * len(BATCH) + 1, [3, 2]),
        (5 * len(BATCH), [5]),
    ],
)
def test_slices_that_were_made_together_go_on_in_the_next_object(
    max_bytes: int, slice_counts: list[int]
) -> None:
    filesystem, store, ids = MemoryFileSystem(), MemoryObjectStore(ManualClock()), SequentialIds(1)
    sends = PartSends(run_here)

    def header() -> ObjectHeader:
        return ObjectHeader(
            store_id=UUID(int=1),
            shard=0,
            epoch=0,
            kind=ObjectKind.REPLACEMENT,
            name=format_object_name(2, ids.uuid()),
            inputs=(format_object_name(1, UUID(int=8)),),
        )

    def open_stream(name: str) -> OutputStream:
        writes = RepeatedWrites(ManualClock(), store, name, PutAttempts())
        return OutputStream(
            name, writes, partial(Spool, filesystem, f"/spool/{name}", 1 << 20), 1 << 20, sends
        )

    settings = ObjectWriterSettings(spool_directory="/spool")
    with JobOutput(filesystem, open_stream, header, settings, max_object_bytes=max_bytes) as output:
        starts = list(map(start_of, range(5)))
        output.add_compacted(compacted(BATCH, 5), starts, [SliceEnd(END_OFFSET)] * 5, kind=KIND)
        output.finish(lambda _: None)
    assert [len(entries) for _, entries in output.stored] == slice_counts
    partitions = [entry.partition for _, entries in output.stored for entry in entries]
    assert partitions == list(range(5))
    for ref, entries in output.stored:
        whole = bytes(store.get(ref.name).data)
        assert len(whole) == ref.size_bytes
        for entry in entries:
            assert whole[entry.data_position : entry.data_end_position] == BATCH
            assert crc_of(whole[entry.index.position :][: entry.index.size_bytes]) == entry.index.crc
