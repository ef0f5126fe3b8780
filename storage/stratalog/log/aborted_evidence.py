"""Holding a transaction index against the log that it is about.

The file has no checksum, and what a damaged entry says is served to readers of committed records. But each
entry names two batches: the transaction's first one and its abort marker. Where these lie in a hole, or in
segments that are gone, there is no evidence, and the entry is believed.

The other way round, each abort marker of a transaction that has batches here has an entry. Our own files keep
that, because the index is durable before another segment follows; of a directory that was copied file by
file, nobody knows, and a file that did not come along would let aborted records be read as committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import CorruptRecordError
from stratalog.log.producer_batch import ProducerBatch, producer_batches
from stratalog.record.end_transaction_marker import ControlType
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header
from stratalog.segment.batch_walk import walk
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.open_files import OpenFiles
from stratalog.segment.transaction_index import AbortedTransaction, TransactionIndex


def is_contradicted(index: TransactionIndex, segments: Sequence[LogSegment]) -> bool:
    """The batches of these segments, of which the last is the index's own, say otherwise. Raises OSError."""
    return any(_is_contradicted(entry, segments) for entry in index)


class AbortedWitness:
    """Holds the segments of a log, oldest first, against their transaction indexes. Used by one thread."""

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._has_transactions = False
        # None once a header was damaged: any producer may have a transaction open then.
        self._opened: set[int] | None = set()

    def misses_entry(self, index: TransactionIndex, segment: LogSegment) -> bool:
        """The batches of the next segment have an abort marker that is not in its index, or may have one
        behind damage. Looks at every header. Raises OSError."""
        known = {entry.last_offset for entry in index}
        try:
            with self._files.use(segment.path) as file:
                for batch in producer_batches(file, walk(file, 0, segment.size_bytes)):
                    if self._aborts(batch) and batch.header.last_offset not in known:
                        return True
        except CorruptRecordError:
            # Whoever reads the damage is told of it; what lies behind was not looked at.
            self._opened = None
            return self._has_transactions and not known
        return False

    def _aborts(self, batch: ProducerBatch) -> bool:
        """The batch ends a transaction that has others here, and aborts it."""
        header, marker = batch.header, batch.marker
        if not batch.has_producer:
            return False
        if marker is not None:
            was_open = self._opened is None or header.producer_id in self._opened
            if self._opened is not None:
                self._opened.discard(header.producer_id)
            return was_open and marker.control_type is ControlType.ABORT
        if header.is_transactional and not header.is_control:
            self._has_transactions = True
            if self._opened is not None:
                self._opened.add(header.producer_id)
        return False


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
