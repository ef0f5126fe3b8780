"""Holding a transaction index against the log that it is about.

The file has no checksum, and what a damaged entry says is served to readers of committed records. But each
entry names two batches: the transaction's first one and its abort marker. Where these lie in a hole, or in
segments that are gone, there is no evidence, and the entry is believed.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import CorruptRecordError
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.transaction_index import AbortedTransaction, TransactionIndex


def is_contradicted(index: TransactionIndex, segments: Sequence[LogSegment]) -> bool:
    """The batches of these segments, of which the last is the index's own, say otherwise. Raises OSError."""
    return any(_is_contradicted(entry, segments) for entry in index)


def _is_contradicted(entry: AbortedTransaction, segments: Sequence[LogSegment]) -> bool:
    if not segments[-1].base_offset <= entry.last_offset or entry.last_stable_offset > entry.last_offset + 1:
        return True
    first, marker = _batch_at(segments, entry.first_offset), _batch_at(segments, entry.last_offset)
    if first is not None and (
        (first.producer_id, first.base_offset) != (entry.producer_id, entry.first_offset)
        or not first.is_transactional
    ):
        return True
    return marker is not None and (
        (marker.producer_id, marker.last_offset) != (entry.producer_id, entry.last_offset)
        or not marker.is_control
    )


def _batch_at(segments: Sequence[LogSegment], offset: int) -> BatchHeader | None:
    """The batch that has the offset; None where none has, or nobody can tell."""
    segment = next((one for one in reversed(segments) if one.base_offset <= offset), None)
    if segment is None:
        return None
    try:
        position = segment.position_of(offset)
        if position is None:
            return None
        header = parse_header(segment.read_bytes(position, HEADER_SIZE))
    except CorruptRecordError:
        # That is found by whoever reads it, and no reason to doubt an index.
        return None
    return header if header.base_offset <= offset else None
