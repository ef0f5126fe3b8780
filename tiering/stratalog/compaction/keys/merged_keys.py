"""Makes the key stream of an output slice from those of its inputs, in order and in bounded memory.

Hashes stay what they are, so the inputs' sorted entries are merged; a record that stays gets the ordinal that
counts the records that stay before it, by the bits of its slice. Windows of all inputs are taken in rounds
(`key_rounds`). Of equal hashes, which carried slices may have, the newest one's counts, or that with
the highest version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.base.filesystem import Buffer
from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.key_rounds import key_rounds
from stratalog.record.native.kernels import (
    KeyEntries,
    RankedSurvivors,
    sort_key_entries,
    translate_key_stream,
    translate_keys,
)
from stratalog.remote.objects.key_stream import KeyBlock, KeyHashing


class KeySource(NamedTuple):
    """The keys of one input slice, which phase 1 has proved, or that the reader proves."""

    survivors: bytearray | None
    """A bit for each record that stays; None if all do."""
    record_count: int
    whole_stream: Buffer | None
    """The key stream, if those of all sources are small and without versions; proved."""
    parts: Sequence[Callable[[], Iterator[KeyBlock]]]
    """Otherwise each opens a sorted part of the keys; none for a slice without records."""


def merged_keys(hashing: KeyHashing, sources: Sequence[KeySource], record_count: int) -> Iterator[KeyEntries]:
    """The sorted entries of the slice that the sources go to, from the oldest on. All were made by `hashing`.
    It has `record_count` records. Raises StoreCorruptError if that is another number than stays of the
    sources, and what reading the parts raises."""
    ranked: list[RankedSurvivors] = []
    rank = 0
    for source in sources:
        if source.survivors is None:
            kept, rank = RankedSurvivors.of_all(source.record_count, rank)
        else:
            kept, rank = RankedSurvivors.of(source.survivors, rank)
        ranked.append(kept)
    if rank != record_count:
        raise StoreCorruptError(
            "the records of an output are not those that stay of its inputs; keep the objects and report it",
            record_count=record_count,
            expected_count=rank,
        )
    is_in_parts = any(source.parts for source in sources)
    assert not is_in_parts or all(source.whole_stream is None for source in sources), "one kind of sources"
    if not is_in_parts:
        entries = hashing.new_entries()
        for source, kept in zip(sources, ranked, strict=True):
            if source.whole_stream is not None:
                translate_key_stream(source.whole_stream, kept, entries)
        yield sort_key_entries(entries)
    else:
        yield from _merged(hashing, sources, ranked)


def _merged(
    hashing: KeyHashing, sources: Sequence[KeySource], ranked: Sequence[RankedSurvivors]
) -> Iterator[KeyEntries]:
    of_parts = [
        (open_part, kept) for source, kept in zip(sources, ranked, strict=True) for open_part in source.parts
    ]
    cursors = [KeyCursor(open_part(), bytearray()) for open_part, _ in of_parts]
    for numbers, limit in key_rounds(cursors):
        entries = hashing.new_entries()
        for number in numbers:
            cursor, (_, kept) = cursors[number], of_parts[number]
            cursor.consume(translate_keys(cursor.window, limit, kept, entries))
        yield sort_key_entries(entries)
