"""Decides and compacts small runs, many of them with one kernel call, where a partition costs more than its
bytes.

The long way (`survivor_plan`, `partition_rewriter`) takes some hundred steps in Python for each partition,
whatever its size. Here consecutive runs are taken together. One call merges the key streams of all of them;
another one takes their slices with survivors, and returns each output slice with its statistics, index and
key stream, the same to the byte. The calls find their numbers in the columns of the runs, and the bytes in
one piece of each input, because the slices of consecutive partitions lie there side by side. A call refuses
each run with anything out of the ordinary, and damaged ones: the long way takes those from the same bytes,
and has the rules and the errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.input_streams import InputStreams
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.slice_table import column_places
from stratalog.compaction.run_end import end_of
from stratalog.compaction.tombstone_rule import TombstoneRule
from stratalog.record.native.batch_filter import CompactedSlices, RunColumns, RunRule
from stratalog.record.native.batch_kernels import compact_runs, decide_runs, run_ranges, run_sums
from stratalog.remote.objects.key_stream import SMALL_STREAM_BYTES
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import PartRef

MAX_BYTES = 1 << 20
"""The most bytes of a kind (data, key streams) of the inputs that a call has in memory. Larger runs cost more
by their bytes than by their steps."""
_MAX_SLICES = 512
"""Slices of the runs of a call, at the most, unless it is one run."""
_KEYS = column_places("key_stream.position", "key_stream.size_bytes", "record_count")
_DATA = column_places("data_position", "data_bytes", "record_count")
_SUMS = column_places("data_bytes", "record_count")
_INDEX = column_places("index.position", "index.size_bytes", "index.crc")
_DECIDED = column_places(
    "has_key_stream",
    "key_stream.position",
    "key_stream.size_bytes",
    "key_stream.entry_count",
    "key_stream.crc",
    "key_stream.hash_key_id",
    "record_count",
)
_COMPACTED = column_places(
    "data_position",
    "data_bytes",
    "data_crc",
    "record_count",
    "end_offset",
    "tombstone_count",
    "codec_mask",
    "key_stream.position",
    "key_stream.size_bytes",
    "key_stream.crc",
)

Ranges = Mapping[str, tuple[int, int]]
"""Bytes [begin, end) of inputs, by their names."""


class DecidedRun(NamedTuple):
    """A small run whose survivors are known. Immutable."""

    survivors: bytearray
    """A bit for each record that stays, as `SmallRun` has them."""
    data_bytes: int
    record_count: int


class SmallRun(NamedTuple):
    """A run, or a part of one, that becomes one slice. Immutable."""

    run: PartitionRun
    survivors: bytearray
    """A bit for each record that stays; those of each slice begin with a byte."""
    record_count: int
    """The records of all slices."""
    rule: TombstoneRule
    place: int
    """The number of the object that gets the slice."""
    goes_on: bool
    """Whether the slice needs an object behind the one before."""
    is_last: bool
    """Whether it is the last part of its run."""


class CompactedRuns(NamedTuple):
    """Consecutive runs, or parts of some, and the slices that replace them. Immutable."""

    parts: Sequence[SmallRun]
    slices: CompactedSlices | None
    """One for each, all of which go to one object and those behind it; None: the long way must take them."""


def groups_of(
    runs: Sequence[PartitionRun], decided_elsewhere: Mapping[TopicIdPartition, object]
) -> Iterator[tuple[int, int]]:
    """The compacted runs [first, end) that are decided together by the key streams of one hashing, without
    versions; a run that is decided in another way is in no group."""

    def hash_key_id(number: int) -> int | None:
        run = runs[number]
        hashing = run.topic.hashing
        if run.mode is not RunMode.COMPACT or hashing.has_versions:
            return None
        if decided_elsewhere and run.topic_id_partition in decided_elsewhere:
            return None
        return hashing.hash_key_id

    for key, numbers in itertools.groupby(range(len(runs)), hash_key_id):
        if key is not None:
            yield from _in_parts(runs, list(numbers))


def decide(
    runs: Sequence[PartitionRun], inputs: Mapping[str, InputStreams]
) -> Iterator[tuple[PartitionRun, bytearray | None]]:
    """The runs of a group with their survivors, as in `SmallRun`; None for a run without small, usable key
    streams, and for a damaged one: the long way finds the damage again and names it. Raises as
    `InputStreams.keys_between`."""
    for first, end, ranges in _dense(runs, _KEYS, None):
        part = runs[first:end]
        if _size_of(ranges) > MAX_BYTES:
            yield from ((run, None) for run in part)
            continue
        hash_key_id = part[0].topic.hashing.hash_key_id
        keys = {name: inputs[name].keys_between(*ranges[name]) for name in ranges}
        found = decide_runs(_columns(part), _DECIDED, hash_key_id, SMALL_STREAM_BYTES, keys)
        yield from zip(part, found, strict=True)


def with_sums(runs: Sequence[PartitionRun], survivors: Sequence[bytearray]) -> Iterator[DecidedRun]:
    """The runs with their survivors and their sums."""
    sums = run_sums(_columns(runs), _SUMS)
    return map(DecidedRun, survivors, sums[::2], sums[1::2])


def data_ranges(runs: Sequence[PartitionRun], survivors: Sequence[bytearray]) -> Ranges:
    """The data from the first to the last slice with survivors, of each input that has any."""
    return run_ranges(_columns(runs), _DATA, survivors)


class SmallRunCalls:
    """Compacts consecutive small runs. Not thread-safe: guarded by the job."""

    def __init__(self, inputs: Mapping[str, InputStreams], index_interval_bytes: int) -> None:
        self._inputs = inputs
        self._index_interval_bytes = index_interval_bytes

    def compact(self, parts: Sequence[SmallRun]) -> Iterator[tuple[Ranges, Iterator[CompactedRuns]]]:
        """For each call, the ranges of data that are read next, and its runs. Take all runs before the next
        ones: their data are held until then. Raises as `InputStreams.hold` and `keys_between`."""
        runs = [part.run for part in parts]
        survivors = [part.survivors for part in parts]
        for first, end, ranges in _dense(runs, _DATA, survivors):
            yield ranges, self._call(parts[first:end], ranges)

    def _call(self, parts: Sequence[SmallRun], ranges: Ranges) -> Iterator[CompactedRuns]:
        runs, survivors = [part.run for part in parts], [part.survivors for part in parts]
        columns = _columns(runs)
        key_ranges = run_ranges(columns, _KEYS, survivors)
        if max(_size_of(ranges), _size_of(key_ranges)) > MAX_BYTES:
            yield from _taken_runs(parts, bytes(len(parts)), None)
            return
        keys = {name: self._inputs[name].keys_between(*key_ranges[name]) for name in key_ranges}
        data = {name: (ranges[name][0], self._inputs[name].hold(*ranges[name])) for name in ranges}
        rules = [_rule(part) for part in parts]
        taken, compacted = compact_runs(
            columns, _COMPACTED, survivors, data, keys, rules, self._index_interval_bytes
        )
        yield from _taken_runs(parts, taken, compacted)
        for name in ranges:
            self._inputs[name].let_go()

    def end_of(self, run: PartitionRun) -> SliceEnd:
        """The end of the slice that replaces the run, as `run_end.end_of`."""
        slices = run.slices
        index = PartRef._make(slices.last(_INDEX))
        if self._inputs[slices.last_object_name].is_sound_plain_index(index):
            return SliceEnd(run.end_offset, leader_epochs=slices.leader_epochs)
        return end_of(run, slices[-1], self._inputs, ())


def _taken_runs(
    parts: Sequence[SmallRun], taken: bytes, slices: CompactedSlices | None
) -> Iterator[CompactedRuns]:
    """The runs with the slices of those that were `taken`."""
    steps = list(itertools.accumulate(part.goes_on for part in parts))

    def group(number: int) -> tuple[object, ...]:
        part = parts[number]
        return taken[number], part.run.topic.kind, part.place, steps[number]

    end = slice_end = 0
    for (is_taken, *_), numbers in itertools.groupby(range(len(parts)), group):
        first, end = end, end + len(list(numbers))
        made = None
        if is_taken and slices is not None:
            slice_first, slice_end = slice_end, slice_end + end - first
            made = slices.part(slice_first, slice_end)
        yield CompactedRuns(parts[first:end], made)


def _in_parts(runs: Sequence[PartitionRun], numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first, slice_count = numbers[0], 0
    for number in numbers:
        count = len(runs[number].slices)
        if slice_count + count > _MAX_SLICES and number > first:
            yield first, number
            first, slice_count = number, 0
        slice_count += count
    yield first, numbers[-1] + 1


def _columns(runs: Sequence[PartitionRun]) -> list[RunColumns]:
    return [run.slices.columns for run in runs]


def _dense(
    runs: Sequence[PartitionRun], places: tuple[int, ...], survivors: Sequence[bytearray] | None
) -> Iterator[tuple[int, int, Ranges]]:
    """Parts [first, end) of the runs, each with the ranges of its slices: as many bytes as a call has in
    memory, but one run at the least. What lies between the slices counts."""
    waiting = [(0, len(runs))]
    while waiting:
        first, end = waiting.pop()
        bits = None if survivors is None else survivors[first:end]
        ranges = run_ranges(_columns(runs[first:end]), places, bits)
        if end - first > 1 and _size_of(ranges) > MAX_BYTES:
            middle = (first + end) // 2
            waiting += [(middle, end), (first, middle)]
        else:
            yield first, end, ranges


def _size_of(ranges: Ranges) -> int:
    return sum([end - begin for begin, end in ranges.values()])


def _rule(part: SmallRun) -> RunRule:
    rule = part.rule
    return part.run.log_start_offset, rule.drop_until_ms, rule.stamp_ms, rule.settled_end_offset
