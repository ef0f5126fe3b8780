"""Phase 1: finds the records of a partition that are the newest of their keys (or have the highest version),
as one bit a record.
docs/compaction.md explains how. Markers are no records here: phase 2 sets the bits of those that stay.

A slice without a usable key stream (none, or made in another way) is hashed from its data, and its
bytes are kept for phase 2 (`SurvivorPlan.copies`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.input_streams import InputStreams
from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.key_parts import KeyParts
from stratalog.compaction.keys.key_rounds import key_rounds
from stratalog.compaction.keys.merged_keys import KeySource
from stratalog.compaction.keys.slice_hasher import SliceHasher
from stratalog.compaction.keys.survivor_bits import bitmap_bytes, new_bitmap
from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.compaction.run_transactions import RunTransactions
from stratalog.record.native.kernels import merge_windows
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.key_stream import KeyBlock
from stratalog.remote.objects.spool import Spool


class SurvivorPlan:
    """The survivors of one run. Not thread-safe: guarded by the job; a context manager that gives its scratch
    back.
    """

    def __init__(self, transactions: RunTransactions | None = None) -> None:
        self._transactions = transactions
        self.survivors: list[bytearray] = []
        """A bitmap for each slice of the run."""
        self.copies: dict[int, Spool] = {}
        """By index of the slice: the bytes of those that had to be read in this phase already."""
        self._parts: list[Sequence[Callable[[], Iterator[KeyBlock]]]] = []
        """For each slice the sorted parts of its keys; none if all key streams are small."""
        self._closing = contextlib.ExitStack()

    @property
    def transactions(self) -> RunTransactions:
        """The transactions of the whole run."""
        if self._transactions is None:
            self._transactions = RunTransactions()
        return self._transactions

    def __enter__(self) -> SurvivorPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @staticmethod
    def decided(run: PartitionRun, survivors: bytearray, inputs: Mapping[str, InputStreams]) -> SurvivorPlan:
        """The plan of a run whose small key streams were merged with one call: `survivors` has a bit for each
        record, and those of each slice begin with a byte. Raises as `index_of`."""
        plan = SurvivorPlan(RunTransactions.of(run, inputs) if run.slices.are_transactional else None)
        position = 0
        for record_count in run.slices.column("record_count"):
            size = bitmap_bytes(record_count)
            plan.survivors.append(survivors[position : position + size])
            position += size
        return plan

    @staticmethod
    def of(
        run: PartitionRun,
        inputs: Mapping[str, InputStreams],
        make_scratch: Callable[[], Spool],
        settings: CompactionSettings,
    ) -> SurvivorPlan:
        """Read the keys of a run block by block, and decide: the long way, for a run that `small_runs`
        does not take. Raises as `undecided`.
        """
        plan = SurvivorPlan.undecided(run, inputs, make_scratch, settings)
        with contextlib.ExitStack() as on_error:
            on_error.callback(plan._closing.close)
            merge_keys(
                [
                    KeyCursor(open_part(), bitmap)
                    for parts, bitmap in zip(plan._parts, plan.survivors, strict=True)
                    for open_part in parts
                ]
            )
            on_error.pop_all()
        return plan

    @staticmethod
    def undecided(
        run: PartitionRun,
        inputs: Mapping[str, InputStreams],
        make_scratch: Callable[[], Spool],
        settings: CompactionSettings,
    ) -> SurvivorPlan:
        """The keys of a run, not merged yet: only the bits of records that no key decides about are set.
        Raises StoreCorruptError, CorruptRecordError and what the store raises."""
        plan = SurvivorPlan(RunTransactions.of(run, inputs))
        with contextlib.ExitStack() as on_error:
            on_error.callback(plan._closing.close)
            for index, live in enumerate(run.slices):
                streams = inputs[live.object_name]
                entry = live.entry
                plan.survivors.append(new_bitmap(entry.record_count))
                parts: Sequence[Callable[[], Iterator[KeyBlock]]] = ()
                if entry.key_stream is not None and run.has_keys(live):
                    parts = (partial(streams.key_blocks, entry),)
                elif not run.has_keys(live):
                    copy = plan.copies[index] = make_scratch()
                    plan._closing.callback(copy.close)
                    hasher = plan._hasher(live, run, make_scratch, settings.hash_part_entries)
                    parts = hasher.hash_slice(streams.slice_reader(entry), copy, plan.survivors[index])
                plan._parts.append(parts)
            on_error.pop_all()
        return plan

    def parts(self, index: int) -> Sequence[Callable[[], Iterator[KeyBlock]]]:
        """The sorted parts of the keys of a slice, oldest first, of a plan that was not `decided` before."""
        return self._parts[index]

    def decide(self, survivors: Iterable[bytes]) -> None:
        """Take the survivors of each slice, which were found elsewhere."""
        decided = list(map(bytearray, survivors))
        assert list(map(len, decided)) == list(map(len, self.survivors)), "a bitmap for each slice"
        self.survivors = decided

    def read_indexes(self, slices: RunSlices) -> Sequence[int]:
        """The indexes of the run's slices whose data are read: by its proved key stream a record survives, or
        there are markers."""
        markers, aborted = slices.column("marker_count"), slices.column("has_aborted")
        return [
            index
            for index, reasons in enumerate(zip(map(any, self.survivors), markers, aborted, strict=True))
            if any(reasons)
        ]

    def key_sources(self, slices: Sequence[LiveSlice], inputs: Mapping[str, InputStreams]) -> list[KeySource]:
        """The keys of the slices of which records stay. Call it after phase 2, which clears the bits of
        records that it drops."""
        sources: list[KeySource] = []
        for index, live in enumerate(slices):
            if not any(self.survivors[index]):
                continue
            parts = self._parts[index] if self._parts else ()
            stream = live.entry.key_stream
            whole = None
            if not self._parts and stream is not None:
                whole = inputs[live.object_name].proved_key_stream(stream)
            sources.append(KeySource(self.survivors[index], live.entry.record_count, whole, parts))
        return sources

    def part(self, first: int, end: int) -> SurvivorPlan:
        """The plan of the slices [first, end) alone. It lasts as long as the whole plan."""
        if end - first == len(self.survivors):
            return self
        part = SurvivorPlan(self.transactions)
        part.survivors = self.survivors[first:end]
        part._parts = self._parts[first:end]
        part.copies = {index - first: copy for index, copy in self.copies.items() if first <= index < end}
        return part

    def _hasher(
        self, live: LiveSlice, run: PartitionRun, make_scratch: Callable[[], Spool], max_part_entries: int
    ) -> SliceHasher:
        keys = KeyParts(
            make_scratch,
            live.entry.record_count,
            max_part_entries,
            keeps_repeats=False,
            has_versions=run.topic.hashing.has_versions,
        )
        self._closing.callback(keys.close)
        return SliceHasher(run.topic.hashing, self.transactions, keys, run.first_offset_of(live))


def merge_keys(cursors: Sequence[KeyCursor]) -> None:
    """Set the bit of the newest entry of each hash, or of that with the highest version. `cursors`: from the
    oldest to the newest."""
    for numbers, limit in key_rounds(cursors):
        active = [cursors[number] for number in numbers]
        consumed = merge_windows([one.window for one in active], limit, [one.survivors for one in active])
        for cursor, count in zip(active, consumed, strict=True):
            cursor.consume(count)
