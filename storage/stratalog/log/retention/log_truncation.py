"""Cutting a log at an offset, and letting it go on behind a hole.

An offset that once was given must not be given again. So where compaction has left nothing between the last
batch that stays and the place of the cut, the log goes on behind that hole; and so it does where a copied
batch lies farther behind the end than a segment's indexes reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratalog.log.append.log_flusher import LogFlusher
from stratalog.log.log_parts import LogParts
from stratalog.log.read.log_reader import LogReader
from stratalog.segment.log_segment import LogSegment

Roll = Callable[[int, Callable[[], None]], None]
"""Begin a segment at that offset; the other is called when it is there, and before an empty one goes."""


class LogTruncation:
    """Thread-safe: it takes both locks of UnifiedLog."""

    def __init__(
        self,
        parts: LogParts,
        flusher: LogFlusher,
        reader: LogReader,
        *,
        roll: Roll,
        checkpoint: Callable[[], None],
        unlink_later: Callable[[Sequence[LogSegment]], None],
    ) -> None:
        """`checkpoint`: makes the offsets durable as they are now."""
        self._flush_lock = parts.flush_lock
        self._lock = parts.lock
        self._clock = parts.clock
        self._local = parts.local_log
        self._state = parts.state
        self._offsets = parts.offsets
        self._availability = parts.availability
        self._flusher = flusher
        self._reader = reader
        self._roll = roll
        self._checkpoint = checkpoint
        self._unlink_later = unlink_later

    def truncate_to(self, offset: int) -> int:
        """Drop the batches that end at or above `offset`; return the log's end, see `LogReader.end_without`.
        Durable when it returns. Raises CorruptRecordError with nothing changed, DataDirectoryError."""
        with self._flush_lock, self._lock:
            self._availability.require_online()
            if offset < self._local.segments.start_offset:
                self._begin_anew_at(offset)
            elif offset < self._offsets.log_end_offset:
                self._cut_at(offset)
            return self._offsets.log_end_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything local and go on, empty, at `offset`. Durable when it returns. Raises
        DataDirectoryError."""
        with self._flush_lock, self._lock:
            self._availability.require_online()
            self._begin_anew_at(offset)

    def _cut_at(self, offset: int) -> None:
        end_offset = self._reader.end_without(offset)
        start_offset = min(self._offsets.log_start_offset, end_offset)
        truncated = self._availability.reading(lambda: self._local.before(offset))
        with self._availability.offline_on_failure():
            self._offsets.lower_to(truncated.segments.end_offset)
            self._checkpoint()
            self._local.truncate(truncated)
            self._lower_start_to(truncated.segments.end_offset)
            self._state.truncate_to(truncated.segments, self._clock.now_ms(), self._offsets.high_watermark)
        self._unlink_later(truncated.dropped)
        self._go_on_at(end_offset, start_offset)

    def _begin_anew_at(self, offset: int) -> None:
        # Before it begins: the checkpoints must never promise more than the new log has.
        self._offsets.lower_to(offset)
        self._offsets.recovery_point = 0
        with self._availability.offline_on_failure():
            self._checkpoint()
            dropped = self._local.restart_at(offset, self._clock.now_ms())
            self._lower_start_to(offset)
            self._state.restart_at(offset)
        self._offsets.recovery_point = offset
        if not self._local.config.remote_storage_enable:
            self._offsets.log_start_offset = offset
        self._state.publish(self._offsets.high_watermark)
        self._unlink_later(dropped)

    def _lower_start_to(self, end_offset: int) -> None:
        """The log ends there now. Not before: what was deleted below its start would be there again after a
        death in between. What comes next has offsets below that start, and must not be taken for deleted."""
        if self._offsets.log_start_offset > end_offset:
            self._offsets.log_start_offset = end_offset
            self._checkpoint()

    def _go_on_at(self, offset: int, start_offset: int) -> None:
        """Behind what is left, where compaction has left nothing up to there; the log starts where it did."""
        if self._offsets.log_end_offset >= offset:
            return
        if self._local.segments.size_bytes > 0:
            self.begin_behind(offset, start_offset)
        elif not self._local.config.remote_storage_enable:
            self._begin_anew_at(offset)

    def begin_behind(self, offset: int, start_offset: int = 0) -> None:
        """Begin a segment there, behind a hole; the log starts at `start_offset` at least, where it is empty
        at `offset`. Durable when it returns. The caller holds both locks. Raises DataDirectoryError."""

        def write_down_end() -> None:
            # Before an empty segment goes: the hole that it ends must be one of old by then.
            with self._availability.offline_on_failure():
                self._state.producers.update_map_end_offset(offset)
                self._state.producers.take_snapshot(durable=False)
            is_empty = not self._local.segments.size_bytes and not self._local.config.remote_storage_enable
            least_offset = offset if is_empty else start_offset
            self._offsets.log_start_offset = max(self._offsets.log_start_offset, least_offset)
            self._state.publish(self._offsets.high_watermark)
            self._flusher.flush()
            with self._availability.offline_on_failure():
                self._checkpoint()

        self._availability.require_online()
        self._roll(offset, write_down_end)
        self._flusher.flush()
