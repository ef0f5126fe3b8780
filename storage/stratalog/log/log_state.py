"""What a log knows besides its bytes: its producers and their transactions, and its leader epochs.

All of it follows from the batches, and it is always that of the log up to its end. `stable_limit` is what
readers get of it: they ask beside an append, when the batches are there already and the state has not
followed yet, so it moves last, as one number, and only to a value at which everything below is decided.

Crash: epochs are in their file before a batch has them, and of producers there are snapshots. What opens a
log reads both and replays what lies behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from stratalog.log.log_segments import LogSegments
from stratalog.log.producers.producer_batch import ProducerBatch, producer_batches
from stratalog.log.producers.producer_fold import CompletedTransaction, ProducerFold
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_manager import ProducerStateManager
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.end_transaction_marker import ControlType
from stratalog.segment.batch_walk import walk
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.log_segment import LogSegment


class LogState:
    """Changes are guarded by UnifiedLog.lock; `stable_limit` may be asked beside them."""

    def __init__(self, producers: ProducerStateManager, epochs: LeaderEpochCache) -> None:
        self.producers = producers
        self.epochs = epochs
        self.stable_limit = 0
        """Below it every transaction is decided, for good. `publish` moves it."""

    def follow(self, batch: ProducerBatch) -> CompletedTransaction | None:
        """Take notice of the next batch, which has its offsets; the transaction that it ends, if any.

        Raises CorruptRecordError where its leader epoch is below that of a batch before it.
        """
        self.follow_epoch(batch.header.leader_epoch, batch.header.base_offset)
        return self.producers.append(batch)

    def follow_epoch(self, leader_epoch: int, base_offset: int) -> None:
        """Half of `follow`: the batch at that offset has this leader epoch. Raises CorruptRecordError."""
        if leader_epoch != self.latest_epoch:
            self.epochs.assign(leader_epoch, base_offset)

    @property
    def latest_epoch(self) -> int:
        """Of the last batch; -1 where none is known."""
        latest_epoch = self.epochs.latest_epoch
        return NO_LEADER_EPOCH if latest_epoch is None else latest_epoch

    def publish(self, high_watermark: int) -> None:
        """The log has this high watermark now, and all of its batches have been followed."""
        self.producers.on_high_watermark_updated(high_watermark)
        unstable_offset = self.producers.first_unstable_offset
        self.stable_limit = self.producers.map_end_offset if unstable_offset is None else unstable_offset

    def reload_producers(
        self,
        segments: Sequence[LogSegment],
        end_offset: int,
        now_ms: int,
        *,
        high_watermark: int | None = None,
    ) -> None:
        """Know the producers of these segments, which end there. Snapshots that are not of it are removed,
        durably, unless changes to snapshots are held back.

        `high_watermark`: see `ProducerStateManager.truncate_and_reload`. Raises CorruptRecordError, OSError.
        """
        start_offset = segments[0].base_offset if segments else end_offset
        self.producers.truncate_and_reload(start_offset, end_offset, now_ms, high_watermark=high_watermark)
        for segment in segments:
            for batch in self._batches(segment, self.producers.map_end_offset):
                self.producers.append(batch)
        self.producers.update_map_end_offset(end_offset)

    def learn_epochs(self, segments: Sequence[LogSegment]) -> None:
        """Find the leader epochs that are newer than all known ones in the batches of these segments, which
        are the log so far.

        Raises CorruptRecordError where a batch has a lower one than the batch before it, OSError.
        """
        known = self.epochs.entries
        start_offset = known[-1].start_offset if known else -1
        newer_count = 0
        for segment in reversed(segments):
            # One that is empty says nothing of those before it.
            if segment.size_bytes > 0 and self._first_epoch(segment) <= self.latest_epoch:
                break
            newer_count += 1
        # Epochs ascend, so the first that is newer begins in the segment before these at the earliest.
        for segment in segments[max(0, len(segments) - newer_count - 1) :]:
            for _, header in segment.batches():
                if header.base_offset > start_offset:
                    self.follow_epoch(header.leader_epoch, header.base_offset)

    def _first_epoch(self, segment: LogSegment) -> int:
        return next((header.leader_epoch for _, header in segment.batches()), NO_LEADER_EPOCH)

    def producers_at(
        self, snapshot: ProducerSnapshot | None, segments: LogSegments, end_offset: int
    ) -> ProducerSnapshot:
        """What was known of the producers when the log ended at `end_offset`. Without a snapshot to begin
        with, nothing was known before the segments. Changes nothing and needs no lock.

        Raises CorruptRecordError, OSError.
        """
        start_offset = segments.start_offset
        fold = ProducerFold(snapshot or ProducerSnapshot(start_offset, ()))
        offset = start_offset if snapshot is None else max(start_offset, snapshot.end_offset)
        for segment in segments.since(offset):
            if segment.base_offset >= end_offset:
                break
            for batch in self._batches(segment, offset):
                if batch.header.base_offset >= end_offset:
                    break
                fold.follow(batch)
        return fold.snapshot(end_offset)

    def restore(self, snapshot: ProducerSnapshot, epochs: Sequence[EpochEntry], now_ms: int) -> None:
        """The log is empty and begins where the snapshot was taken; this is what was below. Durable when it
        returns, the snapshot last.

        Raises CorruptRecordError where the epochs do not ascend, OSError.
        """
        self.epochs.replace(epochs)
        self.epochs.flush()
        self.producers.restore(snapshot, now_ms)

    def _batches(self, segment: LogSegment, offset: int) -> Iterator[ProducerBatch]:
        """The batches of the segment that begin at or above `offset`."""
        if segment.end_offset <= offset or segment.size_bytes == 0:
            return
        position = 0 if segment.base_offset >= offset else segment.position_of(offset)
        if position is None:
            return
        with segment.lend() as file:
            for batch in producer_batches(file, walk(file, position, segment.size_bytes)):
                if batch.header.base_offset >= offset:
                    yield batch

    def truncate_to(self, segments: LogSegments, now_ms: int, high_watermark: int) -> None:
        """The log ends where these segments end. Durable when it returns. Raises CorruptRecordError,
        OSError."""
        end_offset = segments.end_offset
        self.epochs.truncate_from_end(end_offset)
        self.epochs.flush()
        self.reload_producers(segments, end_offset, now_ms, high_watermark=high_watermark)
        self.publish(high_watermark)

    def restart_at(self, offset: int) -> None:
        """The log is empty and begins there. Durable when it returns. Raises OSError."""
        self.producers.truncate_fully_and_start_at(offset)
        if self.epochs.entries:
            self.epochs.clear()
            self.epochs.flush()
        self.publish(offset)

    def relocate(self, directory: str) -> None:
        """The files are there now, durable and as they would be written. Cannot fail."""
        self.producers.snapshot_files.relocate(directory)
        self.epochs.relocate(directory)

    def check(self, segments: LogSegments) -> None:
        """Prove that the state is that of the segments. Raises CorruptRecordError, OSError."""
        self.producers.check()
        self.epochs.check()
        assert self.producers.map_end_offset == segments.end_offset
        unstable_offset = self.producers.first_unstable_offset
        assert self.stable_limit == (segments.end_offset if unstable_offset is None else unstable_offset)
        assert all(entry.start_offset <= segments.end_offset for entry in self.epochs.entries)
        opened: dict[int, int] = {}
        base_offsets: set[int] = set()
        for segment in segments:
            aborted = segment.indexes().transaction_index if segment.has_aborted else ()
            entries = {entry.last_offset: entry for entry in aborted}
            for batch in self._batches(segment, segment.base_offset):
                self._check_epoch(batch)
                base_offsets.add(batch.header.base_offset)
                first_offset = _follow_transactions(opened, batch)
                entry = entries.get(batch.header.last_offset)
                if entry is not None:
                    _check_entry(entry, batch, first_offset, base_offsets)
                elif first_offset is not None:
                    assert not _is_abort(batch), "an aborted transaction has no entry"
        known = dict(self.producers.open_transactions)
        assert opened.keys() <= known.keys()
        # One that began before the first segment is seen from there on only; so is one of which compaction
        # has dropped the beginning, before a truncation took its end.
        for producer_id, first_offset in known.items():
            assert first_offset == opened.get(producer_id) or first_offset not in base_offsets
            assert first_offset <= opened.get(producer_id, first_offset)

    def _check_epoch(self, batch: ProducerBatch) -> None:
        expected = self.epochs.epoch_for_offset(batch.header.base_offset)
        assert expected is None or expected == batch.header.leader_epoch


def _follow_transactions(opened: dict[int, int], batch: ProducerBatch) -> int | None:
    """Note where transactions begin; where the one began that the batch ends."""
    header = batch.header
    if header.is_control:
        return opened.pop(header.producer_id, None) if batch.marker is not None else None
    if header.is_transactional and batch.has_producer:
        opened.setdefault(header.producer_id, header.base_offset)
    return None


def _check_entry(
    entry: AbortedTransaction, batch: ProducerBatch, first_offset: int | None, base_offsets: set[int]
) -> None:
    """It says of the transaction that the batch ends no less than what was seen of it: `first_offset` is its
    first one, if any was seen among the batches with those base offsets."""
    assert batch.marker is None or _is_abort(batch), "what was committed has an entry"
    assert entry.producer_id == batch.header.producer_id
    assert entry.last_stable_offset <= entry.last_offset + 1
    if first_offset is not None:
        # Compaction may have dropped the beginning.
        assert entry.first_offset == first_offset or entry.first_offset not in base_offsets
        assert entry.first_offset <= first_offset


def _is_abort(batch: ProducerBatch) -> bool:
    return batch.marker is not None and batch.marker.control_type is ControlType.ABORT
