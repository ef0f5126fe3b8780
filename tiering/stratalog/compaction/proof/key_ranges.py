"""The entries of sorted keys, range by range of the hash, as a proof compares them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.key_rounds import key_rounds
from stratalog.record.native.kernels import KeyEntries, RankedSurvivors, sort_key_entries, translate_keys
from stratalog.remote.objects.key_stream import KeyHashing

_AS_THEY_ARE = RankedSurvivors(None, array("I"), 0)
"""Ordinals stay those of their source."""


def key_ranges(hashing: KeyHashing, cursors: Sequence[KeyCursor]) -> Iterator[list[KeyEntries]]:
    """For each range of hashes the entries of each cursor there, in the order of the cursors. All were made
    by `hashing`. Ranges ascend. Raises what reading the blocks raises."""
    for numbers, limit in key_rounds(cursors):
        taken = [hashing.new_entries() for _ in cursors]
        for number in numbers:
            cursor = cursors[number]
            cursor.consume(translate_keys(cursor.window, limit, _AS_THEY_ARE, taken[number]))
        yield taken


def merged(hashing: KeyHashing, sources: Iterable[KeyEntries]) -> KeyEntries:
    """The entries of all sources, made by `hashing`, sorted; of equal hashes only the one with the highest
    ordinal, or with the highest version."""
    together = hashing.new_entries()
    for entries in sources:
        together.extend(entries)
    return sort_key_entries(together)
