"""Deeds of the producers of one log, noted by the values of their records, which no two records share.

Whatever is read from the log later is recognised by these, so what the log must know of its producers follows
from a plain list of records: which sequence number came last, which transactions are open, and which were
aborted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stratalog.record.record import Record


class BatchNote(NamedTuple):
    """A producer's batch, or the marker that ended its transaction."""

    producer_id: int
    request: bytes = b""
    """The batch as it was sent; empty for a marker."""
    last_sequence: int = -1
    record_count: int = 1
    is_transactional: bool = False
    is_abort: bool = False

    @property
    def is_marker(self) -> bool:
        return not self.request


class ProducerView(NamedTuple):
    """The facts that follow from a list of records."""

    newest: dict[int, tuple[BatchNote, int]]
    """The last batch and its last offset of each producer."""
    open_transactions: dict[int, int]
    """The first offset of the open transaction of each producer."""
    ended: list[tuple[int, int, int, bool]]
    """Producer, first offset, marker's offset, and whether it was aborted."""

    def last_stable_offset(self, log_start_offset: int, high_watermark: int) -> int:
        """A transaction counts as ended once its marker is below the high watermark."""
        unstable = list(self.open_transactions.values())
        unstable += [first for _, first, last, _ in self.ended if last >= high_watermark]
        return min(high_watermark, max(log_start_offset, min(unstable, default=high_watermark)))

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        return any(
            is_aborted and producer == producer_id and first <= offset <= last
            for producer, first, last, is_aborted in self.ended
        )


class ProducerLedger:
    """Notes of what was sent, not of what is stored: they are never taken back. Used by one thread."""

    def __init__(self) -> None:
        self.notes: dict[bytes | None, BatchNote] = {}
        """By the value of each of their records."""

    def view(self, records: Iterable[Record]) -> ProducerView:
        """The facts that follow from these records, in the order of their offsets."""
        view = ProducerView({}, {}, [])
        for record in records:
            note = self.notes.get(record.value)
            if note is None:
                continue
            if note.is_marker:
                first_offset = view.open_transactions.pop(note.producer_id, None)
                if first_offset is not None:
                    view.ended.append((note.producer_id, first_offset, record.offset, note.is_abort))
                continue
            view.newest[note.producer_id] = note, record.offset
            if note.is_transactional:
                view.open_transactions.setdefault(note.producer_id, record.offset)
        return view

    def committed(self, records: Iterable[Record], end_offset: int) -> list[Record]:
        """Those of the records that readers of committed records get."""
        listed = list(records)
        view = self.view(listed)
        found: list[Record] = []
        for record in listed:
            note = self.notes.get(record.value)
            is_hidden = note is not None and (
                note.is_marker or (note.is_transactional and view.is_aborted(note.producer_id, record.offset))
            )
            if record.offset < end_offset and not is_hidden:
                found.append(record)
        return found
