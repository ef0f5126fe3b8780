"""The cost of a job, foretold from its plan: requests, bytes read and written, and the bytes that it frees.

Requests and bytes of the inputs follow from the directory entries, so they are exact while no connection
breaks and each input has a survivor. The output is the estimate of `job_gathering`. Commits are not counted:
each takes a few small requests, whatever the job reads.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.compaction.plan.input_need import InputNeed
from stratalog.remote.metadata.shard.shard_state import LiveObject


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
    needs, outputs = job.needs.inputs, job.needs.output_bytes.values()
    reads = [read_bytes_of(live, needs[live.ref.name]) for live in job.inputs]
    emptied_bytes = sum(
        live.ref.size_bytes for live in job.inputs if live.live_slices == needs[live.ref.name].slice_count
    )
    return JobCost(
        get_count=sum(1 + (data_bytes > 0) for _, data_bytes in reads),
        put_count=sum(_put_count(size_bytes, settings) for size_bytes in outputs),
        read_bytes=sum(map(sum, reads)),
        written_bytes=sum(outputs),
        freed_bytes=emptied_bytes - sum(outputs),
    )


def read_bytes_of(live: LiveObject, need: InputNeed) -> tuple[int, int]:
    """The bytes that the two GETs of an input ask for, if each needed slice has a survivor: see
    `InputStreams`."""
    keys_bytes = max(live.ref.key_streams_end, need.index_end) - live.ref.directory_position
    return keys_bytes, need.data.end - need.data.begin


def _put_count(size_bytes: int, settings: CompactionSettings) -> int:
    """The requests that send so many bytes in objects of at most about `max_job_bytes`."""
    object_count = max(1, -(-size_bytes // settings.max_job_bytes))
    part_count = -(-size_bytes // settings.output_part_bytes)
    return object_count if part_count <= object_count else part_count + 2 * object_count
