"""Makes a log durable, on request and as its configuration says.

`flush.messages` bounds the number of records that wait for a sync: the append that reaches it syncs before it
is acknowledged. `flush.ms` bounds the time: a periodic task asks every log. By default neither has an effect,
as in Kafka: the operating system writes at its own times, and requests that need more ask for a flush.

After a successful sync the recovery point moves to the end that the log had when the sync began. A failed
sync takes the log offline: the bytes on the disk are unknown then, and a second sync may claim success. If no
file could be opened for the sync, it has not begun, and the next flush does its work.
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
        """The time at which the last flush began. Later appends may not be durable."""

    def flush(self) -> int:
        """Make durable, names included, what was appended before the call; return the recovery point then.

        Appends go on meanwhile. Raises DataDirectoryError: a sync that fails takes the log offline.
        """
        with self._lock:
            with self._log_lock:
                self._availability.require_online()
                flushed_s = self._clock.monotonic_s()
                end_offset = self._offsets.log_end_offset
                work = self._local.take_unsynced(self._offsets.recovery_point)
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
                self._flushed_s = flushed_s
                self._offsets.recovery_point = max(self._offsets.recovery_point, end_offset)
                self._state.publish(self._offsets.high_watermark)
                return self._offsets.recovery_point

    def flush_if_many(self) -> None:
        """Flush if `flush.messages` records or more wait. Raises as `flush` does. Must not be called under
        UnifiedLog.lock."""
        flush_messages = self._local.config.flush_messages
        if self._unflushed_count() >= flush_messages:
            with self._lock:
                # Another thread's flush, for which this one waited, may have been enough.
                if self._unflushed_count() >= flush_messages:
                    self.flush()

    def flush_if_old(self) -> None:
        """Flush if records wait and the last flush began `flush.ms` ago or earlier; for a periodic task. Does
        nothing to a log that is offline or closed. Raises DataDirectoryError."""
        with self._lock:
            age_ms = (self._clock.monotonic_s() - self._flushed_s) * 1000
            is_old = age_ms >= self._local.config.flush_ms
            if is_old and self._unflushed_count() and self._availability.refusal() is None:
                self.flush()

    def _unflushed_count(self) -> int:
        """The number of offsets between the recovery point and the end, as Kafka counts."""
        return self._offsets.log_end_offset - self._offsets.recovery_point
