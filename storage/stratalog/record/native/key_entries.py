"""Keys of records as hashes, in columns: the contents of key streams.

A key's hash is SipHash-2-4 with a 128-bit result and a secret key: `hash_high` is the number in the first
eight bytes of the result, `hash_low` that in the last eight, both little-endian. Hashes are ordered as the
pair (high, low) of unsigned numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from stratalog.base.filesystem import Buffer

HashPair = tuple[int, int]
"""(hash_high, hash_low)"""

KEYS_NOT_SORTED = "is not sorted inside a block"
ORDINAL_TOO_HIGH = "refers to a record behind the end of its slice"
TOMBSTONE_NOT_A_BIT = "has a tombstone bit that is neither 0 nor 1"
VERSIONS_DIFFER = "of two key streams one has versions and the other has none; report it"

Column: TypeAlias = "Buffer | array[int]"
"""Consecutive fixed-width numbers, in any object that exports its bytes."""


class KeyEntries:
    """One entry for each record with a key. Not thread-safe: guarded by its user.

    The columns are numbers in this machine's byte order.
    """

    __slots__ = ("hash_high", "hash_low", "ordinal", "tombstone", "version")

    def __init__(self, *, has_versions: bool = False) -> None:
        self.hash_high: array[int] = array("Q")
        self.hash_low: array[int] = array("Q")
        self.ordinal: array[int] = array("I")
        """Index of the record in the slice's bytes; every record counts, with or without a key."""
        self.tombstone = bytearray()
        """1 for a record without a value, else 0."""
        self.version: array[int] | None = array("q") if has_versions else None
        """The versions of the records (``keep_rules``); None if the last record of a key stays."""
        assert self.hash_high.itemsize == 8
        assert self.ordinal.itemsize == 4

    def __len__(self) -> int:
        return len(self.ordinal)

    def extend(self, others: KeyEntries) -> None:
        """Append all entries of another object."""
        self.hash_high.extend(others.hash_high)
        self.hash_low.extend(others.hash_low)
        self.ordinal.extend(others.ordinal)
        self.tombstone.extend(others.tombstone)
        assert (self.version is None) == (others.version is None)
        if self.version is not None and others.version is not None:
            self.version.extend(others.version)

    def of_ordinals(self, ordinals: Container[int]) -> KeyEntries:
        """The entries with these ordinals, in the same order."""
        found = KeyEntries(has_versions=self.version is not None)
        for index, ordinal in enumerate(self.ordinal):
            if ordinal in ordinals:
                found.hash_high.append(self.hash_high[index])
                found.hash_low.append(self.hash_low[index])
                found.ordinal.append(ordinal)
                found.tombstone.append(self.tombstone[index])
                if self.version is not None and found.version is not None:
                    found.version.append(self.version[index])
        return found

    def check(self) -> None:
        """Prove that the columns have one length, and that tombstones are 0 or 1."""
        count = len(self.ordinal)
        assert len(self.hash_high) == len(self.hash_low) == count == len(self.tombstone), "lengths differ"
        assert self.version is None or len(self.version) == count, "lengths differ"
        assert max(self.tombstone, default=0) <= 1


@dataclass(frozen=True, slots=True)
class KeyWindow:
    """Entries [start, start + count) of columns that are sorted by hash, each hash once, little-endian."""

    hash_high: Column
    hash_low: Column
    ordinal: Column
    tombstone: Column
    start: int
    count: int
    version: Column | None = None


RANK_BITS = 512
"""A number of ranks speaks of so many bits."""


class RankedSurvivors(NamedTuple):
    """The records of a slice that stay, and their ordinals in the slice that they go to."""

    survivors: Buffer | None
    """A bit for each record; None if all stay."""
    ranks: array[int]
    """For each `RANK_BITS` bits, how many are set before them; empty if all records stay."""
    first_rank: int
    """The ordinal of the first record that stays."""

    @staticmethod
    def of(survivors: Buffer, first_rank: int) -> tuple[RankedSurvivors, int]:
        """The survivors of a slice, and the ordinal of the first record behind them."""
        ranks, count, width = array("I"), 0, RANK_BITS // 8
        for position in range(0, len(survivors), width):
            ranks.append(count)
            count += int.from_bytes(survivors[position : position + width], "little").bit_count()
        return RankedSurvivors(survivors, ranks, first_rank), first_rank + count

    @staticmethod
    def of_all(record_count: int, first_rank: int) -> tuple[RankedSurvivors, int]:
        """The same for a slice that loses no record."""
        return RankedSurvivors(None, array("I"), first_rank), first_rank + record_count
