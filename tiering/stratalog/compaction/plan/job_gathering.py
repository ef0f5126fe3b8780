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
from stratalog.compaction.plan.input_need import GrowingRange, InputNeed
from stratalog.compaction.plan.job_needs import HashedRun, JobNeeds
from stratalog.record.key_block import key_stream_bytes
from stratalog.remote.metadata.shard.live_slice import LiveSlice


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
        slices, is_carried = run.slices, run.mode is RunMode.CARRY
        index_bytes, data_bytes = slices.column("index.size_bytes"), slices.column("data_bytes")
        key_bytes = slices.column("key_stream.size_bytes")
        positions = zip(
            slices.object_names,
            slices.column("index.position"),
            index_bytes,
            slices.column("data_position"),
            data_bytes,
            strict=True,
        )
        tallies = self._tallies
        for name, index_position, size_bytes, data_position, data_size in positions:
            tally = tallies[name]
            tally.slice_count += 1
            tally.index_end = max(tally.index_end, index_position + size_bytes)
            tally.data.add(data_position, data_size)
            if is_carried:
                tally.carried.add(data_position, data_size)
        record_count = run.record_count
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
            stored_bytes = sum(
                map(sum, (column[first:end] for column in (data_bytes, key_bytes, index_bytes)))
            )
            self._output_bytes[run.topic.kind, place] += round(share * stored_bytes)
        if run.topic.is_compacted:
            self._key_bytes += all_key_bytes

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


class _InputTally:
    """The slices of one input so far."""

    __slots__ = ("carried", "data", "index_end", "slice_count")

    def __init__(self) -> None:
        self.slice_count = self.index_end = 0
        self.data, self.carried = GrowingRange(), GrowingRange()

    def need(self) -> InputNeed:
        return InputNeed(self.slice_count, self.index_end, self.data.bytes, self.carried.bytes)


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
    first_count = slices.column("record_count")[0]
    density = first_count / (slices.column("end_offset")[0] - slices.column("base_offset")[0])
    kept_count = max(first_count, density * (run.end_offset - run.base_offset))
    return min(1.0, kept_count / record_count, most_count / record_count)
