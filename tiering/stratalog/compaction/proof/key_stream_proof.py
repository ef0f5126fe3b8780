"""Proves that the key stream of a slice is that of its data: one entry for each key of the records that
count, for its last record there, and no record without a key.

The keys are hashed from the data and sorted part by part; then the parts and the key stream are merged side
by side. Memory is one part, and one or two windows.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import NamedTuple

from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.key_parts import KeyParts
from stratalog.compaction.proof.key_ranges import key_ranges, merged
from stratalog.compaction.proof.proof_means import ProofMeans
from stratalog.compaction.proof.record_fates import RecordFates
from stratalog.compaction.proof.slice_keys import OffsetBounds, SliceKeys, offsets_of
from stratalog.record.native.kernels import KeyEntries
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.key_stream import KeyHashing

_WINDOW_BYTES = 1 << 20
_ALL_OFFSETS = OffsetBounds(0, 1 << 63)

LACKS_A_RECORD = "it lacks the last record of a key"
HAS_ANOTHER_RECORD = "it has a record that is not the last of its key"
LACKS_A_KEYLESS = "it stands for a slice that has a record without a key"


class KeyStreamFault(NamedTuple):
    """The first contradiction between a key stream and the data of its slice."""

    offset: int
    """The record's."""
    reason: str


def key_stream_fault(
    means: ProofMeans, hashing: KeyHashing, fates: RecordFates, live: LiveSlice
) -> KeyStreamFault | None:
    """The first contradiction between the key stream and the data of a slice, which has both; None if there
    is none. Raises StoreCorruptError, CorruptRecordError, and what the store raises."""
    parts = KeyParts(
        means.make_scratch,
        live.entry.record_count,
        means.max_part_entries,
        keeps_repeats=False,
        has_versions=hashing.has_versions,
    )
    with contextlib.closing(parts):
        keys = SliceKeys(hashing, fates, _ALL_OFFSETS, parts)
        with means.reads.data(live) as reader:
            keys.read(reader)
        if keys.keyless_count:
            return KeyStreamFault(live.base_offset, LACKS_A_KEYLESS)
        sources = [means.reads.key_blocks(live, _WINDOW_BYTES), *(blocks() for blocks in parts.end())]
        cursors = [KeyCursor(blocks, bytearray()) for blocks in sources]
        for stream, *hashed in key_ranges(hashing, cursors):
            expected = merged(hashing, hashed)
            if _rows_differ(stream, expected):
                return _fault(means, live, stream, expected)
    return None


def _rows_differ(stream: KeyEntries, expected: KeyEntries) -> bool:
    return (stream.hash_high, stream.hash_low, stream.ordinal, stream.tombstone, stream.version) != (
        expected.hash_high,
        expected.hash_low,
        expected.ordinal,
        expected.tombstone,
        expected.version,
    )


def _fault(means: ProofMeans, live: LiveSlice, stream: KeyEntries, expected: KeyEntries) -> KeyStreamFault:
    """The first entry that only one of them has."""
    found, wanted = _rows(stream), _rows(expected)
    only_one = min(found ^ wanted)
    ordinal = only_one[2]
    with means.reads.data(live) as reader:
        offset = offsets_of(reader, (ordinal,))[ordinal]
    return KeyStreamFault(offset, LACKS_A_RECORD if only_one in wanted else HAS_ANOTHER_RECORD)


def _rows(entries: KeyEntries) -> set[tuple[int, int, int, int, int]]:
    versions = itertools.repeat(0, len(entries)) if entries.version is None else entries.version
    columns = (entries.hash_high, entries.hash_low, entries.ordinal, entries.tombstone)
    return set(zip(*columns, versions, strict=True))
