"""Goes through the sorted keys of any number of sources by ranges of the hash.

A round goes up to the smallest hash at which a block of a source ends: then all entries up to there are in
view. So memory is one or two blocks for each source, whatever the number of keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.record.native.key_entries import HashPair


def key_rounds(cursors: Sequence[KeyCursor]) -> Iterator[tuple[list[int], HashPair | None]]:
    """For each round the numbers of the cursors that are not at their end, in order, and the highest hash
    that belongs to it; None for the last round, which takes all that is left. The caller consumes the entries
    up to there before the next round. Raises what reading the blocks raises."""
    while active := [number for number, cursor in enumerate(cursors) if not cursor.is_at_end]:
        consumed_count = sum(cursors[number].consumed_count for number in active)
        bounds = [cursors[number].bound for number in active]
        yield active, min((bound for bound in bounds if bound is not None), default=None)
        # The window that sets the limit is used up, so every round gets on.
        assert sum(cursors[number].consumed_count for number in active) > consumed_count
