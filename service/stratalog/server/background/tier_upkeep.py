"""Upkeep of the stored objects of a server, over all shards: verification, collection, and the caches of
readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stratalog.compaction.tier_verification import VerificationReport
from stratalog.remote.read.object_reads import ObjectReads, ReaderCaches
from stratalog.remote.tier.collector import CollectReport
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.background.tier_outcomes import collection_outcome
from stratalog.server.operations.operation import Operation, OperationProgress
from stratalog.server.operations.operation_results import CollectionResult, VerificationResult
from stratalog.server.partitions.partition_registry import PartitionRegistry


@dataclass(frozen=True, slots=True)
class TierUpkeep:
    """Verifies and collects. Thread-safe: the components are. The methods with an operation may take the
    network for long."""

    tiers: tuple[ShardTier, ...]
    registry: PartitionRegistry
    reads: ObjectReads

    @staticmethod
    def of(tiers: Iterable[ShardTier], registry: PartitionRegistry, reads: ObjectReads) -> TierUpkeep:
        return TierUpkeep(tuple(tiers), registry, reads)

    def verify(self, topics: Collection[str], operation: Operation) -> None:
        """Read all tiered data of the named topics (all if none is named) and compare it with the metadata.
        Raises UnknownTopicOrPartitionError, NotOwnerError, StoreError, StoppingError."""
        topic_ids = {self.registry.topic(name).topic_id for name in topics} if topics else None
        done = VerificationReport()

        def report(of_shard: VerificationReport) -> None:
            whole = done.plus(of_shard)
            operation.set_result(VerificationResult(whole))
            operation.report(
                OperationProgress(
                    phase="reads slices",
                    done_count=whole.slice_count,
                    total_count=whole.total_slice_count,
                    done_bytes=whole.data_bytes,
                    total_bytes=whole.total_bytes,
                )
            )

        for tier in self.tiers:
            tier.shard.leader_epoch()
            done = done.plus(tier.verification.run(topic_ids, operation.stop, report))
        operation.set_result(VerificationResult(done))

    def collect(self, operation: Operation, *, is_dry_run: bool) -> PassOutcome:
        """Delete the files of the store that commits have dropped or that no commit refers to, and whose
        grace is over; a dry run only lists them. Raises NotOwnerError, StoreError, StoppingError."""
        done = CollectReport()
        for number, tier in enumerate(self.tiers):
            operation.stop.check()
            tier.shard.leader_epoch()
            operation.report(
                OperationProgress(
                    phase=f"shard {number}",
                    done_count=done.all_deleted_count,
                    done_bytes=done.all_deleted_bytes,
                )
            )
            done = done.plus(tier.collector.run(operation.stop, is_dry_run=is_dry_run, is_whole=True))
            operation.set_result(CollectionResult(done, is_dry_run))
        operation.report(
            OperationProgress(
                done_count=done.all_deleted_count,
                total_count=done.all_deleted_count,
                done_bytes=done.all_deleted_bytes,
                total_bytes=done.all_deleted_bytes,
            )
        )
        return collection_outcome(done)

    def caches(self) -> ReaderCaches:
        """The caches of tiered data, which all shards share."""
        return self.reads.cache_stats

    def empty_caches(self) -> int:
        """Empty the caches; returns the size of their values."""
        return self.reads.empty_caches()
