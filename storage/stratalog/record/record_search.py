"""Which record of a batch it was: found by halves, for an error that wants to name it.

The kernels sum up a section but do not say where in it something lies. Looking at every record in Python
would take a minute for a batch of many tiny ones that somebody made for that purpose. So a section is halved
as long as its summary says that the record may be there, which costs the kernels about twice the section, and
only what is short is decoded.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.filesystem import Buffer
from stratalog.record.native import kernels
from stratalog.record.record import Record
from stratalog.record.records_summary import RecordsSummary

_DECODED_COUNT = 1024
"""A section of so many records is decoded rather than halved."""


def first_record(
    payload: Buffer,
    records_count: int,
    base_timestamp: int,
    *,
    may_match: Callable[[RecordsSummary], bool],
    matches: Callable[[Record], bool],
) -> Record | None:
    """The first record that `matches`; its offset is its index in the batch.

    `payload`: a records section that `verify_records` has proved, with an offset delta for every index.
    `may_match` is false for the summary of records of which none matches; timestamp deltas in it are relative
    to `base_timestamp`. Memory is bounded by a few times the section; so is what the kernels walk, where
    `may_match` is true only of records of which one matches. Thread-safe.
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
        # Records are copied as they are, so the size of the head is where the tail begins.
        return search(head, first, middle) or search(memoryview(section)[len(head) :], middle, end)

    return search(payload, 0, records_count)
