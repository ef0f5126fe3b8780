"""Proofs of compacted partitions for tests, with bounds so small that every way through the code is taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from random import Random

from stratalog.base.clock import Clock
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.proof import slice_reads
from stratalog.compaction.proof.compaction_proof import CompactionProof
from stratalog.compaction.proof.proof_means import ProofMeans
from stratalog.compaction.proof.proof_report import ProofReport
from stratalog.compaction.proof.record_fates import RecordFates
from stratalog.compaction.proof.unique_keys import FoundKeys, find_keys
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.spool import SCRATCH_SUFFIX, Spool
from stratalog.remote.store_layout import StoreLayout
from stratalog.testing.memory_filesystem import MemoryFileSystem


class Scratch:
    """Makes scratch, and knows what was not given back. Not thread-safe: one test uses it."""

    def __init__(self, memory_bytes: int = 100) -> None:
        self.filesystem = MemoryFileSystem()
        self._numbers = itertools.count()
        self._memory_bytes = memory_bytes
        self.filesystem.make_directories("/scratch")

    def make(self) -> Spool:
        """Scratch in memory, or in a file if it is larger than that."""
        path = f"/scratch/{next(self._numbers)}{SCRATCH_SUFFIX}"
        return Spool(self.filesystem, path, self._memory_bytes)

    def require_given_back(self) -> None:
        """Require that no file is left. Raises AssertionError."""
        assert self.filesystem.list_directory("/scratch") == []


def small_means(
    store: ObjectStore, clock: Clock, layout: StoreLayout, random: Random, scratch: Scratch
) -> ProofMeans:
    """Means with bounds that `random` chooses."""
    reads = slice_reads.SliceReads(store, clock, layout, random.choice((1, 100, 1_000, 1 << 20)))
    return ProofMeans(reads, scratch.make, random.choice((1, 3, 1 << 20)))


def found_below(
    means: ProofMeans, metadata: MetadataLog, catalog: Catalog, tip: TopicIdPartition, upto: int
) -> FoundKeys:
    """The keys of a partition as if `compacted_upto` were `upto`."""
    state = metadata.refresh()
    topic = catalog.by_id(tip.topic_id)
    assert topic is not None
    row = state.partition(tip).row._replace(compacted_upto=upto)
    partition = TieredPartition(tip, row, state.pages)
    fates = RecordFates(means.reads, partition.slices, partition.open_transactions)
    return find_keys(means, KeyHashing(topic.hash_key), fates, partition)


def proved(
    means: ProofMeans,
    metadata: MetadataLog,
    catalog: Catalog,
    *,
    topics: Iterable[str] = (),
    reads_data: bool = True,
) -> ProofReport:
    """The proof of a shard."""
    proof = CompactionProof(means, metadata, catalog)
    chosen = proof.choose(tuple(topics))
    total_bytes = proof.size_bytes(chosen)
    progress: list[int] = []
    report = proof.run(chosen, lambda one: progress.append(one.done_bytes), reads_data=reads_data)
    assert progress == sorted(progress)
    if chosen and not report.findings:
        assert progress[-1] == total_bytes == report.done_bytes
    return report
