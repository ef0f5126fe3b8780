"""The units of retention, slices and local segments, and the rules that count those to go.

`remote_retention` explains them. The rules are pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.read.segment_info import SegmentInfo
from stratalog.log.retention.retention_outlook import ExpiryRule
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import NO_TIMESTAMP
from stratalog.remote.metadata.head.committed_log import MAX_CLOCK_SKEW_MS
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.shard_state import LiveObject
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.slice_span import SliceSpan


class RetentionUnit(NamedTuple):
    """A slice or a local segment, which goes or stays as a whole."""

    end_offset: int
    size_bytes: int
    max_timestamp: int
    """Milliseconds; `NO_TIMESTAMP` where no record has a timestamp."""
    is_empty: bool = False
    """It has no records left, and is as old as the unit before it."""
    is_active: bool = False
    """An upload rolls it soon, or it is empty: it counts by size, and stays."""
    is_doubtful: bool = False
    """It is damaged and its age is unknown: it goes by size only."""


def expired_rules(
    units: Sequence[RetentionUnit], config: LogConfig, now_ms: int | None
) -> tuple[ExpiryRule, ...]:
    """The rule by which each of the oldest units goes, for as many units as go. Pure.

    `now_ms` is None if the clock is not trusted: then nothing expires by time.
    """
    if not config.is_deleted:
        return ()
    left_bytes = sum(unit.size_bytes for unit in units)
    rules: list[ExpiryRule] = []
    for unit, newest_ms in zip(units, newest_times_ms(units), strict=True):
        left_bytes -= unit.size_bytes
        is_over_size = config.retention_bytes != UNLIMITED and left_bytes >= config.retention_bytes
        if unit.is_active or not (is_over_size or is_old(unit, newest_ms, config, now_ms)):
            break
        rules.append(ExpiryRule.RETENTION_BYTES if is_over_size else ExpiryRule.RETENTION_MS)
    return tuple(rules)


def is_time_refused(config: LogConfig, now_ms: int | None) -> bool:
    """Whether a retention by time deletes nothing, because the clock is not trusted. Pure."""
    return now_ms is None and config.is_deleted and config.retention_ms != UNLIMITED


def future_units(
    units: Sequence[RetentionUnit], config: LogConfig, now_ms: int | None
) -> Sequence[RetentionUnit]:
    """The units whose newest record lies further in the future than clocks may differ, where retention goes
    by time. Pure."""
    if not config.is_deleted or config.retention_ms == UNLIMITED or now_ms is None:
        return ()
    return [unit for unit in units if unit.max_timestamp > now_ms + MAX_CLOCK_SKEW_MS]


def is_worth_a_look(
    row: PartitionRow, behind: Sequence[RetentionUnit], config: LogConfig, now_ms: int | None
) -> bool:
    """Whether the first slice, or a part of it, may expire, or a slice may have a record of the future, as
    far as the row tells, without a page. Slices expire in order. `behind`: the local units. Pure.
    """
    if not row.pieces:
        return True
    if not config.is_deleted:
        return False
    # The first slice goes by size where all others are large enough, and it may be empty.
    all_bytes = row.tiered_bytes + sum(unit.size_bytes for unit in behind)
    if config.retention_bytes != UNLIMITED and all_bytes >= config.retention_bytes:
        return True
    if config.retention_ms == UNLIMITED or now_ms is None:
        return False
    oldest_kept_ms = now_ms - config.retention_ms
    is_young = row.oldest_newest_ms > NO_TIMESTAMP and oldest_kept_ms <= row.oldest_newest_ms
    is_in_future = row.newest_ms > now_ms + MAX_CLOCK_SKEW_MS
    return not is_young or is_in_future or (row.oldest_ms < oldest_kept_ms and _may_be_wide(row, config))


def _may_be_wide(row: PartitionRow, config: LogConfig) -> bool:
    """Whether the first slice may be wider than the bound of its topic."""
    span = SliceSpan.of(config)
    return row.oldest_newest_ms - row.oldest_ms > span.max_ms or row.tiered_bytes > span.max_bytes


def slice_units(partition: TieredPartition, objects: Mapping[str, LiveObject]) -> Iterator[RetentionUnit]:
    """The live slices of a partition. `objects` has those that hold them."""
    for live in partition.slices:
        entry = live.entry
        newest_ms, is_empty = live.newest_ms, entry.record_count == 0
        if live.gap is not None:
            is_empty = live.gap.reason == GapReason.EXPIRED.value
        elif newest_ms == NO_TIMESTAMP and not is_empty:
            newest_ms = objects[live.object_name].uploaded_ms
        yield RetentionUnit(live.end_offset, entry.data_bytes, newest_ms, is_empty)


def tiered_unit(row: PartitionRow, committed_ms: int) -> tuple[RetentionUnit, ...]:
    """All live slices of a partition as one unit, which the row alone tells; none without slices.

    It goes when all of them go, or later. `committed_ms`: the time of the newest commit, as old as which
    slices without timestamps are at most.
    """
    if not row.pieces:
        return ()
    return (RetentionUnit(row.tiered_end_offset, row.tiered_bytes, max(row.newest_ms, committed_ms)),)


def local_units(
    log: UnifiedLog, segments: Sequence[SegmentInfo], tiered_end_offset: int
) -> Iterator[RetentionUnit]:
    """The local segments at or above the tiered end. A segment that lies on both sides of it is as young as
    its newest record on either side. The active one goes like the others where no upload is to roll it, as in
    a log without tiers: otherwise the records of a quiet log would never expire.
    """
    is_rolled = log.local_log.config.is_uploading
    for segment in segments:
        if segment.end_offset <= tiered_end_offset:
            continue
        size_bytes = segment.size_bytes
        if segment.base_offset < tiered_end_offset:
            size_bytes = _pending_bytes(log, segment, tiered_end_offset)
        yield RetentionUnit(
            segment.end_offset,
            size_bytes,
            segment.max_timestamp_ms,
            is_active=segment.is_active and (is_rolled or segment.size_bytes == 0),
            is_doubtful=segment.damage is not None,
        )


def _pending_bytes(log: UnifiedLog, segment: SegmentInfo, tiered_end_offset: int) -> int:
    """Bytes that the segment holds behind the tiered end, as an upload would find them.

    0 where it may not be uploaded yet: with too small a size `retention.bytes` deletes too little.
    """
    for source in log.reader.upload_candidates(tiered_end_offset):
        if source.segment_base_offset == segment.base_offset:
            return source.size_bytes
    return 0


def newest_times_ms(units: Sequence[RetentionUnit]) -> list[int]:
    """The newest timestamp of each unit, or of the next one that has any; `NO_TIMESTAMP` where none has."""
    newest_ms: list[int] = []
    next_ms = NO_TIMESTAMP
    for unit in reversed(units):
        next_ms = unit.max_timestamp if unit.max_timestamp > NO_TIMESTAMP else next_ms
        newest_ms.append(next_ms)
    return newest_ms[::-1]


def is_old(unit: RetentionUnit, newest_ms: int, config: LogConfig, now_ms: int | None) -> bool:
    """Whether `retention.ms` keeps the unit no longer, by the time of its newest record."""
    if config.retention_ms == UNLIMITED or now_ms is None or unit.is_doubtful:
        return False
    return unit.is_empty or NO_TIMESTAMP < newest_ms < now_ms - config.retention_ms
