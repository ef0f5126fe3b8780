"""Gathers the needs of a job: kernels take the columns of all runs with one call.

The output is an estimate: a carried run stays as it is, and of a compacted one as many records stay for each
offset as in its first slice, but of no slice more than it has keys. Where neither tells anything, all stay,
so that the estimate is too large rather than too small.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.input_need import NOTHING, ByteRange, InputNeed
from stratalog.compaction.plan.job_needs import HashedRun, JobNeeds
from stratalog.compaction.plan.slice_table import column_places
from stratalog.record.key_block import key_stream_bytes
from stratalog.record.native.batch_kernels import run_ranges, run_sums
from stratalog.remote.metadata.shard.live_slice import LiveSlice

_INDEXES = column_places("index.position", "index.size_bytes", "record_count")
_DATA = column_places("data_position", "data_bytes", "record_count")
_FIRST = column_places("record_count", "base_offset", "end_offset")
_SUMS = column_places(
    "record_count",
    "data_bytes",
    "index.size_bytes",
    "key_stream.size_bytes",
    "key_stream.entry_count",
    "marker_count",
)


class _RunSums(NamedTuple):
    """The sums over the slices of a run."""

    record_count: int
    data_bytes: int
    index_bytes: int
    key_bytes: int
    key_count: int
    marker_count: int


class JobGathering:
    """The needs of the runs of a job so far. Not thread-safe: one job in the making uses it."""

    def __init__(self, input_names: Iterable[str]) -> None:
        self._input_names = tuple(input_names)
        self._runs: list[PartitionRun] = []

    @property
    def needs(self) -> JobNeeds:
        """The needs of all runs that were added. They read no other inputs."""
        output_bytes: Counter[tuple[int, int]] = Counter()
        key_bytes = 0
        sums = run_sums([run.slices.columns for run in self._runs], _SUMS)
        rows = map(_RunSums._make, zip(*[iter(sums)] * len(_SUMS), strict=True))
        hashed: list[HashedRun] = []
        for run, summed in zip(self._runs, rows, strict=True):
            most_count, run_key_bytes = summed.key_count + summed.marker_count, summed.key_bytes
            if not run.has_plain_keys:
                unpacked = run.slices.unpacked()
                most_count = sum(_most_kept(run, live) for live in unpacked)
                run_key_bytes = sum(_new_key_bytes(run, live) for live in unpacked)
                hashed += _hashed(run, unpacked)
            share = 1.0 if run.mode is RunMode.CARRY else _kept_share(run, summed.record_count, most_count)
            kind = run.topic.kind
            for place, stored_bytes in enumerate(_stored_bytes(run, summed)):
                output_bytes[kind, place] += round(share * stored_bytes)
            if run.topic.is_compacted:
                key_bytes += run_key_bytes
        return JobNeeds(
            inputs=self._inputs(), output_bytes=dict(output_bytes), key_bytes=key_bytes, hashed=tuple(hashed)
        )

    def add(self, run: PartitionRun) -> None:
        """Check one more run. It reads no other inputs."""
        run.check()
        self._runs.append(run)

    def _inputs(self) -> dict[str, InputNeed]:
        """The needs of each input."""
        columns = [run.slices.columns for run in self._runs]
        carried = [run.slices.columns for run in self._runs if run.mode is RunMode.CARRY]
        indexes, data = run_ranges(columns, _INDEXES), run_ranges(columns, _DATA)
        carried_data = run_ranges(carried, _DATA)
        counts = Counter(itertools.chain.from_iterable(run.slices.object_names for run in self._runs))
        assert counts.keys() <= set(self._input_names), "the runs read no other inputs"
        return {
            name: InputNeed(
                counts[name],
                indexes.get(name, NOTHING)[1],
                ByteRange(*data.get(name, NOTHING)),
                ByteRange(*carried_data.get(name, NOTHING)),
            )
            for name in self._input_names
        }


def _stored_bytes(run: PartitionRun, summed: _RunSums) -> Sequence[int]:
    """The bytes of the slices that each output slice replaces."""
    if not run.part_counts:
        return (summed.data_bytes + summed.index_bytes + summed.key_bytes,)
    names = "data_bytes", "index.size_bytes", "key_stream.size_bytes"
    columns = [run.slices.column(name) for name in names]
    return [sum(sum(column[first:end]) for column in columns) for first, end in run.parts]


def _hashed(run: PartitionRun, slices: Sequence[LiveSlice]) -> Iterator[HashedRun]:
    """The slices of a run that a job hashes, if there are any."""
    hashed = [live.entry for live in slices if run.mode is not RunMode.CARRY and not run.has_keys(live)]
    if hashed:
        yield HashedRun(
            run.topic.hashing.has_versions,
            array("Q", [entry.record_count for entry in hashed]),
            array("Q", [entry.data_bytes for entry in hashed]),
        )


def _new_key_bytes(run: PartitionRun, live: LiveSlice) -> int:
    """The most bytes of a key stream of the slice that the topic's hashing makes."""
    stream, hashing = live.entry.key_stream, run.topic.hashing
    if stream is not None and hashing.made(stream):
        return stream.size_bytes
    entry_count = live.entry.record_count if stream is None else stream.entry_count
    return key_stream_bytes(entry_count, has_versions=hashing.has_versions)


def _most_kept(run: PartitionRun, live: LiveSlice) -> int:
    """The most records of a slice that may stay: one for each key, if its keys are known."""
    entry = live.entry
    if entry.key_stream is None or not run.has_keys(live):
        return entry.record_count
    return entry.key_stream.entry_count + entry.marker_count


def _kept_share(run: PartitionRun, record_count: int, most_count: int) -> float:
    """The part of a compacted run's records that stays, an estimate."""
    if not record_count:
        return 1.0
    first_count, first_base_offset, first_end_offset = run.slices.first(_FIRST)
    density = first_count / (first_end_offset - first_base_offset)
    kept_count = max(first_count, density * (run.end_offset - run.base_offset))
    return min(1.0, kept_count / record_count, most_count / record_count)
