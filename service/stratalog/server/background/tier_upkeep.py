"""Upkeep of the store of a server, over all shards: verification, collection, the caches of readers, and the
metadata version.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.compaction.tier_verification import VerificationReport
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.metadata_version import METADATA_VERSION
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.read.object_reads import ObjectReads, ReaderCaches
from stratalog.remote.tier.collector import CollectReport
from stratalog.remote.tier.upload_history import NEVER_MS
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.background.pass_rounds import each_shard
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.background.tier_outcomes import collection_outcome
from stratalog.server.operations.operation import Operation, OperationProgress
from stratalog.server.operations.operation_results import CollectionResult, VerificationResult
from stratalog.server.operations.verification_log import VerificationLog
from stratalog.server.partitions.foreign_shard import ForeignShard
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.partitions.shard_set import ShardSet

MAX_PAGE_COUNT = 512
"""Pages that one turn fetches for the cache on disk, of each log: a stop of the server waits for a turn."""


class FinalizedHead(NamedTuple):
    """The metadata version of a head, before and after it was finalized."""

    shard: int | None
    """None: the catalog."""
    old_version: int
    new_version: int
    reason: str = ""
    """Why the head stays behind the newest version; empty if it does not."""


@dataclass(frozen=True, slots=True)
class TierUpkeep:
    """Verifies and collects. Thread-safe: the components are. The methods with an operation may take the
    network for long."""

    tiers: tuple[ShardTier, ...]
    shards: ShardSet
    catalog: Catalog
    registry: PartitionRegistry
    verifications: VerificationLog
    reads: ObjectReads
    store_remarks: tuple[str, ...] = ()
    """Texts for people about a store that keeps deleted data, as of the start of the server."""

    def verify(self, topics: Collection[str], operation: Operation, *, reads_data: bool) -> None:
        """Check the metadata, and read all tiered data of the named topics (all if none is named) unless not
        `reads_data`. Raises UnknownTopicOrPartitionError, NotOwnerError, StoppingError; StoreError after it
        has checked the other shards, whose result the operation has."""
        named = [self.registry.topic(name) for name in topics]
        topic_ids = {topic.topic_id for topic in named} if named else None
        done = VerificationReport()

        def report(of_shard: VerificationReport) -> None:
            whole = done.plus(of_shard)
            operation.set_result(VerificationResult(whole, reads_data))
            operation.report(
                OperationProgress(
                    phase="reads slices",
                    done_count=whole.slice_count,
                    total_count=whole.total_slice_count,
                    done_bytes=whole.data_bytes,
                    total_bytes=whole.total_bytes,
                )
            )

        def verify(tier: ShardTier) -> None:
            nonlocal done
            found = tier.verification.run(topic_ids, operation.stop, report, reads_data=reads_data)
            done = done.plus(found)
            operation.set_result(VerificationResult(done, reads_data))

        each_shard(self._owned(), verify)
        self.verifications.ended(done, reads_data=reads_data)

    def collect(self, operation: Operation, *, is_dry_run: bool) -> PassOutcome:
        """Delete the files of the store that commits have dropped or that no commit refers to, and whose
        grace is over; a dry run only lists them. Raises NotOwnerError, StoppingError; StoreError after it has
        tried all shards."""
        done = CollectReport()

        def collect(tier: ShardTier) -> None:
            nonlocal done
            operation.stop.check()
            operation.report(
                OperationProgress(
                    phase=f"shard {tier.shard.metadata.shard}",
                    done_count=done.all_deleted_count,
                    done_bytes=done.all_deleted_bytes,
                )
            )
            done = done.plus(tier.collector.run(operation.stop, is_dry_run=is_dry_run, is_whole=True))
            operation.set_result(CollectionResult(done, is_dry_run))

        each_shard(self._owned(), collect)
        operation.report(
            OperationProgress(
                done_count=done.all_deleted_count,
                total_count=done.all_deleted_count,
                done_bytes=done.all_deleted_bytes,
                total_bytes=done.all_deleted_bytes,
            )
        )
        return collection_outcome(done)

    def finalize(self, *, is_dry_run: bool) -> list[FinalizedHead]:
        """Finalize the newest metadata version: in each shard that this server owns, and in the catalog once
        all shards have it, because their owners read the catalog, too. A dry run only reads the versions.
        Raises NotOwnerError, StoreError; a later call goes on where this one stopped.
        """
        heads: list[FinalizedHead] = []
        heads += (_finalize(tier.shard.metadata, is_dry_run=is_dry_run) for tier in self._owned())
        heads += map(_left_alone, self.shards.of_others)
        heads.sort(key=lambda head: head.shard or 0)
        behind = [str(head.shard) for head in heads if head.reason]
        if not behind:
            return [*heads, _finalize(self.catalog, is_dry_run=is_dry_run)]
        self.catalog.refresh()
        version = self.catalog.finalized_version
        return [*heads, FinalizedHead(None, version, version, f"of shard {', '.join(behind)}")]

    def keep_pages_pass(self) -> PassOutcome:
        """Make the cache on disk have the pages of metadata that this server reads, and no others. Raises
        StoreError after it has tried all shards."""
        done = self.catalog.keep_pages(MAX_PAGE_COUNT)

        def keep(tier: ShardTier) -> None:
            nonlocal done
            done = done.plus(tier.shard.metadata.keep_pages(MAX_PAGE_COUNT))

        each_shard([tier for tier in self.tiers if not tier.shard.is_fenced], keep)
        return PassOutcome({"pages": done.fetched_count, "bytes": done.fetched_bytes})

    def _owned(self) -> list[ShardTier]:
        """The shards that this server owns. Raises NotOwnerError if others own all of them."""
        owned = [tier for tier in self.tiers if not tier.shard.is_fenced]
        if not owned:
            self.tiers[0].shard.leader_epoch()
        return owned

    def last_upload_ms(self, partition: HostedPartition) -> int:
        """Wall time of the last commit with records of the partition since the start; -1 if there is none."""
        tip = partition.topic_id_partition
        found = (tier.uploads.last_success_ms(tip) for tier in self.tiers if tier.shard is partition.shard)
        return next(found, NEVER_MS)

    def caches(self) -> ReaderCaches:
        """The caches of tiered data, which all shards share."""
        return self.reads.cache_stats

    def empty_caches(self) -> int:
        """Empty the caches; returns the size of their values."""
        return self.reads.empty_caches()


def _finalize(log: MetadataLog | Catalog, *, is_dry_run: bool) -> FinalizedHead:
    log.refresh()
    old_version = log.finalized_version
    new_version = max(old_version, METADATA_VERSION) if is_dry_run else log.finalize()
    return FinalizedHead(log.layout.shard, old_version, new_version)


def _left_alone(shard: HostedShard | ForeignShard) -> FinalizedHead:
    """The version of a shard that another server finalizes."""
    shard.refresh()
    version = shard.metadata.finalized_version
    reason = (
        "" if version >= METADATA_VERSION else f"{shard.owner.endpoint or 'no server'} owns it; run it there"
    )
    return FinalizedHead(shard.metadata.shard, version, version, reason)
