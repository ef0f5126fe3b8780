"""Finds keys that have two records below `compacted_upto` of a partition, in whatever slices they lie.

    slice:    first live | ... | ends at or below compacted_upto |  reaches beyond it
    keys of:  <---------------- its key stream ---------------->    its data, up to there

A key stream has one entry for each key of its slice. Where these are as many as its records, each record has
its own, and the stream says all that the data would say. The keys of any other slice are hashed from its
data. All are merged by ranges of the hash. So memory is one or two windows of each slice's keys, and one part
of those of the slice that is being hashed.

A gap makes no difference: `compacted_upto` ends before the first record behind a gap as long as slices below
it are live, so all records below `compacted_upto` belong together.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.key_parts import KeyParts
from stratalog.compaction.proof.key_ranges import key_ranges, merged
from stratalog.compaction.proof.proof_means import ProofMeans
from stratalog.compaction.proof.record_fates import RecordFates
from stratalog.compaction.proof.slice_keys import OffsetBounds, SliceKeys, offsets_of
from stratalog.record.native.kernels import KeyEntries
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.key_stream import KeyBlock, KeyHashing

MAX_PAIR_COUNT = 100
"""Pairs of records of one partition that are named; all are counted."""
_WINDOWS_BYTES = 16 << 20
"""The windows of all slices together, unless that makes them too small."""
_LEAST_WINDOW_BYTES = 128 << 10
_MOST_WINDOW_BYTES = 1 << 20


class PlacedRecord(NamedTuple):
    """A record in an object."""

    object_name: str
    offset: int


class RepeatedKey(NamedTuple):
    """Two records of one key, with no other one of it between them."""

    older: PlacedRecord
    later: PlacedRecord


class FoundKeys(NamedTuple):
    """The keys of a partition below `compacted_upto`."""

    slice_count: int
    """Slices with records there."""
    hashed_slice_count: int
    """Those whose keys were hashed from their data."""
    key_count: int
    repeated_count: int
    """Records behind which another one of their key lies."""
    repeated: tuple[RepeatedKey, ...]
    """The first of them, in the order of their hashes."""


class _Place(NamedTuple):
    """A record by the number of its slice, and its own there."""

    slice_number: int
    ordinal: int


_Pair = tuple[_Place, _Place]


def find_keys(
    means: ProofMeans, hashing: KeyHashing, fates: RecordFates, partition: TieredPartition
) -> FoundKeys:
    """Count the keys of a partition below `compacted_upto`, and find those that are there twice. Raises
    StoreCorruptError, CorruptRecordError, and what the store raises."""
    upto = partition.compacted_upto
    below = itertools.takewhile(lambda live: live.base_offset < upto, partition.slices_from(0))
    slices = [live for live in below if live.gap is None and live.entry.record_count > 0]
    bounds = OffsetBounds(partition.log_start_offset, upto)
    search = _Search(means, hashing, fates, bounds, slices)
    found = search.find(trusts_clipped=True)
    if found.repeated_count and search.has_clipped:
        # The key stream of a clipped slice has records, too, that are not readable.
        found = search.find(trusts_clipped=False)
    return found


class _Search:
    """A search in the slices of one partition. Immutable."""

    def __init__(
        self,
        means: ProofMeans,
        hashing: KeyHashing,
        fates: RecordFates,
        bounds: OffsetBounds,
        slices: Sequence[LiveSlice],
    ) -> None:
        self._means = means
        self._hashing = hashing
        self._fates = fates
        self._bounds = bounds
        self._slices = slices
        share_bytes = _WINDOWS_BYTES // max(1, len(slices))
        self._window_bytes = max(_LEAST_WINDOW_BYTES, min(_MOST_WINDOW_BYTES, share_bytes))

    @property
    def has_clipped(self) -> bool:
        """Whether some slices have records below what is readable of them."""
        return any(map(self._is_clipped, self._slices))

    def find(self, *, trusts_clipped: bool) -> FoundKeys:
        """Merge the keys of all slices: those of clipped ones by their key streams only if these are
        trusted."""
        entry_count = key_count = hashed_count = 0
        pairs: list[_Pair] = []
        with contextlib.ExitStack() as closing:
            cursors: list[KeyCursor] = []
            slice_numbers: list[int] = []
            for number, live in enumerate(self._slices):
                if self._has_all(live) and (trusts_clipped or not self._is_clipped(live)):
                    sources = [self._means.reads.key_blocks(live, self._window_bytes)]
                    entry_count += live.entry.record_count - live.entry.marker_count
                else:
                    hashed_count += 1
                    sources, hashed_entry_count = self._hashed(live, closing)
                    entry_count += hashed_entry_count
                cursors += [KeyCursor(blocks, bytearray()) for blocks in sources]
                slice_numbers += [number] * len(sources)
            for taken in key_ranges(self._hashing, cursors):
                found_count = len(merged(self._hashing, taken))
                key_count += found_count
                if found_count < sum(map(len, taken)) and len(pairs) < MAX_PAIR_COUNT:
                    pairs += _pairs(taken, slice_numbers)
        return FoundKeys(
            slice_count=len(self._slices),
            hashed_slice_count=hashed_count,
            key_count=key_count,
            repeated_count=entry_count - key_count,
            repeated=self._placed(pairs[:MAX_PAIR_COUNT]),
        )

    def _has_all(self, live: LiveSlice) -> bool:
        """Whether the key stream has an entry for each record of the slice that counts, and no record is
        above the bounds."""
        entry = live.entry
        stream = entry.key_stream
        return (
            stream is not None
            and self._hashing.made(stream)
            and stream.entry_count == entry.record_count - entry.marker_count
            and live.end_offset <= self._bounds.end_offset
        )

    def _is_clipped(self, live: LiveSlice) -> bool:
        return self._readable(live).first_offset > live.entry.base_offset

    def _readable(self, live: LiveSlice) -> OffsetBounds:
        first_offset = max(live.base_offset, self._bounds.first_offset)
        return OffsetBounds(first_offset, min(live.end_offset, self._bounds.end_offset))

    def _hashed(self, live: LiveSlice, closing: contextlib.ExitStack) -> tuple[list[Iterator[KeyBlock]], int]:
        """The sorted parts of the keys of a slice, and the number of its records that have one."""
        means = self._means
        parts = KeyParts(
            means.make_scratch,
            live.entry.record_count,
            means.max_part_entries,
            keeps_repeats=True,
            has_versions=self._hashing.has_versions,
        )
        closing.callback(parts.close)
        keys = SliceKeys(self._hashing, self._fates, self._readable(live), parts)
        with means.reads.data(live) as reader:
            keys.read(reader)
        return [blocks() for blocks in parts.end()], parts.entry_count

    def _placed(self, pairs: Sequence[_Pair]) -> tuple[RepeatedKey, ...]:
        """The pairs with the offsets of their records, for which their slices are read again."""
        wanted: dict[int, set[int]] = defaultdict(set)
        for place in itertools.chain.from_iterable(pairs):
            wanted[place.slice_number].add(place.ordinal)
        offsets: dict[_Place, int] = {}
        for number, ordinals in sorted(wanted.items()):
            with self._means.reads.data(self._slices[number]) as reader:
                for ordinal, offset in offsets_of(reader, ordinals).items():
                    offsets[_Place(number, ordinal)] = offset

        def placed(place: _Place) -> PlacedRecord:
            return PlacedRecord(self._slices[place.slice_number].object_name, offsets[place])

        return tuple(RepeatedKey(placed(older), placed(later)) for older, later in pairs)


def _pairs(taken: Sequence[KeyEntries], slice_numbers: Sequence[int]) -> list[_Pair]:
    """Records of one key, each with the next one, in the order of their hashes."""
    places: dict[tuple[int, int], list[_Place]] = defaultdict(list)
    for number, entries in zip(slice_numbers, taken, strict=True):
        for high, low, ordinal in zip(entries.hash_high, entries.hash_low, entries.ordinal, strict=True):
            places[high, low].append(_Place(number, ordinal))
    return [pair for _, found in sorted(places.items()) for pair in itertools.pairwise(sorted(found))]
