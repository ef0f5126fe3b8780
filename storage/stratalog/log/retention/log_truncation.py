"""Cuts a log at an offset, and lets it go on behind a hole.

An offset must not be given twice. So if compaction has left nothing between the last batch that stays and the
offset of the cut, the log goes on behind that hole. It also does so if a copied batch lies farther behind the
end than the indexes of a segment reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratalog.log.append.log_flusher import LogFlusher
from stratalog.log.log_parts import LogParts
from stratalog.log.read.log_reader import LogReader
from stratalog.segment.log_segment import LogSegment

Roll = Callable[[int, Callable[[], None]], None]
"""Begins a segment at that offset. The callable runs when the segment is there, before an empty one goes."""


class LogTruncation:
    """Cuts a log at an offset, or lets it go on behind a hole. Thread-safe: it takes both locks of
    UnifiedLog."""

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
        """`checkpoint` makes the current offsets durable."""
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
        # First of all: the checkpoints must never promise more than the new log has.
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
        """Lower the log start to the new end. Not before the cut: deleted records below the start would come
        back after a crash in between. The next records get offsets below the old start, and must not count as
        deleted."""
        if self._offsets.log_start_offset > end_offset:
            self._offsets.log_start_offset = end_offset
            self._checkpoint()

    def _go_on_at(self, offset: int, start_offset: int) -> None:
        """Go on behind a hole if compaction has left nothing up to `offset`; the log start stays."""
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
            # Before an empty segment goes: then the hole that it ends must be below the recovery point.
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
