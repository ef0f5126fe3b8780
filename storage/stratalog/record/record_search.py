"""Finds a record of a batch by halves, for an error that names it.

The kernels summarise a section but do not give the place of a record in it. A look at every record in Python
would take a minute for a batch that was made of very many tiny ones for that purpose. So the search halves a
section as long as its summary says that the record may be in it, which costs the kernels about twice the
section, and decodes only a short one.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.filesystem import Buffer
from stratalog.record.native import kernels
from stratalog.record.record import Record
from stratalog.record.records_summary import RecordsSummary

_DECODED_COUNT = 1024
"""A section of at most so many records is decoded, not halved."""


def first_record(
    payload: Buffer,
    records_count: int,
    base_timestamp: int,
    *,
    may_match: Callable[[RecordsSummary], bool],
    matches: Callable[[Record], bool],
) -> Record | None:
    """The first record that `matches`; its offset is its index in the batch.

    `payload` is a records section that `verify_records` has proved, with an offset delta for every index.
    `may_match` must be false for the summary of records none of which matches; timestamp deltas in it are
    relative to `base_timestamp`. Memory is bounded by a few times the section. The work of the kernels is
    bounded so too, if `may_match` is true only for records one of which matches. Thread-safe.
    """
    all_bits = b"\xff" * (records_count // 8 + 1)

    def search(section: Buffer, first: int, end: int) -> Record | None:
        if not may_match(kernels.scan_records(section, end - first, end - 1)):
            return None
        if end - first <= _DECODED_COUNT:
            records = kernels.decode_records(section, end - first, 0, base_timestamp, None)
            return next(filter(matches, records), None)
        middle = (first + end) // 2
        head = kernels.copy_records(
            section,
            end - first,
            all_bits,
            first,
            first_offset_delta=first,
            end_offset_delta=middle,
            drop_tombstones=False,
            timestamp_shift=0,
        ).payload
        # Records are copied unchanged, so the tail begins where the head's size says.
        return search(head, first, middle) or search(memoryview(section)[len(head) :], middle, end)

    return search(payload, 0, records_count)
