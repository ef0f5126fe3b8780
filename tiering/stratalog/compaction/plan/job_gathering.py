"""Gathers the needs of a job, with one look at each slice.

The output is an estimate: a carried run stays as it is, and of a compacted one as many records stay for each
offset as in its first slice. If that was never compacted, all stay, so that the estimate is too large rather
than too small.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.input_need import GrowingRange, InputNeed
from stratalog.compaction.plan.job_needs import HashedRun, JobNeeds
from stratalog.record.key_block import key_stream_bytes
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.slice_entry import SliceEntry


class JobGathering:
    """The needs of the runs of a job so far. Not thread-safe: one job in the making uses it."""

    def __init__(self, input_names: Iterable[str]) -> None:
        self._tallies = {name: _InputTally() for name in input_names}
        self._output_bytes: Counter[tuple[int, int]] = Counter()
        self._key_bytes = 0
        self._hashed: list[HashedRun] = []

    @property
    def needs(self) -> JobNeeds:
        """The needs of all runs that were added."""
        return JobNeeds(
            inputs={name: tally.need() for name, tally in self._tallies.items()},
            output_bytes=dict(self._output_bytes),
            key_bytes=self._key_bytes,
            hashed=tuple(self._hashed),
        )

    def add(self, run: PartitionRun) -> None:
        """Check one more run, and gather its needs. It reads no other inputs."""
        run.check()
        is_carried = run.mode is RunMode.CARRY
        tallies = self._tallies
        for live in run.slices:
            tallies[live.object_name].add(live.entry, is_carried=is_carried)
        share = _kept_share(run)
        for place, slices in enumerate(run.parts):
            self._output_bytes[run.topic.kind, place] += round(share * _stored_bytes(slices))
        if run.topic.is_compacted:
            self._key_bytes += _key_bytes(run)
        if not is_carried and (hashed := run.hashed_slices()):
            self._hashed.append(
                HashedRun(
                    run.topic.hashing.has_versions,
                    array("Q", [live.entry.record_count for live in hashed]),
                    array("Q", [live.entry.data_bytes for live in hashed]),
                )
            )


class _InputTally:
    """The slices of one input so far."""

    __slots__ = ("_carried", "_data", "_index_end", "_slice_count")

    def __init__(self) -> None:
        self._slice_count = self._index_end = 0
        self._data, self._carried = GrowingRange(), GrowingRange()

    def add(self, entry: SliceEntry, *, is_carried: bool) -> None:
        position, index_bytes, _ = entry.index
        self._slice_count += 1
        self._index_end = max(self._index_end, position + index_bytes)
        self._data.add(entry)
        if is_carried:
            self._carried.add(entry)

    def need(self) -> InputNeed:
        return InputNeed(self._slice_count, self._index_end, self._data.bytes, self._carried.bytes)


def _stored_bytes(slices: Sequence[LiveSlice]) -> int:
    """Data, key streams and indexes of slices."""
    size_bytes = 0
    for live in slices:
        entry = live.entry
        size_bytes += entry.data_bytes + entry.index.size_bytes
        if entry.key_stream is not None:
            size_bytes += entry.key_stream.size_bytes
    return size_bytes


def _kept_share(run: PartitionRun) -> float:
    """The part of the run's records that stays, an estimate."""
    if run.mode is RunMode.CARRY:
        return 1.0
    record_count = run.record_count
    if not record_count:
        return 1.0
    first = run.slices[0].entry
    density = first.record_count / (first.end_offset - first.base_offset)
    kept_count = max(first.record_count, density * (run.end_offset - run.base_offset))
    return min(1.0, kept_count / record_count)


def _key_bytes(run: PartitionRun) -> int:
    """The most bytes of the key streams of the run's output."""
    has_versions, hash_key_id = run.topic.hashing.has_versions, run.topic.hashing.hash_key_id
    size_bytes = 0
    for live in run.slices:
        stream = live.entry.key_stream
        if stream is None:
            size_bytes += key_stream_bytes(live.entry.record_count, has_versions=has_versions)
        elif stream.hash_key_id == hash_key_id:
            size_bytes += stream.size_bytes
        else:
            size_bytes += key_stream_bytes(stream.entry_count, has_versions=has_versions)
    return size_bytes
