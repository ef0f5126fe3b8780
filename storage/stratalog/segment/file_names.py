"""Names of a segment's files. All but the seal are Kafka's.

A segment's name is its base offset in twenty digits, so that names sort as offsets do::

    00000000000000147001.log              record batches
    00000000000000147001.index            sparse offset index
    00000000000000147001.timeindex        sparse time index
    00000000000000147001.txnindex         aborted transactions, if there are any
    00000000000000147001.seal             proves the three indexes; ours, ignored by a broker
    00000000000000147001.log.deleted      dropped, to be unlinked
    00000000000000147001.log.cleaned      being written, to replace other segments
    00000000000000147001.log.swap         written and durable: it replaces the segments that it overlaps

Twenty digits can hold more than the highest offset. A name with a higher number is no segment's: programs
that list a directory ignore such a file, like any foreign file, and leave it where it is.
"""

from __future__ import annotations

from stratalog.record.header import MAX_OFFSET

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SEAL_SUFFIX = ".seal"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
INDEX_SUFFIXES = (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    SEAL_SUFFIX,
)
SEGMENT_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)

_OFFSET_DIGITS = len(str(MAX_OFFSET)) + 1
assert _OFFSET_DIGITS == 20


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """The path of the segment's file with this suffix."""
    assert base_offset >= 0
    return f"{directory}/{base_offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_name_offset(digits: str) -> int | None:
    """The offset that these digits of a name give; None if it is above the highest offset."""
    offset = int(digits)
    return offset if offset <= MAX_OFFSET else None


def parse_segment_name(name: str) -> tuple[int, str] | None:
    """Base offset and suffix of a live segment file; None for any other name."""
    digits, suffix = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:]
    if suffix not in SEGMENT_SUFFIXES or not (digits.isdigit() and digits.isascii()):
        return None
    base_offset = parse_name_offset(digits)
    return None if base_offset is None else (base_offset, suffix)
