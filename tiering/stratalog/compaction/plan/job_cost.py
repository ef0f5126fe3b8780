"""The cost of a job, foretold from its plan: requests, bytes read and written, and the bytes that it frees.

Requests and bytes of the inputs follow from the directory entries, so they are exact while no connection
breaks and each input has a survivor. The output is an estimate: a carried run stays as it is, and of a
compacted one as many records stay for each offset as in its first slice, but of no slice more than it has
keys. Where neither tells anything, all stay, so that the estimate is too large rather than too small. Commits
are not counted: each takes a few small requests, whatever the job reads.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.compaction_job import CompactionJob, PartitionRun, RunMode
from stratalog.compaction.plan.input_need import InputNeed
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.shard_state import LiveObject
from stratalog.remote.objects.slice_entry import SliceEntry


class JobCost(NamedTuple):
    """The cost of a job, or of several. Immutable."""

    get_count: int = 0
    """GET requests, without those that resume broken streams."""
    put_count: int = 0
    """PUT requests: one for each part, and two more for an object of several parts."""
    read_bytes: int = 0
    written_bytes: int = 0
    """An estimate, see above."""
    freed_bytes: int = 0
    """Size of the inputs that go, less the outputs. Negative if the objects that stay hold most."""

    def plus(self, other: JobCost) -> JobCost:
        """Both together."""
        return JobCost(*map(operator.add, self, other))


def cost_of(job: CompactionJob, settings: CompactionSettings) -> JobCost:
    """The cost of the job with these settings."""
    needs = {name: InputNeed() for name in job.input_names}
    outputs: Counter[tuple[int, int]] = Counter()
    for run in map(PartitionRun.unpacked, job.runs):
        for live in run.slices:
            needs[live.object_name].add(live.entry)
        for output, size_bytes in _output_sizes(run):
            outputs[output] += size_bytes
    reads = [read_bytes_of(live, needs[live.ref.name]) for live in job.inputs]
    emptied_bytes = sum(
        live.ref.size_bytes for live in job.inputs if live.live_slices == needs[live.ref.name].slice_count
    )
    return JobCost(
        get_count=sum(1 + (data_bytes > 0) for _, data_bytes in reads),
        put_count=sum(_put_count(size_bytes, settings) for size_bytes in outputs.values()),
        read_bytes=sum(map(sum, reads)),
        written_bytes=outputs.total(),
        freed_bytes=emptied_bytes - outputs.total(),
    )


def read_bytes_of(live: LiveObject, need: InputNeed) -> tuple[int, int]:
    """The bytes that the two GETs of an input ask for, if each needed slice has a survivor: see
    `InputStreams`."""
    keys_bytes = max(live.ref.key_streams_end, need.index_end) - live.ref.directory_position
    begin, end = need.data_range
    return keys_bytes, end - begin


def _output_sizes(run: PartitionRun) -> Iterator[tuple[tuple[int, int], int]]:
    """The estimated data by output object: the kind of topics, and the place."""
    share = _kept_share(run)
    for place, slices in enumerate(run.parts):
        stored_bytes = sum(_stored_bytes(live.entry) for live in slices)
        yield (run.topic.kind, place), round(share * stored_bytes)


def _stored_bytes(entry: SliceEntry) -> int:
    """Data, key stream and index of a slice."""
    keys_bytes = 0 if entry.key_stream is None else entry.key_stream.size_bytes
    return entry.data_bytes + keys_bytes + entry.index.size_bytes


def _kept_share(run: PartitionRun) -> float:
    """The part of the run's records that stays, an estimate."""
    if run.mode is RunMode.CARRY or not run.record_count:
        return 1.0
    first = run.slices[0]
    density = first.entry.record_count / (first.entry.end_offset - first.entry.base_offset)
    kept_count = max(first.entry.record_count, density * (run.end_offset - run.base_offset))
    most_count = sum(_most_kept(run, live) for live in run.slices)
    return min(kept_count, most_count) / run.record_count


def _most_kept(run: PartitionRun, live: LiveSlice) -> int:
    """The most records of a slice that may stay: one for each key, if its keys are known."""
    entry = live.entry
    if entry.key_stream is None or not run.has_keys(live):
        return entry.record_count
    return entry.key_stream.entry_count + entry.marker_count


def _put_count(size_bytes: int, settings: CompactionSettings) -> int:
    """The requests that send so many bytes in objects of at most about `max_job_bytes`."""
    object_count = max(1, -(-size_bytes // settings.max_job_bytes))
    part_count = -(-size_bytes // settings.output_part_bytes)
    return object_count if part_count <= object_count else part_count + 2 * object_count
