"""The entries of sorted keys, range by range of the hash, as a proof compares them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.key_rounds import key_rounds
from stratalog.record.native.kernels import KeyEntries, RankedSurvivors, sort_key_entries, translate_keys

_AS_THEY_ARE = RankedSurvivors(None, array("I"), 0)
"""Ordinals stay those of their source."""


def key_ranges(cursors: Sequence[KeyCursor]) -> Iterator[list[KeyEntries]]:
    """For each range of hashes the entries of each cursor there, in the order of the cursors. Ranges ascend.
    Raises what reading the blocks raises."""
    for numbers, limit in key_rounds(cursors):
        taken = [KeyEntries() for _ in cursors]
        for number in numbers:
            cursor = cursors[number]
            cursor.consume(translate_keys(cursor.window, limit, _AS_THEY_ARE, taken[number]))
        yield taken


def merged(sources: Iterable[KeyEntries]) -> KeyEntries:
    """The entries of all sources, sorted; of equal hashes only the one with the highest ordinal."""
    together = KeyEntries()
    for entries in sources:
        together.extend(entries)
    return sort_key_entries(together)
