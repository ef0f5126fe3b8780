"""Names of a segment's files, as Kafka gives them, but for one.

A segment's name is its base offset in twenty digits, so that names sort as offsets do::

    00000000000000147001.log              record batches
    00000000000000147001.index            sparse offset index
    00000000000000147001.timeindex        sparse time index
    00000000000000147001.txnindex         aborted transactions, where there are any
    00000000000000147001.seal             what proves the three indexes; our own, a broker passes it over
    00000000000000147001.log.deleted      dropped, to be unlinked
    00000000000000147001.log.cleaned      being written, to replace other segments
    00000000000000147001.log.swap         written and durable: it replaces what it overlaps

Twenty digits have room for more than an offset can be. A name with more is no segment's: whoever lists a
directory passes such a file over, as any that is of no log, and leaves it where it is.
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
    """Path of the file of that kind of the segment that begins at `base_offset`."""
    assert base_offset >= 0
    return f"{directory}/{base_offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_name_offset(digits: str) -> int | None:
    """The offset that these digits of a name are; None where no offset is so high."""
    offset = int(digits)
    return offset if offset <= MAX_OFFSET else None


def parse_segment_name(name: str) -> tuple[int, str] | None:
    """Base offset and suffix of a live segment file; None where the name is of any other kind."""
    digits, suffix = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:]
    if suffix not in SEGMENT_SUFFIXES or not (digits.isdigit() and digits.isascii()):
        return None
    base_offset = parse_name_offset(digits)
    return None if base_offset is None else (base_offset, suffix)
