"""Rewrites one batch at a time: the slow way of the second pass.

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
)
from stratalog.log.exchange.cleaned_segment import OnRead
from stratalog.record.batch import records_payload, require_crc
from stratalog.record.builder import with_horizon
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.keep_rules import MarkerFate, is_due, marker_fate
from stratalog.record.native.aborted_spans import is_aborted
from stratalog.record.native.cleaned_batches import NO_HORIZON, CleanedBatches, CleanRule
from stratalog.record.native.offset_map import OffsetMap, OpenTransactions

_KEPT_MARKERS = (MarkerFate.STAYS, MarkerFate.STAYS_ONCE_MORE, MarkerFate.STAYS_UNTIL_HORIZON)


class BatchRewrite:
    """Rewrites one batch at a time. Not thread-safe: guarded by its user."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: OpenTransactions,
        start_offset: int,
        level_of: Callable[[Codec], int | None],
        on_read: OnRead,
    ) -> None:
        """`transactions` are those with data below the first batch. `start_offset` is the log's: records
        below it are dropped. `level_of` gives the compression level of a codec. `on_read` may raise."""
        self._map = offset_map
        self._transactions = transactions
        self._start_offset = start_offset
        self._level_of = level_of
        self._on_read = on_read

    def rewrite(self, batch: Buffer, header: BatchHeader, rule: CleanRule) -> CleanedBatches:
        """Return the kept part of a whole batch. Raises CorruptRecordError, and the errors of `on_read`."""
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
                # Proves that the section decompresses to nothing.
                clean_records_of(batch, header, self._map, rule, level, self._on_read)
            return _left(batch if rule.keeps_empty(header) else NOTHING, header)
        if header.base_offset < self._start_offset:
            batch = since_offset(batch, header, self._start_offset, level)
            if not batch:
                return _emptied(header, rule)
            now = parse_header(batch)
        left = clean_records_of(batch, now, self._map, rule, level, self._on_read)
        records, horizon_ms = left.records, left.horizon_ms
        is_new = horizon_ms != now.delete_horizon_ms
        waits = header.last_offset <= self._map.latest_offset or not is_due(horizon_ms, rule.now_ms)
        noted = records.tombstone_count > 0 and (is_new or waits)
        # Built with one call, because every compressed batch gets here.
        return CleanedBatches(
            data=left.batch or _emptied_data(header, rule),
            end_position=header.size_in_bytes,
            next_offset=header.next_offset,
            records_in=now.records_count,
            records_kept=records.records_kept,
            null_key_count=records.null_key_count,
            dropped_tombstone_count=records.dropped_tombstone_count,
            earliest_horizon_ms=horizon_ms if noted and horizon_ms is not None else NO_HORIZON,
            latest_horizon_ms=horizon_ms if noted and horizon_ms is not None else -1,
        )

    def _clean_marker(self, batch: Buffer, header: BatchHeader, rule: CleanRule) -> CleanedBatches:
        marker, horizon_ms = EndTransactionMarker.read(batch, 0, header), header.delete_horizon_ms
        if marker is None and header.records_count > 0:
            # A control batch that is not a transaction marker stays.
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
                return cleaned._replace(earliest_horizon_ms=horizon_ms, latest_horizon_ms=horizon_ms)
            return cleaned
        if fate is MarkerFate.GETS_HORIZON:
            stamped = with_horizon(records_payload(batch, 0, header), header, rule.horizon_ms)
            return _left(stamped, header)._replace(
                earliest_horizon_ms=rule.horizon_ms, latest_horizon_ms=rule.horizon_ms
            )
        is_abort = marker is not None and marker.control_type is ControlType.ABORT
        return _emptied(header, rule)._replace(
            dropped_marker_count=1, dropped_aborts=(header.last_offset,) if is_abort else ()
        )


def _left(data: Buffer, header: BatchHeader) -> CleanedBatches:
    return CleanedBatches(data, header.size_in_bytes, header.next_offset)


def _emptied(header: BatchHeader, rule: CleanRule) -> CleanedBatches:
    return _left(_emptied_data(header, rule), header)


def _emptied_data(header: BatchHeader, rule: CleanRule) -> bytes:
    """The header without records, if the rule keeps it; otherwise nothing."""
    return emptied(header) if rule.keeps_empty(header) else NOTHING
