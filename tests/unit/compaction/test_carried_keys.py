"""The keys of slices that are carried into one: a later compaction goes by them alone."""

from __future__ import annotations

import dataclasses

from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import SMALL_STREAM_BYTES
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.key_streams import require_key_streams
from tests.support.tiered.tiered_store import TieredStore

DAY_MS = 24 * 60 * 60 * 1000


def test_small_key_streams_beside_a_large_one_keep_their_keys() -> None:
    clock = ManualClock()
    tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(1))
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(DAY_MS)}
    tip = TopicIdPartition(tiered.catalog.create("t", 1, config).topic_id, 0)
    keys = [[b"a"], [b"many-%d" % number for number in range(7_000)], [b"b", b"a"]]
    for slice_keys in keys:
        base_offset = tiered.partition(tip).tiered_end_offset
        records = [Record(0, clock.now_ms(), key, b"x") for key in slice_keys]
        tiered.upload({tip: [encode_batch(records, base_offset=base_offset, leader_epoch=1)]})
    sizes = [
        live.entry.key_stream.size_bytes for live in tiered.partition(tip).slices if live.entry.key_stream
    ]
    assert [size > SMALL_STREAM_BYTES for size in sizes] == [False, True, False]

    compactor = tiered.compactor(change=lambda base: dataclasses.replace(base, merge_fanout=3))
    (merge,) = compactor.run()
    assert (merge.inputs, merge.records_out) == (3, 7_003), "carried, because they are too young"
    require_key_streams(tiered.store, tiered.metadata, tiered.catalog)
    clock.advance(2 * DAY_MS)
    (report,) = compactor.run()
    assert report.records_out == 7_002
    assert [record.key for record in tiered.records(tip)] == [*keys[1], b"b", b"a"]
