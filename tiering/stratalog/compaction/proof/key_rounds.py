"""Merges sorted keys of any number of sources by ranges of the hash, which docs/compaction.md calls phase 1.

A round goes up to the smallest hash at which a block of a source ends: then all entries up to there are in
view. So memory is one or two blocks for each source, whatever the number of keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.record.native.kernels import KeyEntries, RankedSurvivors, sort_key_entries, translate_keys

_AS_THEY_ARE = RankedSurvivors(None, array("I"), 0)
"""Ordinals stay those of their source."""


def key_rounds(cursors: Sequence[KeyCursor]) -> Iterator[list[KeyEntries]]:
    """For each range of hashes the entries of each cursor there, in the order of the cursors. Ranges ascend.
    Raises what reading the blocks raises."""
    while not all(cursor.is_at_end for cursor in cursors):
        bounds = [cursor.bound for cursor in cursors if not cursor.is_at_end]
        limit = min((bound for bound in bounds if bound is not None), default=None)
        taken: list[KeyEntries] = []
        for cursor in cursors:
            entries = KeyEntries()
            if not cursor.is_at_end:
                cursor.consume(translate_keys(cursor.window, limit, _AS_THEY_ARE, entries))
            taken.append(entries)
        # The window that sets the limit is used up, so every round gets on.
        assert any(map(len, taken))
        yield taken


def merged(sources: Iterable[KeyEntries]) -> KeyEntries:
    """The entries of all sources, sorted; of equal hashes only the one with the highest ordinal."""
    together = KeyEntries()
    for entries in sources:
        together.extend(entries)
    return sort_key_entries(together)
