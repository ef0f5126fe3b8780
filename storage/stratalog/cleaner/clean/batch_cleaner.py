"""Cleans one batch after the other, by itself: the long way of the second pass.

The row kernels (``offset_map.clean_batches``) do the same for many batches with one call, and leave three
kinds of batches to this class: compressed ones, those that begin below the log's start, and control batches
that are not exactly the markers that brokers write. Without compiled kernels all batches come here. Tests
compare both ways.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.filesystem import Buffer
from stratalog.cleaner.clean.rebuilt_batch import (
    NOTHING,
    clean_records_of,
    emptied,
    since_offset,
    with_horizon,
)
from stratalog.log.exchange.cleaned_segment import OnRead
from stratalog.record.batch import require_crc
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.keep_rules import MarkerFate, marker_fate
from stratalog.record.native.aborted_spans import is_aborted
from stratalog.record.native.cleaned_batches import CleanedBatches, CleanRule
from stratalog.record.native.offset_map import OffsetMap, OpenTransactions

_KEPT_MARKERS = (MarkerFate.STAYS, MarkerFate.STAYS_ONCE_MORE, MarkerFate.STAYS_UNTIL_HORIZON)


class BatchCleaner:
    """Not thread-safe: guarded by its user."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: OpenTransactions,
        start_offset: int,
        level_of: Callable[[Codec], int | None],
        on_read: OnRead,
    ) -> None:
        """`transactions`: those that have data below the first batch. `start_offset`: the log's, records
        below it are dropped. `level_of`: compression levels. `on_read` may raise."""
        self._map = offset_map
        self._transactions = transactions
        self._start_offset = start_offset
        self._level_of = level_of
        self._on_read = on_read

    def clean(self, batch: Buffer, header: BatchHeader, rule: CleanRule) -> CleanedBatches:
        """What is left of a whole batch. Raises CorruptRecordError, and what `on_read` raises."""
        require_crc(batch, 0, header)
        if header.is_control:
            return self._clean_marker(batch, header, rule)
        if is_aborted(rule.aborted, header):
            cleaned = _emptied(header, rule)._replace(aborted_count=header.records_count)
        else:
            cleaned = self._clean_data(batch, header, rule)
        if header.is_transactional:
            self._transactions.on_data(header.producer_id, is_kept=len(cleaned.data) > 0)
        return cleaned

    def _clean_data(self, batch: Buffer, header: BatchHeader, rule: CleanRule) -> CleanedBatches:
        level, now = self._level_of(header.codec), header
        if header.records_count == 0:
            if not header.is_bare:
                # Proves that nothing is compressed in it.
                clean_records_of(batch, header, self._map, rule, level, self._on_read)
            return _left(batch if rule.keeps_empty(header) else NOTHING, header)
        if header.base_offset < self._start_offset:
            batch = since_offset(batch, header, self._start_offset, level)
            if not batch:
                return _emptied(header, rule)
            now = parse_header(batch)
        left = clean_records_of(batch, now, self._map, rule, level, self._on_read)
        cleaned = _left(left.batch, header) if left.batch else _emptied(header, rule)
        is_new = left.horizon_ms != now.delete_horizon_ms
        if left.records.tombstone_count and left.horizon_ms is not None:
            cleaned = _with_horizon_noted(cleaned, left.horizon_ms, is_new=is_new, rule=rule)
        return cleaned._replace(
            records_in=now.records_count,
            records_kept=left.records.records_kept,
            null_key_count=left.records.null_key_count,
            dropped_tombstone_count=left.records.dropped_tombstone_count,
        )

    def _clean_marker(self, batch: Buffer, header: BatchHeader, rule: CleanRule) -> CleanedBatches:
        marker, horizon_ms = EndTransactionMarker.read(batch, 0, header), header.delete_horizon_ms
        if marker is None and header.records_count > 0:
            # A control batch of another kind.
            return _left(batch, header)
        fate = marker_fate(
            is_data_kept=self._transactions.on_marker(header.producer_id),
            holds_epoch=marker is not None and rule.keeps_epoch(header),
            horizon_ms=horizon_ms,
            now_ms=rule.now_ms,
        )
        if marker is None and fate not in (MarkerFate.STAYS, MarkerFate.STAYS_ONCE_MORE):
            # An earlier clean dropped the marker and kept the header.
            return _emptied(header, rule)
        if fate in _KEPT_MARKERS:
            cleaned = _left(batch, header)._replace(has_waiting_marker=fate is MarkerFate.STAYS_ONCE_MORE)
            if fate is MarkerFate.STAYS_UNTIL_HORIZON and horizon_ms is not None:
                return _with_horizon_noted(cleaned, horizon_ms, is_new=False, rule=rule)
            return cleaned
        if fate is MarkerFate.GETS_HORIZON:
            stamped = _left(with_horizon(batch, header, rule.horizon_ms), header)
            return _with_horizon_noted(stamped, rule.horizon_ms, is_new=True, rule=rule)
        is_abort = marker is not None and marker.control_type is ControlType.ABORT
        return _emptied(header, rule)._replace(
            dropped_marker_count=1, dropped_aborts=(header.last_offset,) if is_abort else ()
        )


def _left(data: Buffer, header: BatchHeader) -> CleanedBatches:
    return CleanedBatches(data, header.size_in_bytes, header.next_offset)


def _emptied(header: BatchHeader, rule: CleanRule) -> CleanedBatches:
    """The batch goes, or stays without records for what its header holds."""
    return _left(emptied(header) if rule.keeps_empty(header) else NOTHING, header)


def _with_horizon_noted(
    cleaned: CleanedBatches, horizon_ms: int, *, is_new: bool, rule: CleanRule
) -> CleanedBatches:
    """A batch stays that has something to drop at that time. A horizon that has passed already, of a
    tombstone above the map, does not count."""
    if not is_new and horizon_ms <= rule.now_ms:
        return cleaned
    return cleaned._replace(earliest_horizon_ms=horizon_ms, latest_horizon_ms=max(horizon_ms, -1))
