"""The periodic task that deletes old segments from local disks."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import LogStoreError, StoreError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.log_to_clean import is_cleaned_here
from stratalog.manager.log_manager import LogManager
from stratalog.server.background.confirmed_topics import ConfirmedTopics
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.background.pass_rounds import PassRounds
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.partitions.store_trouble import StoreTrouble

UNCONFIRMED = "unconfirmed"
"""Partitions whose topic's configuration, as the catalog has it, is not that of their logs."""
LAST_COPY = "last-copy"
"""Tiered partitions whose local copies may be the last ones."""


class _Deleted(NamedTuple):
    """The outcome in one log directory."""

    deleted_count: int
    """All segments that were deleted."""
    compacted_count: int
    """Those of them of which the object store has a compacted copy."""
    failures: tuple[str, ...]


class LocalRetention:
    """Deletes old segments of local logs and counts them. Thread-safe: its parts are, and `_lock` guards the
    count."""

    def __init__(
        self,
        registry: PartitionRegistry,
        logs: LogManager,
        cleaner: CleanerPool,
        confirmed: ConfirmedTopics,
        tiers: Sequence[ShardTier],
        rounds: PassRounds[str],
    ) -> None:
        """`cleaner` deletes the old segments of compacted logs. `rounds` keeps the log directories apart."""
        self._registry = registry
        self._logs = logs
        self._cleaner = cleaner
        self._confirmed = confirmed
        self._tiers = tuple(tiers)
        self._rounds = rounds
        self._lock = threading.Lock()
        self._deleted_segment_count = 0

    @property
    def deleted_segment_count(self) -> int:
        """Local segments that were deleted since the start, those of compacted logs included."""
        return self._deleted_segment_count + self._cleaner.deleted_segment_count

    def run(self) -> PassOutcome:
        """Delete local segments: by local retention what the object store has of tiered topics, by retention
        those of other topics.

        A failing partition does not stop the others, and a disk that hangs only those in its log directory; a
        partition on a failed disk, or that another server has taken over, is left alone. A record of
        a topic that is not tiered is gone once it is deleted, so only a confirmed configuration deletes it,
        see `ConfirmedTopics`: while the store is away that is the one that was followed last, and the outcome
        says why the catalog could not be read. Then, and where the shard takes no commits, segments
        of tiered topics go, too, that were never uploaded and that the retention of all tiers does not keep:
        the log start moves first. Where the bucket is gone, or the head of the shard or of the
        catalog is lost or damaged, local copies of what was uploaded stay: they may be the last ones.

        Local segments of a compacted topic go, too, once the object store has compacted all of their records,
        so that readers see the compacted copy (`LogConfig.drops_compacted`): by the metadata that this server
        knows, and not while the store is away, because readers would have no copy then.
        """
        partitions = [
            one for one in self._registry.partitions() if one.offline() is None and not one.shard.is_fenced
        ]
        untiered = [one for one in partitions if not one.is_tiered]
        confirmed = (self._confirmed.follow() if partitions else None) or frozenset()
        failures: list[str] = []
        moved: list[HostedPartition] = []
        away = [tier for tier in self._tiers if self._is_away(tier)]
        if away:
            moved = self._expire_unreachable(
                away, [one for one in partitions if one.topic_id_partition.topic_id in confirmed], failures
            )
        by_directory: dict[str, list[HostedPartition]] = {path: [] for path in self._logs.tasks.paths()}
        for partition in partitions:
            if partition.is_tiered or partition.topic_id_partition.topic_id in confirmed:
                by_directory.setdefault(partition.log_dir, []).append(partition)
        done = self._rounds.run(
            "local-retention",
            {path: partial(self._run_in, path, some) for path, some in by_directory.items()},
        )
        for one in done.results.values():
            failures += one.failures
        failures += (f"local retention in {path} failed: {error}" for path, error in done.failures.items())
        for partition in (*untiered, *moved):
            partition.signal.notify()
        deleted = {
            "segments": sum(one.deleted_count for one in done.results.values()),
            # Those of them that went because the object store has a compacted copy.
            "compacted-segments": sum(one.compacted_count for one in done.results.values()),
            "unreachable-log-starts": len(moved),
        }
        left_alone = sum(one.topic_id_partition.topic_id not in confirmed for one in untiered)
        if not partitions:
            return PassOutcome(deleted, failures=tuple(failures))
        refusing = [tier for tier in away if any(one.shard is tier.shard for one in moved)]
        kept_count = sum(one.is_tiered and one.shard.contact.may_have_lost_data for one in partitions)
        refusals = {UNCONFIRMED: left_alone} | ({LAST_COPY: kept_count} if kept_count else {})
        return self._outcome(deleted, refusals, refusing, failures)

    def _is_away(self, tier: ShardTier) -> bool:
        """Whether no log start of a shard can be committed now, as far as is known. A store may have trouble
        with commits alone, because it is full, read-only or over a quota, or with the files of the shard."""
        if tier.shard.is_fenced:
            return False
        trouble = StoreTrouble.of_any(_failure_of(tier))
        return self._confirmed.is_store_away or (trouble is not None and trouble.is_away)

    def _outcome(
        self,
        deleted: Mapping[str, int],
        refusals: dict[str, int],
        refusing: Sequence[ShardTier],
        failures: Sequence[str],
    ) -> PassOutcome:
        """The outcome of a turn, with the trouble of its look at the catalog, or of the shards whose log
        starts have moved on the disk only. `refusals`: partitions of which nothing was deleted, by reason."""
        trouble, failure = self._confirmed.trouble, self._confirmed.failure
        remark = ""
        for refused in filter(None, map(_failure_of, () if failure else refusing)):
            refusals[StoreTrouble.of(refused).value] = 1
            remark = f"log starts moved on this disk only, they cannot be committed: {refused.message}"
        if trouble is not None and failure is not None:
            refusals[trouble.value] = 1
            if self._confirmed.is_store_away:
                remark = f"by the configuration that was read last: {failure.message}"
            else:
                remark = f"topics that are not tiered wait for the catalog: {failure.message}"
        return PassOutcome(deleted, refusals, tuple(failures), remark=remark)

    def _run_in(self, path: str, partitions: Sequence[HostedPartition]) -> _Deleted:
        """Delete the old segments of these partitions of a log directory, and of its compacted logs."""
        failures: list[str] = []
        deleted_count = compacted_count = 0
        for partition in partitions:
            try:
                deleted_count += self._delete_of(partition)
                if self._confirmed.does_store_answer and partition.shard.contact.failure is None:
                    compacted_count += _delete_compacted(partition)
            except (LogStoreError, OSError) as error:
                failures.append(f"local retention of {partition.topic_partition} failed: {error}")
        deleted_count += compacted_count
        with self._lock:
            self._deleted_segment_count += deleted_count
        deleted_count += self._cleaner.delete_old_segments(path)
        return _Deleted(deleted_count, compacted_count, tuple(failures))

    def _expire_unreachable(
        self, tiers: Sequence[ShardTier], partitions: Sequence[HostedPartition], failures: list[str]
    ) -> list[HostedPartition]:
        """Move the log starts of tiered partitions of these shards without the store; returns those that
        moved. Notes the failures."""
        moved: set[TopicPartition] = set()
        for tier in tiers:
            logs = [one.log for one in partitions if one.is_tiered and one.shard is tier.shard]
            report = tier.retention.run_unreachable(logs)
            moved |= {one.topic_partition for one in report.advanced}
            failures += [f"retention of {one.topic_partition} failed: {one.error}" for one in report.failed]
        return [one for one in partitions if one.topic_partition in moved]

    def confirm(self, partitions: Collection[HostedPartition]) -> frozenset[UUID]:
        """The topics whose configuration is confirmed now: only their records may be deleted, unless they are
        tiered. Does not ask if all partitions are tiered."""
        is_needed = any(not one.is_tiered for one in partitions)
        return (self._confirmed.follow() if is_needed else None) or frozenset()

    def retain(self, partition: HostedPartition) -> None:
        """Delete the old segments of one partition of a confirmed or tiered topic; the store has just
        answered. Those of a log that is being cleaned wait. Raises CorruptRecordError, DataDirectoryError."""
        deleted_count = self._delete_of(partition) + _delete_compacted(partition)
        with self._lock:
            self._deleted_segment_count += deleted_count
        if is_cleaned_here(partition.log.local_log.config):
            self._cleaner.delete_old_segments_of(partition.log)
        partition.signal.notify()

    def _delete_of(self, partition: HostedPartition) -> int:
        if partition.is_tiered and not partition.shard.contact.may_have_lost_data:
            return partition.log.retention.delete_local_segments()
        # Of a tiered log those below its start.
        return self._logs.tasks.delete_old_segments(partition.log)


def _failure_of(tier: ShardTier) -> StoreError | None:
    """Why the head of a shard could not be read, or replaced, the last time."""
    return tier.shard.contact.failure or tier.shard.metadata.commit_failure


def _delete_compacted(partition: HostedPartition) -> int:
    """Delete the local segments of a tiered topic that hide a compacted copy; returns how many. Raises
    CorruptRecordError, DataDirectoryError."""
    state = partition.tier_state()
    if state is None or state.compacted_upto <= partition.local_log_start_offset:
        return 0
    return partition.log.retention.delete_local_segments(compacted_upto=state.compacted_upto)
