"""Makes a log durable: when somebody asks, and when its configuration does.

`flush.messages` bounds how many records may wait for a sync: whoever appends the last of so many syncs before
the append is acknowledged. `flush.ms` bounds for how long: a periodic task asks every log. By default neither
does anything, as in Kafka: the operating system writes when it likes, and the requests that need more say so.

The recovery point moves here, behind a sync that succeeded, to where the log ended when that began. A sync
that fails takes the log offline: nobody knows what is on the disk then, and a second one may claim success.
One for which no file could be opened has not begun: the next flush does what was to be done.
"""

from __future__ import annotations

from stratalog.log.log_parts import LogParts


class LogFlusher:
    """Thread-safe: one flush at a time, under `lock`; what it changes is guarded by UnifiedLog.lock."""

    def __init__(self, parts: LogParts) -> None:
        self._lock = parts.flush_lock
        self._log_lock = parts.lock
        self._clock = parts.clock
        self._local = parts.local_log
        self._state = parts.state
        self._offsets = parts.offsets
        self._availability = parts.availability
        self._flushed_s = parts.clock.monotonic_s()
        """When the last flush began: what was appended since may not be durable."""

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
                # Another one's flush may have been waited for, and may have been enough.
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
        """As Kafka counts: offsets between the recovery point and the end."""
        return self._offsets.log_end_offset - self._offsets.recovery_point
