"""The example of docs/formats/metadata.md: a small store in which every kind of file and of action occurs.

Nothing in it depends on time or chance, so the documentation can show its files as they are, and a test can
compare them byte for byte.
"""

from __future__ import annotations

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_judge import LostRange
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import (
    KeyStreamRef,
    LastBatch,
    LeaderEpoch,
    PartRef,
    SliceEntry,
)
from tests.support.tiered.metadata_harness import MetadataHarness

_HOUR_MS = 3_600_000


def example_store() -> MetadataHarness:
    """A store after a topic was created, three uploads, a compaction, retention, a fold, one more
    upload, and the end of a partition's tier.
    """
    harness = MetadataHarness(2026)
    catalog = harness.catalog()
    flights = catalog.create("flights", 2, {"cleanup.policy": "compact"})
    scratch = catalog.create("scratch", 1)
    catalog.alter(flights.topic_id, partition_count=3)
    catalog.delete(scratch.topic_id)
    log = harness.log()
    epoch = log.claim("stratalog-0", harness.ids.uuid(), endpoint="stratalog-0:9190")
    f0, f1 = (TopicIdPartition(flights.topic_id, n) for n in range(2))
    s0 = TopicIdPartition(scratch.topic_id, 0)
    _add(log, epoch, {f0: (0, 400), s0: (0, 10)})
    _add(log, epoch, {f0: (400, 700), f1: (0, 50)})
    slices = log.state().partition(f0).slices
    output = _object(log, {f0: (0, 700)})
    log.replace(
        {f0: SliceRanges.of(slices)},
        sorted(live.object_name for live in slices),
        [output],
        covers={f0: True},
        catalog_seq=catalog.confirm([catalog.topics()["flights"]]).catalog_seq,
        drops_records=True,
    )
    log.advance_log_start({f1: 20}, epoch=None, catalog_seq=catalog.seq)
    log.drop_partitions(scratch.topic_id, catalog.confirm_deleted(scratch.topic_id))
    log.fold()
    _add(log, epoch, {f1: (50, 90), s0: (10, 12)})
    log.begin_deletion([dropped for dropped in log.state().dropped if log.state().is_deletable(dropped)])
    log.forget(dropped.name for dropped in log.state().dropped if log.state().is_deletable(dropped))
    log.add_gaps([LostRange(f1, 90, 120, GapReason.DROPPED_BY_POLICY)], epoch)
    catalog.alter_server_config(lambda _: {"log.retention.ms": "-1"})
    catalog.take_producer_ids(1000)
    catalog.fence(flights.topic_id, 2, "writer-7")
    pin = log.pin("spark-1", log.store_date_ms + _HOUR_MS)
    log.renew_pin(pin, log.store_date_ms + 2 * _HOUR_MS)
    log.pin_commit("spark snapshot 0:8", log.store_date_ms + _HOUR_MS, 8)
    log.raise_horizon(7)
    log.unpin(pin)
    log.drop_tier({f1: 95}, epoch=epoch, catalog_seq=catalog.seq)
    return harness


def _add(log: MetadataLog, epoch: int, ranges: dict[TopicIdPartition, tuple[int, int]]) -> None:
    log.add([_object(log, ranges)], epoch)


def _object(
    log: MetadataLog, ranges: dict[TopicIdPartition, tuple[int, int]]
) -> tuple[ObjectRef, list[SliceEntry]]:
    """An object as the documentation needs it: only what a commit says of it exists."""
    entries: list[SliceEntry] = []
    position = 4096
    for tip, (base_offset, end_offset) in sorted(ranges.items()):
        size_bytes = (end_offset - base_offset) * 100
        entries.append(_entry(tip, base_offset, end_offset, position, size_bytes))
        position += size_bytes
    ref = ObjectRef(
        name=log.next_object_name(),
        size_bytes=position + 900,
        data_position=4096,
        directory_position=position,
        directory_bytes=300,
        key_streams_end=position + 800,
        directory_crc=0x1234ABCD,
    )
    return ref, entries


def _entry(
    tip: TopicIdPartition, base_offset: int, end_offset: int, position: int, size_bytes: int
) -> SliceEntry:
    return SliceEntry(
        topic_id=tip.topic_id,
        topic="flights",
        partition=tip.partition,
        base_offset=base_offset,
        end_offset=end_offset,
        data_position=position,
        data_bytes=size_bytes,
        data_crc=base_offset + 7,
        record_count=end_offset - base_offset,
        min_timestamp=1_356_998_400_000 + base_offset,
        max_timestamp=1_356_998_400_000 + end_offset,
        max_timestamp_offset=end_offset - 1,
        codec_mask=1 << 4,
        stable_end_offset=end_offset,
        tombstone_count=3,
        earliest_delete_horizon_ms=None,
        leader_epochs=(LeaderEpoch(1, base_offset),),
        last_batch=LastBatch(end_offset - 5, 1, end_offset),
        key_stream=KeyStreamRef(position + 50, 640, 26, 99, 0x0102030405060708),
        index=PartRef(position + 700, 64, 5),
    )
