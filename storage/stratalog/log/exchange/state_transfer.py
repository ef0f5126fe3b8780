"""Transfers the state of a log to the object store and back.

A slice in the store carries the state of the log at the end of the slice: its producers and leader epochs. A
log that begins behind the uploaded slices, on another machine or another disk, takes over that state: then a
producer that sends a stored request again gets the same answer, and one that goes on is recognised.

Crash: a restored log has a snapshot at its beginning, which is written last. A log without it is restored
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratalog.log.leader_epoch_cache import EpochEntry
from stratalog.log.log_parts import LogParts
from stratalog.log.producers.producer_snapshot import ProducerSnapshot


class StateTransfer:
    """Reads and restores the producers and leader epochs of a log. Thread-safe: it takes UnifiedLog.lock, and
    none while it reads batches."""

    def __init__(self, parts: LogParts) -> None:
        self._lock = parts.lock
        self._clock = parts.clock
        self._local = parts.local_log
        self._state = parts.state
        self._offsets = parts.offsets
        self._availability = parts.availability

    def producers_at(self, offset: int) -> ProducerSnapshot:
        """The state of the producers when the log ended at `offset`, an offset of the local log.

        May contain producers that have expired since. Raises OffsetOutOfRangeError outside of the local log,
        CorruptRecordError, DataDirectoryError.
        """

        def find() -> ProducerSnapshot:
            with self._lock:
                segments = self._local.segments
                if not segments.start_offset <= offset <= segments.end_offset:
                    raise self._offsets.out_of_range(offset)
                snapshot = self._state.producers.snapshot_files.newest_at_or_below(offset)
            return self._state.producers_at(snapshot, segments, offset)

        return self._availability.reading(find)

    def forgotten(self, producer_ids: Iterable[int]) -> list[int]:
        """Those of these producers that the log, which has followed them all, has forgotten since."""
        with self._lock:
            known = self._state.producers.producers
            return [producer_id for producer_id in producer_ids if producer_id not in known]

    def leader_epochs(self, start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
        """The epochs of the batches in [start_offset, end_offset), the first cut to begin there."""
        return self._state.epochs.entries_in_range(start_offset, end_offset)

    @property
    def is_restorable(self) -> bool:
        """The log is empty, and the state of the records below it is not known here."""
        with self._lock:
            start_offset = self._local.segments.start_offset
            is_empty = start_offset == self._offsets.log_end_offset > 0
            return is_empty and start_offset not in self._state.producers.snapshot_files.offsets

    def restore(self, snapshot: ProducerSnapshot, epochs: Sequence[EpochEntry]) -> None:
        """Take over the state below the log, which is restorable and begins at the offset of `snapshot`.

        Durable when it returns; after a crash before that the log is restorable again. Raises
        CorruptRecordError, with nothing changed, if the epochs do not ascend, DataDirectoryError.
        """
        with self._lock:
            self._availability.require_online()
            assert self.is_restorable
            assert snapshot.end_offset == self._offsets.log_end_offset
            with self._availability.offline_on_failure():
                self._state.restore(snapshot, epochs, self._clock.now_ms())
            self._state.publish(self._offsets.high_watermark)
