"""Gathers the needs of a job, with one look at each slice.

The output is an estimate: a carried run stays as it is, and of a compacted one as many records stay for each
offset as in its first slice, but of no slice more than it has keys. Where neither tells anything, all stay,
so that the estimate is too large rather than too small.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.input_need import NOTHING, ByteRange, InputNeed
from stratalog.compaction.plan.job_needs import HashedRun, JobNeeds
from stratalog.compaction.plan.run_slices import column_places
from stratalog.record.key_block import key_stream_bytes
from stratalog.record.native.batch_kernels import run_ranges
from stratalog.remote.metadata.shard.live_slice import LiveSlice

_INDEXES = column_places("index.position", "index.size_bytes", "record_count")
_DATA = column_places("data_position", "data_bytes", "record_count")


class JobGathering:
    """The needs of the runs of a job so far. Not thread-safe: one job in the making uses it."""

    def __init__(self, input_names: Iterable[str]) -> None:
        self._slice_counts = dict.fromkeys(input_names, 0)
        self._runs: list[PartitionRun] = []
        self._output_bytes: Counter[tuple[int, int]] = Counter()
        self._key_bytes = 0
        self._hashed: list[HashedRun] = []

    @property
    def needs(self) -> JobNeeds:
        """The needs of all runs that were added."""
        return JobNeeds(
            inputs=self._inputs(),
            output_bytes=dict(self._output_bytes),
            key_bytes=self._key_bytes,
            hashed=tuple(self._hashed),
        )

    def add(self, run: PartitionRun) -> None:
        """Check one more run, and gather its needs. It reads no other inputs."""
        run.check()
        slices, is_carried = run.slices, run.mode is RunMode.CARRY
        self._runs.append(run)
        slice_counts = self._slice_counts
        for name in slices.object_names:
            slice_counts[name] += 1
        key_bytes, record_count = slices.column("key_stream.size_bytes"), run.record_count
        stored = slices.column("data_bytes"), key_bytes, slices.column("index.size_bytes")
        if run.has_plain_keys:
            most_count = sum(slices.column("key_stream.entry_count")) + sum(slices.column("marker_count"))
            all_key_bytes = sum(key_bytes)
        else:
            unpacked = slices.unpacked()
            most_count = sum(_most_kept(run, live) for live in unpacked)
            all_key_bytes = sum(_new_key_bytes(run, live) for live in unpacked)
            if not is_carried:
                self._add_hashed(run, unpacked)
        share = 1.0 if is_carried else _kept_share(run, record_count, most_count)
        for place, (first, end) in enumerate(run.parts):
            stored_bytes = sum([sum(column[first:end]) for column in stored])
            self._output_bytes[run.topic.kind, place] += round(share * stored_bytes)
        if run.topic.is_compacted:
            self._key_bytes += all_key_bytes

    def _inputs(self) -> dict[str, InputNeed]:
        """The needs of each input."""
        columns = [run.slices.columns for run in self._runs]
        carried = [run.slices.columns for run in self._runs if run.mode is RunMode.CARRY]
        indexes, data = run_ranges(columns, _INDEXES), run_ranges(columns, _DATA)
        carried_data = run_ranges(carried, _DATA)
        return {
            name: InputNeed(
                slice_count,
                indexes.get(name, NOTHING)[1],
                ByteRange(*data.get(name, NOTHING)),
                ByteRange(*carried_data.get(name, NOTHING)),
            )
            for name, slice_count in self._slice_counts.items()
        }

    def _add_hashed(self, run: PartitionRun, slices: Sequence[LiveSlice]) -> None:
        hashed = [live for live in slices if not run.has_keys(live)]
        if hashed:
            self._hashed.append(
                HashedRun(
                    run.topic.hashing.has_versions,
                    array("Q", [live.entry.record_count for live in hashed]),
                    array("Q", [live.entry.data_bytes for live in hashed]),
                )
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
    slices = run.slices
    first_count = slices.first("record_count")
    density = first_count / (slices.first("end_offset") - slices.first("base_offset"))
    kept_count = max(first_count, density * (run.end_offset - run.base_offset))
    return min(1.0, kept_count / record_count, most_count / record_count)
