"""Drops the oldest segments of a log: those below its start, then by size, by age, and those that hide a
compacted copy.

`retention` has the rules. Dropped segments are renamed at once, so that no reader finds them any more, and
unlinked later, so that readers that hold one can finish. In a log without another tier the log start follows,
and with it the epochs and producers. A segment that the system does not let go stays, with all behind it,
until the next time.

A segment whose newest record claims to be of the future is never old enough, and keeps all behind it from
being dropped by age. The log of the process warns once for each, and they are counted. The same holds for a
segment whose age is unknown because a batch is damaged: checksums are compared before a segment goes. A
damaged segment is compared again when its file has another time, and once an hour, because a copy that
replaces it may have the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.directory_health import DISK_FAILURES
from stratalog.log.log_parts import LogParts
from stratalog.log.retention import retention
from stratalog.log.retention.retention_outlook import (
    NEVER,
    ExpiredUnit,
    KeptUnit,
    NextExpiry,
    RetentionLimits,
    RetentionOutlook,
    next_expiry,
    rules_of_counts,
)
from stratalog.log.retention.space_drops import SpaceDrops
from stratalog.segment.log_segment import LogSegment

logger = logging.getLogger(__name__)

DAMAGED_AGAIN_S = 60 * 60
"""Time before a damaged segment is read again."""


class LogRetention:
    """Drops a log's old segments. Thread-safe: it takes both locks of UnifiedLog for every change, but not
    for the proven ages, which are replaced as a whole."""

    def __init__(
        self,
        parts: LogParts,
        topic_partition: TopicPartition,
        *,
        roll: Callable[[], None],
        unlink: Callable[[Sequence[LogSegment], int], None],
    ) -> None:
        """`roll` begins a new segment. `unlink` unlinks the files of segments after so many milliseconds."""
        self._flush_lock = parts.flush_lock
        self._lock = parts.lock
        self._clock = parts.clock
        self._topic_partition = topic_partition
        self._local = parts.local_log
        self._state = parts.state
        self._offsets = parts.offsets
        self._availability = parts.availability
        self._roll = roll
        self._unlink = unlink
        self._filesystem = parts.local_log.resources.filesystem
        self._newest_ms_of = retention.newest_ms_on(self._filesystem)
        self._reported_base_offset = self._damaged_base_offset = -1
        # Segments whose age was proven, with the size that they had.
        self._proven: dict[LogSegment, int] = {}
        # The segment whose age a damaged batch hides, with the time of its file: so it is not read each time.
        self._damaged: tuple[LogSegment, int] | None = None
        self._damaged_until_s = 0.0
        # The segment that ended the last look at ages, because it claims to be of the future.
        self._future_base_offset: int | None = None
        self.look_count = 0
        """Looks at the ages of segments, and reads of their files: it grows while a call gets on."""

    @property
    def future_segment_count(self) -> int:
        """The number of segments that keep all behind them from being dropped by age, because they claim to
        be of the future. As of the last look, and at most one, because the first one ends the look."""
        base_offset = self._future_base_offset
        return int(base_offset is not None and base_offset >= self._offsets.local_log_start_offset)

    def delete_local_segments(self, *, ignore_retention: bool = False, compacted_upto: int = 0) -> int:
        """Drop local segments that are in the object store and beyond the local retention; return how many.

        Segments below the log start go in any case. `ignore_retention`: drop all segments that are in the
        object store. `compacted_upto`: below it the object store is compacted, and if the configuration
        `drops_compacted`, sealed segments go that lie below it. Raises CorruptRecordError,
        DataDirectoryError.
        """
        rule = retention.all_tiered if ignore_retention else retention.beyond_local_retention
        return self._delete(rule, compacted_upto)

    def drop_for_space(
        self, wanted_bytes: int, *, may_lose: bool, is_wanted: Callable[[], bool] = lambda: True
    ) -> int:
        """Drop the oldest segments of a tiered log until `wanted_bytes` are dropped, and return their size.
        Their files are unlinked at once. Never the active segment, nor one above the high watermark.

        Without `may_lose` only those that are in the object store. With it also others, whose records are
        lost: the log begins behind the tiered end then, and `space_drop_end_offset` says why. What an upload
        is reading or sending stays. Drops nothing if it is no longer wanted once the log is free. Raises
        DataDirectoryError.
        """
        assert self._local.config.remote_storage_enable, "other logs go by their retention"
        with self._flush_lock, self._lock:
            if not is_wanted():
                return 0
            count = dropped_bytes = end_offset = 0
            for segment in self._local.segments:
                may_go = self._is_tiered(segment) or (may_lose and not self._is_uploading(segment))
                is_needed = dropped_bytes < wanted_bytes and may_go
                if not is_needed or segment.is_active or segment.end_offset > self._offsets.high_watermark:
                    break
                count += 1
                dropped_bytes += segment.size_bytes
                end_offset = segment.end_offset
            is_loss = count > 0 and end_offset > self._offsets.tiered_end_offset
            refused = self._note_space_drop(end_offset) if is_loss else None
            # Not after the delay for readers: the disk needs the space.
            self._unlink(self._drop(count), 0)
            if refused is not None:
                self._note_late(end_offset)
            return dropped_bytes

    def space_drop_end_offset(self) -> int:
        """The offset below which `drop_for_space` may have dropped records that the object store did not
        have; 0 if it never did. Survives a restart. Raises DataDirectoryError."""
        with self._lock, self._availability.unchanged_on_refusal():
            return self._space_drops().read()

    def _space_drops(self) -> SpaceDrops:
        return SpaceDrops(self._filesystem, self._local.directory, self._topic_partition)

    def _note_space_drop(self, end_offset: int) -> DataDirectoryError | None:
        """Note how far records are dropped; returns the error if the system refuses that. Raises
        DataDirectoryError if the disk has failed."""
        try:
            with self._availability.unchanged_on_refusal():
                self._space_drops().note(end_offset)
        except DataDirectoryError as refused:
            if self._availability.refusal() is not None:
                raise
            return refused
        return None

    def _note_late(self, end_offset: int) -> None:
        """Note what was dropped from a disk that had no room for the note before."""
        refused = self._note_space_drop(end_offset)
        if refused is not None:
            logger.warning(
                "%s: it cannot be noted why records were dropped, and the store will say that they are"
                " missing on the disk, end_offset=`%d` reason=`%s`",
                self._topic_partition,
                end_offset,
                refused,
            )

    def delete_old_segments(self) -> int:
        """Drop segments of a log without tiers, below its start or beyond its retention; return how many. The
        log start follows. Raises CorruptRecordError, DataDirectoryError."""
        return self._delete(retention.beyond_retention)

    def explain(
        self,
        *,
        log_start_offset: int | None = None,
        tiered_end_offset: int | None = None,
        compacted_upto: int = 0,
    ) -> RetentionOutlook:
        """The segments that `delete_local_segments` (of a tiered log) or `delete_old_segments` would drop
        now, and the one that goes next. Deletes nothing.

        The offsets, where given, are those that the log will have then. May read whole segments, as a
        deletion does. Raises DataDirectoryError.
        """
        config = self._local.config
        is_tiered = config.remote_storage_enable
        rule = retention.beyond_local_retention if is_tiered else retention.beyond_retention
        bounds = retention.RetentionBounds(
            self._offsets.log_start_offset if log_start_offset is None else log_start_offset,
            self._offsets.high_watermark,
            self._offsets.tiered_end_offset if tiered_end_offset is None else tiered_end_offset,
            compacted_upto,
        )
        self._prove_ages(rule, bounds)
        segments = tuple(self._local.segments)
        counts = self._count_of(rule, self._is_older_and_proven, bounds)
        rules = rules_of_counts(*counts, is_local=is_tiered)
        expired = tuple(
            ExpiredUnit(why, segment.base_offset, segment.end_offset, segment.size_bytes)
            for why, segment in zip(rules, segments, strict=False)
        )
        kept = segments[counts.compacted_count :]
        oldest = next((one for one in kept if not one.is_active or one.size_bytes > 0), None)
        return RetentionOutlook(
            expired,
            sum(segment.size_bytes for segment in kept),
            None if oldest is None else self._next_expiry(oldest, kept, bounds),
        )

    def _next_expiry(
        self, segment: LogSegment, kept: Sequence[LogSegment], bounds: retention.RetentionBounds
    ) -> NextExpiry:
        config = self._local.config
        limits = RetentionLimits(config.retention_ms, config.retention_bytes)
        exemption = ""
        if config.remote_storage_enable:
            limits = RetentionLimits(
                config.effective_local_retention_ms, config.effective_local_retention_bytes, "local."
            )
            if segment.end_offset > bounds.tiered_end_offset:
                exemption = "the object store does not have all of it yet"
        elif not config.is_deleted:
            exemption = "cleanup.policy is compact, so only the cleaner removes records"
        if not exemption and segment.end_offset > bounds.high_watermark:
            exemption = "it has records above the high watermark"
        try:
            newest_ms = self._newest_ms_of(segment)
        except CorruptRecordError:
            newest_ms = NEVER
        behind_bytes = sum(one.size_bytes for one in kept) - segment.size_bytes
        unit = KeptUnit(segment.base_offset, segment.end_offset, segment.size_bytes, newest_ms, behind_bytes)
        expiry = next_expiry(unit, limits, self._clock.now_ms(), exemption)
        if exemption or not config.drops_compacted or segment.is_active:
            return expiry
        return expiry._replace(reason=f"{expiry.reason}; it goes sooner once a compaction covers it")

    def _delete(self, rule: retention.RetentionRule, compacted_upto: int = 0) -> int:
        self._prove_ages(rule, self._bounds(compacted_upto))
        with self._flush_lock, self._lock:
            dropped = self._drop_beyond(rule, compacted_upto)
            self._unlink(dropped, self._local.config.file_delete_delay_ms)
            return len(dropped)

    def _bounds(self, compacted_upto: int) -> retention.RetentionBounds:
        offsets = self._offsets
        return retention.RetentionBounds(
            offsets.log_start_offset, offsets.high_watermark, offsets.tiered_end_offset, compacted_upto
        )

    def _prove_ages(self, rule: retention.RetentionRule, bounds: retention.RetentionBounds) -> None:
        """Compare the checksums of segments that `_drop_beyond` drops by age. May read whole segments, so it
        holds no lock. Raises CorruptRecordError, DataDirectoryError."""
        proven: dict[LogSegment, int] = {}

        def is_older(segment: LogSegment, before_ms: int) -> bool:
            size_bytes = segment.size_bytes
            if not self._seems_older(segment, before_ms):
                return False
            if not self._is_proven(segment, size_bytes) and not self._is_sound(segment):
                return False
            proven[segment] = size_bytes
            return True

        self._count_of(rule, is_older, bounds)
        self._proven = proven

    def _drop_beyond(self, rule: retention.RetentionRule, compacted_upto: int) -> tuple[LogSegment, ...]:
        """Drop the segments beyond the rule; by age only those that were proven. The others wait for the next
        look. Raises CorruptRecordError, DataDirectoryError."""
        self._future_base_offset = None
        bounds = self._bounds(compacted_upto)
        return self._drop(self._count_of(rule, self._is_older_and_proven, bounds).compacted_count)

    def _is_older_and_proven(self, segment: LogSegment, before_ms: int) -> bool:
        return self._seems_older(segment, before_ms) and self._is_proven(segment, segment.size_bytes)

    def _count_of(
        self, rule: retention.RetentionRule, is_older: retention.IsOlder, bounds: retention.RetentionBounds
    ) -> retention.ExpiredCounts:
        config, now_ms = self._local.config, self._clock.now_ms()
        return self._availability.reading(
            lambda: rule(self._local.segments, bounds, config, is_older, now_ms)
        )

    def _drop(self, count: int) -> tuple[LogSegment, ...]:
        """Drop the first `count` segments."""
        if count == 0:
            return ()
        self._availability.require_online()
        if count == len(self._local.segments):
            # The active segment is never dropped: begin a new, empty one first.
            try:
                self._roll()
            except DataDirectoryError:
                if count == 1 or self._availability.refusal() is not None:
                    raise
                # A full disk has no room for a new segment before the others have gone.
                count -= 1
        self._sync_snapshots()
        with self._availability.unchanged_on_refusal():
            count = self._local.put_aside_oldest(count, self._tell_left)
        start_offset = self._local.segments[count].base_offset
        if not self._local.config.remote_storage_enable:
            # Before the list changes: a reader that misses them gets the new log start with its error.
            self._offsets.log_start_offset = max(self._offsets.log_start_offset, start_offset)
        with self._availability.offline_on_failure():
            dropped = self._local.drop_oldest(count)
            self._remove_snapshots(start_offset)
        if not self._local.config.remote_storage_enable:
            self.follow_log_start()
        self._offsets.recovery_point = max(self._offsets.recovery_point, start_offset)
        return dropped

    def _sync_snapshots(self) -> None:
        """Make the snapshots durable: they alone remember the producers of the dropped batches. Raises
        DataDirectoryError."""
        snapshot_files = self._state.producers.snapshot_files
        snapshots = snapshot_files.take_unsynced()
        with self._availability.offline_on_failed_sync(lambda: snapshot_files.put_back(snapshots)):
            snapshot_files.sync(snapshots)

    def _remove_snapshots(self, start_offset: int) -> None:
        """Remove the snapshots of dropped segments. Raises OSError if the disk has failed; otherwise a
        snapshot that stays does no harm."""
        try:
            self._state.producers.snapshot_files.remove_before(start_offset)
        except OSError as failure:
            if failure.errno in DISK_FAILURES:
                raise
            self._tell_left(failure)

    def _tell_left(self, failure: OSError) -> None:
        logger.warning(
            "%s: a file of a deleted segment cannot be removed and stays until the next start; correct the"
            " reason, reason=`%s`",
            self._topic_partition,
            failure,
        )

    def follow_log_start(self) -> None:
        """Forget the state of the records below the log start."""
        self._state.epochs.truncate_from_start(self._offsets.log_start_offset)
        self._state.producers.on_log_start_offset_incremented(self._offsets.log_start_offset)
        self._state.publish(self._offsets.high_watermark)

    def _is_tiered(self, segment: LogSegment) -> bool:
        """The segment is in the object store as a whole."""
        return segment.end_offset <= self._offsets.tiered_end_offset

    def _is_uploading(self, segment: LogSegment) -> bool:
        return self._offsets.is_uploading and segment.base_offset < self._offsets.uploading_end_offset

    def _is_proven(self, segment: LogSegment, size_bytes: int) -> bool:
        return self._is_tiered(segment) or self._proven.get(segment) == size_bytes

    def _seems_older(self, segment: LogSegment, before_ms: int) -> bool:
        """Whether the segment is older, by its index and its headers."""
        self._note_look()
        try:
            return self._newest_ms(segment) < before_ms
        except CorruptRecordError as damage:
            if self._is_tiered(segment):
                return self._filesystem.modified_ms(segment.path) < before_ms
            self._report_damage(segment, damage)
            return False

    def _note_look(self) -> None:
        self.look_count += 1

    def _is_sound(self, segment: LogSegment) -> bool:
        seen = segment, self._filesystem.modified_ms(segment.path)
        if self._damaged == seen and self._clock.monotonic_s() < self._damaged_until_s:
            return False
        try:
            segment.prove_max_timestamp(self._note_look)
        except CorruptRecordError as damage:
            self._damaged, self._damaged_until_s = seen, self._clock.monotonic_s() + DAMAGED_AGAIN_S
            self._report_damage(segment, damage)
            return False
        return True

    def _report_damage(self, segment: LogSegment, damage: CorruptRecordError) -> None:
        if segment.base_offset > self._damaged_base_offset:
            self._damaged_base_offset = segment.base_offset
            logger.warning(
                "%s: retention by age stops at a segment whose age is unknown because of damage; restore its"
                " file from a copy and restart the server, or delete the records, base_offset=`%d`"
                " reason=`%s`",
                self._topic_partition,
                segment.base_offset,
                damage,
            )

    def _newest_ms(self, segment: LogSegment) -> int:
        newest_ms, now_ms = self._newest_ms_of(segment), self._clock.now_ms()
        # Segments come oldest first, and the first one of the future ends the look.
        if newest_ms <= now_ms:
            return newest_ms
        self._future_base_offset = segment.base_offset
        if segment.base_offset > self._reported_base_offset:
            self._reported_base_offset = segment.base_offset
            logger.warning(
                "%s: retention by age stops at a segment whose records are in the future; correct the"
                " producer's clock, or delete the records, base_offset=`%d` newest_ms=`%d` now_ms=`%d`",
                self._topic_partition,
                segment.base_offset,
                newest_ms,
                now_ms,
            )
        return newest_ms
