"""Makes a log durable, on request and as its configuration says.

`flush.messages` bounds the number of records that wait for a sync: the append that reaches it is acknowledged
after the next sync. `flush.ms` bounds the time: a periodic task asks every log. By default neither has an
effect, as in Kafka: the operating system writes at its own times, and requests that need more ask for a
flush. Only rolled segments never wait long: a periodic task makes them durable, so a restart after a crash
reads the end of the log, however long the log is.

After a successful sync the recovery point moves to the end of the synced part, as it was when the sync began:
the end of the log, or the end of the rolled segments. A failed sync takes the log offline: the bytes on the
disk are unknown then, and a second sync may claim success. So a flush fails as well if the log has gone
offline beside it. If no file could be opened for the sync, it has not begun, and the next flush does its
work.
"""

from __future__ import annotations

from stratalog.log.log_parts import LogParts


class LogFlusher:
    """Flushes a log to disk. Thread-safe: one flush at a time, under `lock`; what it changes is guarded by
    UnifiedLog.lock."""

    def __init__(self, parts: LogParts) -> None:
        self._lock = parts.flush_lock
        self._log_lock = parts.lock
        self._clock = parts.clock
        self._local = parts.local_log
        self._state = parts.state
        self._offsets = parts.offsets
        self._availability = parts.availability
        self._flushed_s = parts.clock.monotonic_s()
        """The time at which the last flush of the whole log began. Later appends may not be durable."""

    def flush(self) -> int:
        """Make durable, names included, what was appended before the call; return the recovery point then.

        Appends go on meanwhile. Raises DataDirectoryError: a sync that fails takes the log offline.
        """
        return self._flush(with_active=True)

    def flush_rolled(self) -> int:
        """Make durable, names included, the segments that were rolled before the call, if the recovery point
        is below their end; return the recovery point then. The active segment is not synced. Raises as
        `flush` does."""
        with self._lock:
            return self._flush(with_active=False) if self._has_rolled() else self._offsets.recovery_point

    def _flush(self, *, with_active: bool) -> int:
        with self._lock:
            with self._log_lock:
                self._availability.require_online()
                flushed_s = self._clock.monotonic_s()
                active = self._local.segments.active
                end_offset = active.end_offset if with_active else active.base_offset
                work = self._local.take_unsynced(self._offsets.recovery_point, end_offset)
                snapshot_files = self._state.producers.snapshot_files
                snapshots = snapshot_files.take_unsynced()
            if snapshots or not work.is_empty:

                def put_back() -> None:
                    self._local.put_back(work)
                    snapshot_files.put_back(snapshots)

                with self._availability.offline_on_failed_sync(put_back):
                    snapshot_files.sync(snapshots)
                    self._local.sync(work)
            with self._log_lock:
                # A sync of the same files by an append may have failed meanwhile, and taken the error along:
                # the system reports a failed write to one sync only.
                self._availability.require_online()
                if with_active:
                    self._flushed_s = flushed_s
                self._offsets.recovery_point = max(self._offsets.recovery_point, end_offset)
                self._state.publish(self._offsets.high_watermark)
                return self._offsets.recovery_point

    def has_many(self) -> bool:
        """Whether `flush.messages` records or more wait. Takes no lock."""
        return self._unflushed_count() >= self._local.config.flush_messages

    def flush_if_many(self) -> None:
        """Flush if `flush.messages` records or more wait. Raises as `flush` does. Must not be called under
        UnifiedLog.lock."""
        if self.has_many():
            with self._lock:
                # Another thread's flush, for which this one waited, may have been enough.
                if self.has_many():
                    self.flush()

    def flush_if_old(self) -> None:
        """Flush if records wait and the last flush began `flush.ms` ago or earlier; for a periodic task. Does
        nothing to a log that is offline or closed. Raises DataDirectoryError."""
        with self._lock:
            age_ms = (self._clock.monotonic_s() - self._flushed_s) * 1000
            is_old = age_ms >= self._local.config.flush_ms
            if is_old and self._unflushed_count() and self._availability.refusal() is None:
                self.flush()

    def flush_if_rolled(self) -> None:
        """`flush_rolled`, for a periodic task: two comparisons if nothing was rolled. Does nothing to a log
        that is offline or closed. Raises DataDirectoryError."""
        if self._has_rolled():
            with self._lock:
                if self._availability.refusal() is None:
                    self.flush_rolled()

    def _has_rolled(self) -> bool:
        """Whether rolled segments may not be durable. Takes no lock."""
        return self._offsets.recovery_point < self._local.segments.active.base_offset

    def _unflushed_count(self) -> int:
        """The number of offsets between the recovery point and the end, as Kafka counts."""
        return self._offsets.log_end_offset - self._offsets.recovery_point
