"""The state of a log besides its bytes: its producers with their transactions, and its leader epochs.

The state follows from the batches, and belongs to the log up to its end. Readers use `stable_limit` only.
They may ask during an append, when the batches are there and the state has not followed yet. So that number
moves last, and only to a value below which every transaction has ended.

Crash: an epoch is in its file before a batch has it, and there are snapshots of the producers. A start reads
both and replays the batches behind them.
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
        """Every transaction below has ended, for good. `publish` moves it."""

    def follow(self, batch: ProducerBatch) -> CompletedTransaction | None:
        """Follow the next batch, which has its offsets; return the transaction that it ends, if any.

        Raises CorruptRecordError if its leader epoch is below that of an earlier batch.
        """
        self.follow_epoch(batch.header.leader_epoch, batch.header.base_offset)
        return self.producers.append(batch)

    def follow_epoch(self, leader_epoch: int, base_offset: int) -> None:
        """Note the leader epoch of the batch at that offset, as `follow` does. Raises CorruptRecordError."""
        if leader_epoch != self.latest_epoch:
            self.epochs.assign(leader_epoch, base_offset)

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last batch, or that of the next one if it is noted; -1 if none is known."""
        latest_epoch = self.epochs.latest_epoch
        return NO_LEADER_EPOCH if latest_epoch is None else latest_epoch

    def publish(self, high_watermark: int) -> None:
        """Move `stable_limit` for this high watermark. The state has followed all batches."""
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
        """Load the producers of these segments, which end there. Removes snapshots of other logs, durably,
        unless changes to snapshots are held back.

        `high_watermark`: see `ProducerStateManager.truncate_and_reload`. Raises CorruptRecordError, OSError.
        """
        start_offset = segments[0].base_offset if segments else end_offset
        self.producers.truncate_and_reload(start_offset, end_offset, now_ms, high_watermark=high_watermark)
        for segment in segments:
            for batch in self._batches(segment, self.producers.map_end_offset):
                self.producers.append(batch)
        self.producers.update_map_end_offset(end_offset)

    def producers_at(
        self, snapshot: ProducerSnapshot | None, segments: LogSegments, end_offset: int
    ) -> ProducerSnapshot:
        """The state of the producers when the log ended at `end_offset`, from a snapshot and the batches
        behind it, or from all batches. Changes nothing and needs no lock.

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
        """Take over the state below an empty log, which begins at the snapshot. Durable when it returns; the
        snapshot is written last.

        Raises CorruptRecordError if the epochs do not ascend, OSError.
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
        """Cut the state to the end of these segments. Durable when it returns. Raises CorruptRecordError,
        OSError."""
        end_offset = segments.end_offset
        self.epochs.truncate_from_end(end_offset)
        self.epochs.flush()
        self.reload_producers(segments, end_offset, now_ms, high_watermark=high_watermark)
        self.publish(high_watermark)

    def restart_at(self, offset: int) -> None:
        """Forget everything; the log is empty and begins there. Durable when it returns. Raises OSError."""
        self.producers.truncate_fully_and_start_at(offset)
        if self.epochs.entries:
            self.epochs.clear()
            self.epochs.flush()
        self.publish(offset)

    def relocate(self, directory: str) -> None:
        """Use the files in that directory, which are durable and up to date. Cannot fail."""
        self.producers.snapshot_files.relocate(directory)
        self.epochs.relocate(directory)

    def check(self, segments: LogSegments) -> None:
        """Assert that the state belongs to the segments. Raises CorruptRecordError, OSError."""
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
        # The beginning of a transaction may lie before the first segment, or compaction may have dropped it
        # before a truncation took the end.
        for producer_id, first_offset in known.items():
            assert first_offset == opened.get(producer_id) or first_offset not in base_offsets
            assert first_offset <= opened.get(producer_id, first_offset)

    def _check_epoch(self, batch: ProducerBatch) -> None:
        expected = self.epochs.epoch_for_offset(batch.header.base_offset)
        assert expected is None or expected == batch.header.leader_epoch


def _follow_transactions(opened: dict[int, int], batch: ProducerBatch) -> int | None:
    """Note the beginnings of transactions; return the beginning of the one that the batch ends."""
    header = batch.header
    if header.is_control:
        return opened.pop(header.producer_id, None) if batch.marker is not None else None
    if header.is_transactional and batch.has_producer:
        opened.setdefault(header.producer_id, header.base_offset)
    return None


def _check_entry(
    entry: AbortedTransaction, batch: ProducerBatch, first_offset: int | None, base_offsets: set[int]
) -> None:
    """Assert that the entry covers the transaction that the batch ends. `first_offset`: the first offset that
    was seen of it, if any, among the batches with those base offsets."""
    assert batch.marker is None or _is_abort(batch), "what was committed has an entry"
    assert entry.producer_id == batch.header.producer_id
    assert entry.last_stable_offset <= entry.last_offset + 1
    if first_offset is not None:
        # Compaction may have dropped the beginning.
        assert entry.first_offset == first_offset or entry.first_offset not in base_offsets
        assert entry.first_offset <= first_offset


def _is_abort(batch: ProducerBatch) -> bool:
    return batch.marker is not None and batch.marker.control_type is ControlType.ABORT
