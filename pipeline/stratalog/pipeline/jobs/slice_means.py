"""The means of a task that reads slices and sorts their keys."""

from __future__ import annotations

from stratalog.compaction.proof.proof_means import ProofMeans
from stratalog.compaction.proof.slice_reads import SliceReads
from stratalog.pipeline.jobs.task_place import TaskMeans
from stratalog.remote.objects.spool import SCRATCH_SUFFIX, Spool
from stratalog.remote.store_layout import StoreLayout

_CHUNK_BYTES = 4 << 20
_PART_ENTRIES = 1 << 18
_SCRATCH_MEMORY_BYTES = 128 << 10


def proof_means(means: TaskMeans, shard: int) -> ProofMeans:
    """Reads of a shard's slices with the means of a task."""

    def make_scratch() -> Spool:
        path = f"{means.scratch_directory}/{means.ids.uuid()}{SCRATCH_SUFFIX}"
        return Spool(means.filesystem, path, _SCRATCH_MEMORY_BYTES)

    reads = SliceReads(means.store, means.clock, StoreLayout(shard), _CHUNK_BYTES)
    return ProofMeans(reads, make_scratch, _PART_ENTRIES)
