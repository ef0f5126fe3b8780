"""One bit a record: whether it is the last of its key in the job.

The bit of the record with ordinal `n` is bit ``n % 8`` of byte ``n // 8``. Ordinals count every record in a
slice's bytes, so a bitmap belongs to one slice as it lies in its object.
"""

from __future__ import annotations


def bitmap_bytes(record_count: int) -> int:
    """The size of the bitmap of so many records."""
    return (record_count + 7) // 8


def new_bitmap(record_count: int, *, survives: bool = False) -> bytearray:
    """A bitmap for `record_count` records, all of which survive, or none does yet."""
    if not survives:
        return bytearray(bitmap_bytes(record_count))
    return bytearray(((1 << record_count) - 1).to_bytes(bitmap_bytes(record_count), "little"))


def set_bit(bitmap: bytearray, ordinal: int) -> None:
    """Let one record survive."""
    bitmap[ordinal >> 3] |= 1 << (ordinal & 7)


def set_bits(bitmap: bytearray, first_ordinal: int, end_ordinal: int) -> None:
    """Let the records of [first_ordinal, end_ordinal) survive."""
    for ordinal in range(first_ordinal, end_ordinal):
        set_bit(bitmap, ordinal)


def clear_bits(bitmap: bytearray, first_ordinal: int, end_ordinal: int) -> None:
    """Let the records of [first_ordinal, end_ordinal) go."""
    for ordinal in range(first_ordinal, end_ordinal):
        bitmap[ordinal >> 3] &= ~(1 << (ordinal & 7)) & 0xFF


def survivor_count(bitmap: bytes | bytearray) -> int:
    """The number of records that survive."""
    return int.from_bytes(bitmap, "little").bit_count()


def bits_between(bitmap: bytearray, first_ordinal: int, end_ordinal: int) -> int:
    """The bits of [first_ordinal, end_ordinal) as one number, the first record's lowest."""
    assert 0 <= first_ordinal <= end_ordinal <= len(bitmap) * 8
    number = int.from_bytes(bitmap[first_ordinal >> 3 : (end_ordinal + 7) >> 3], "little")
    return (number >> (first_ordinal & 7)) & ((1 << (end_ordinal - first_ordinal)) - 1)
