"""Cleans one log: below some offset only the last record of each key stays.

There are two passes. The first reads the dirty part and puts the last offset of each key into a map of
bounded size; a full map ends the clean there. If not the last record of a key stays but the one with the
highest version, the first pass also reads the clean part, whose records may win: it raises the versions of
the keys in the map, and takes no further ones. The second copies the log from its start up to that offset,
without the records for which the map has a better one, and replaces the segments by the copies, a group at a
time. If only the horizons of tombstones or markers have passed, there is no first pass, and the map is
empty.

Each group is exchanged by itself, so a clean that ends early leaves a correct log: it has lost only records
with a better one in the map. A clean that ended early is repeated from the beginning. With versions, the
better one may lie in an earlier group. So a tombstone whose key is in the map stays for one clean more, and a
clean ends early if records are deleted meanwhile, which may be the better ones.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from stratalog.base.clock import Clock
from stratalog.base.randomness import IdGenerator
from stratalog.base.stepwise_sort import sorted_stepwise
from stratalog.cleaner.clean.aborted_index import AbortedIndex
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult, CleanStats
from stratalog.cleaner.clean.group_rewrite import CleanPlan, GroupRewrite
from stratalog.cleaner.clean.header_walk import transactions_open_behind
from stratalog.cleaner.clean.map_builder import MapBuilder
from stratalog.cleaner.clean.segment_groups import SegmentGroup, group_segments
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.exchange.cleaned_segment import OnRead
from stratalog.log.log_segments import LogSegments
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import MAX_OFFSET
from stratalog.record.keep_rules import VersionRule, new_horizon_ms
from stratalog.record.native.offset_map import OffsetMap
from stratalog.segment.log_segment import LogSegment

_HASH_KEY_BYTES = 16
_MIN_WINDOW_BYTES = 16 * 1024


class LogClean:
    """Cleans one log each time it runs. Thread-safe: each clean has its own state."""

    def __init__(self, clock: Clock, ids: IdGenerator) -> None:
        self._clock = clock
        self._ids = ids

    def run(self, to_clean: LogToClean, limits: CleanLimits) -> CleanResult:
        """Clean the log in [first_dirty_offset, first_uncleanable_offset), or as much of it as the map has
        room for, at least one record; and drop tombstones and markers after their horizons.

        Raises the errors of `limits.check_done`, CleaningAbortedError if segments were dropped meanwhile (or
        records deleted, with versions), CorruptRecordError (fields path, position) for a damaged segment,
        OSError and DataDirectoryError. The current group is unchanged then, those before it are clean.
        """
        stats, exchanged = CleanStats(), CleanStats()
        log, first_offset = to_clean.log, to_clean.first_dirty_offset
        if first_offset >= to_clean.first_uncleanable_offset and not to_clean.is_next_clean_due:
            return CleanResult(first_offset, stats)

        def on_io(size_bytes: int) -> None:
            limits.check_done()
            limits.throttle(size_bytes)

        config = log.local_log.config
        producers = log.producers()
        segments = log.local_log.segments
        window_bytes = _window_bytes(limits, segments, to_clean.first_uncleanable_offset)
        start_offset = log.offsets.log_start_offset
        to_clean = _since(start_offset, to_clean)
        assert to_clean.first_uncleanable_offset <= min(
            log.offsets.last_stable_offset, segments.active.base_offset
        )
        left: list[SegmentGroup] = []
        # Retention drops the segments below, perhaps now.
        looked_up = segments.since(max(start_offset, segments.start_offset))
        aborted = AbortedIndex(looked_up, on_io)
        try:
            offset_map = self._filled_map(to_clean, segments, aborted, limits, stats, on_io, window_bytes)
            end_offset = offset_map.latest_offset + 1
            max_start_offset = _max_start_offset(offset_map, start_offset)
            plan = self._plan(log, offset_map, producers, window_bytes)
            deleted, wanted = _parts(segments, plan)
            left = group_segments(wanted, config.segment_bytes, config.segment_index_bytes)
            rewrite = GroupRewrite(
                log.segment_exchange.resources,
                log.local_log.directory,
                plan,
                aborted,
                transactions_open_behind(deleted, on_io),
                stats,
                on_io,
            )
            while left:
                limits.check_done()
                self._exchange(log, rewrite, left[0], on_io, max_start_offset)
                del left[0]
                exchanged = replace(stats)
        except BaseException as failure:
            limits.on_cut_off(exchanged)
            if not isinstance(failure, FileNotFoundError) or _are_there(log, segments, left):
                raise
            raise CleaningAbortedError("segments of the log were dropped while it was cleaned") from failure
        return CleanResult(
            end_offset, stats, rewrite.horizons.due_ms(log.local_log.config.delete_retention_ms)
        )

    def _filled_map(
        self,
        to_clean: LogToClean,
        segments: LogSegments,
        aborted: AbortedIndex,
        limits: CleanLimits,
        stats: CleanStats,
        on_io: OnRead,
        window_bytes: int,
    ) -> OffsetMap:
        first_offset, stop_offset = to_clean.first_dirty_offset, to_clean.first_uncleanable_offset
        rule = to_clean.log.local_log.config.version_rule
        offset_map = self._new_map(limits, stop_offset - first_offset, rule)
        if first_offset < stop_offset:
            builder = MapBuilder(offset_map, aborted, first_offset, stop_offset, stats, on_io, window_bytes)
            end_offset = builder.build(segments)
            assert first_offset < end_offset <= stop_offset
        else:
            offset_map.skip_to(first_offset - 1)
        stats.map_entry_count, stats.max_map_entry_count = len(offset_map), offset_map.max_entries
        stats.is_map_full = offset_map.is_full
        start_offset = max(to_clean.log.offsets.log_start_offset, segments.start_offset)
        if rule is not None and len(offset_map) and start_offset < first_offset:
            offset_map.close()
            MapBuilder(offset_map, aborted, start_offset, first_offset, stats, on_io, window_bytes).build(
                segments
            )
        return offset_map

    def _new_map(self, limits: CleanLimits, offset_count: int, rule: VersionRule | None) -> OffsetMap:
        """Make a map as large as allowed, but no larger than that many offsets can fill."""
        enough = math.ceil(offset_count / limits.map_load_factor) + 1
        most = OffsetMap.slots_for(limits.map_bytes, has_versions=rule is not None)
        return OffsetMap(self._ids.secret(_HASH_KEY_BYTES), min(most, enough), limits.map_load_factor, rule)

    def _plan(
        self,
        log: UnifiedLog,
        offset_map: OffsetMap,
        producers: Sequence[ProducerStateEntry],
        window_bytes: int,
    ) -> CleanPlan:
        kept = {entry.batches[-1].last_offset for entry in producers if entry.batches}
        kept.add(log.offsets.high_watermark - 1)
        start_offset = log.offsets.log_start_offset
        without_data = (
            entry for entry in producers if not entry.batches or entry.batches[-1].last_offset < start_offset
        )
        epochs = ((entry.producer_id, entry.epoch) for entry in without_data)
        return CleanPlan(
            offset_map,
            start_offset=start_offset,
            now_ms=self._clock.now_ms(),
            kept_empty=array("q", sorted_stepwise([*kept], key=int)),
            kept_epochs=array("q", chain.from_iterable(epochs)),
            config=log.local_log.config,
            window_bytes=window_bytes,
        )

    def _exchange(
        self,
        log: UnifiedLog,
        rewrite: GroupRewrite,
        group: SegmentGroup,
        on_read: OnRead,
        max_start_offset: int,
    ) -> None:
        # Taken anew for each group: a consumer can read the records that a tombstone deletes until their
        # group, this one or one before, is exchanged.
        horizon_ms = new_horizon_ms(self._clock.now_ms(), log.local_log.config.delete_retention_ms)
        cleaned = rewrite.write(group, horizon_ms)
        exchange = log.segment_exchange
        if not exchange.replace(cleaned, group, on_read, max_start_offset=max_start_offset):
            raise CleaningAbortedError("records or segments of the log were deleted while it was cleaned")


def _since(start_offset: int, to_clean: LogToClean) -> LogToClean:
    """The same without deleted records, which beat no others."""
    first_offset = min(max(to_clean.first_dirty_offset, start_offset), to_clean.first_uncleanable_offset)
    return to_clean._replace(first_dirty_offset=first_offset)


def _max_start_offset(offset_map: OffsetMap, start_offset: int) -> int:
    """The highest start of the log for which the map is right, if it was filled from `start_offset` on. By
    offsets a deleted record beats earlier ones only, which are deleted with it."""
    return start_offset if offset_map.rule is not None and len(offset_map) else MAX_OFFSET


def _window_bytes(limits: CleanLimits, segments: LogSegments, stop_offset: int) -> int:
    """The window size, at most that of the largest segment: a window's memory is allocated at once."""
    cleaned = (segment.size_bytes for segment in segments.sealed if segment.base_offset < stop_offset)
    return min(max(_MIN_WINDOW_BYTES, limits.io_buffer_bytes), max(cleaned, default=0))


def _parts(segments: LogSegments, plan: CleanPlan) -> tuple[list[LogSegment], list[LogSegment]]:
    """The segments with deleted records only, which retention will drop; and the segments to copy."""
    reached = [segment for segment in segments.sealed if segment.base_offset < plan.stop_offset]
    deleted = [segment for segment in reached if segment.end_offset <= plan.start_offset]
    return deleted, reached[len(deleted) :]


def _are_there(log: UnifiedLog, segments: LogSegments, left: Sequence[SegmentGroup]) -> bool:
    """Return whether the segments that the clean still needs are in the log."""
    found = set(map(id, log.local_log.segments))
    needed = [segment for group in left for segment in group] or segments
    return all(id(segment) in found for segment in needed)
