"""The keys of a unit of a count: those of its slices, read one after the other, in bounded memory.

The entry of a key has the number of its slice in place of an ordinal. So `sort_key_entries`, which knows the
newest entry of a key, knows the slice whose record stays.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import Counter
from collections.abc import Iterator

from stratalog.compaction.keys.key_parts import KeyParts
from stratalog.compaction.proof.proof_means import ProofMeans
from stratalog.compaction.proof.record_fates import RecordFates
from stratalog.compaction.proof.slice_keys import OffsetBounds, SliceKeys
from stratalog.pipeline.jobs.count_unit import CountUnit
from stratalog.record.native.kernels import sort_key_entries
from stratalog.record.native.key_entries import KeyEntries
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.key_stream import KeyBlock

_WINDOW_BYTES = 1 << 20


class UnitKeys:
    """The keys of one unit. Not thread-safe: one task uses it."""

    def __init__(self, means: ProofMeans, unit: CountUnit, max_keys: int) -> None:
        """About `max_keys` keys are in memory at once."""
        self.keyless_counts: Counter[int] = Counter()
        """Records without a key, by the numbers of their slices, once all keys are read."""
        self._means = means
        self._unit = unit
        self._max_keys = max_keys
        partition = unit.partition
        self._fates = RecordFates(means.reads, partition.slices, partition.open_transactions)

    def newest(self) -> Iterator[KeyEntries]:
        """The entries of the keys, sorted by hash, no key twice in a piece. The ordinals are the numbers of
        slices. Call it once. Raises StoreCorruptError, CorruptRecordError, and what the store raises."""
        has_versions = self._unit.partition.hashing.has_versions
        pending = KeyEntries(has_versions=has_versions)
        for number, live in enumerate(self._unit.partition.slices, self._unit.first_slice):
            for block in self._blocks(number, live):
                _append(pending, block, number)
                if len(pending) >= self._max_keys:
                    yield sort_key_entries(pending)
                    pending = KeyEntries(has_versions=has_versions)
        if len(pending):
            yield sort_key_entries(pending)

    def _blocks(self, number: int, live: LiveSlice) -> Iterator[KeyBlock]:
        partition = self._unit.partition
        if not live.entry.record_count:
            return
        if not partition.needs_data(live):
            yield from self._means.reads.key_blocks(live, _WINDOW_BYTES)
            return
        parts = KeyParts(
            self._means.make_scratch,
            live.entry.record_count,
            self._means.max_part_entries,
            keeps_repeats=False,
            has_versions=partition.hashing.has_versions,
        )
        with contextlib.closing(parts):
            bounds = OffsetBounds(max(live.base_offset, partition.log_start_offset), live.end_offset)
            keys = SliceKeys(partition.hashing, self._fates, bounds, parts)
            with self._means.reads.data(live) as reader:
                keys.read(reader)
            self.keyless_counts[number] += keys.keyless_count
            for blocks in parts.end():
                yield from blocks()


def _append(entries: KeyEntries, block: KeyBlock, number: int) -> None:
    entries.hash_high.frombytes(block.hash_high)
    entries.hash_low.frombytes(block.hash_low)
    entries.ordinal.extend(array("I", (number,)) * block.entry_count)
    entries.tombstone.extend(block.tombstone)
    if entries.version is not None:
        assert block.version is not None, "the hashing says so"
        entries.version.frombytes(block.version)
