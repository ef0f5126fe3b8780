"""Moves data between the tiers and out of them: uploads, retention, deletion, compaction, folding.

Each pass looks at the current state and does what is due. Passes remember nothing but what operators ask for:
when the last upload succeeded, and why the last one failed. So the next pass makes up for a failed one.

Deletion always goes in this order: the log start is committed, then local segments are deleted, then, after
the grace, objects.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogStoreError,
    NotOwnerError,
    PreconditionFailedError,
)
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compactor import Compactor
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.tier.collector import Collector
from stratalog.remote.tier.partition_upload import UploadCandidate
from stratalog.remote.tier.remote_retention import RemoteRetention
from stratalog.remote.tier.uploader import Uploader
from stratalog.server.background.repeated_failures import RepeatedFailures
from stratalog.server.background.scratch_space import scratch_error
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.topics.topic_manager import TopicManager

logger = logging.getLogger(__name__)

R = TypeVar("R")

NEVER_MS = -1
UPLOAD_TRY_COUNT = 3
"""Tries of an upload that a caller waits for, while the metadata moves under each of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTier:
    """The components that work on one shard's objects."""

    shard: HostedShard
    uploader: Uploader
    retention: RemoteRetention
    collector: Collector
    compactor: Compactor


class Uploaded(NamedTuple):
    """The result of an upload, over all shards."""

    object_count: int = 0
    slice_count: int = 0
    data_bytes: int = 0
    local_segments_deleted: int = 0

    def plus(self, other: Uploaded) -> Uploaded:
        return Uploaded(*map(operator.add, self, other))


class _Pass(NamedTuple):
    """The result of a pass of the uploader, and the failures of single partitions."""

    uploaded: Uploaded
    failures: list[LogStoreError]
    refusals: list[LogStoreError]
    """Slices that the metadata refused because it had moved; the next pass tries again."""


class UploadStatus(NamedTuple):
    """The last success and the last error of the uploader."""

    last_success_ms: int
    """-1 if nothing was uploaded since the start."""
    last_error: str
    """Empty if the last pass succeeded."""


class TierManager:
    """The background work on the tiered partitions of one server. Thread-safe: the components are, and
    `_lock` guards status and counts. Every method may take the network for long.
    """

    def __init__(
        self,
        clock: Clock,
        catalog: Catalog,
        tiers: Iterable[ShardTier],
        registry: PartitionRegistry,
        topics: TopicManager,
    ) -> None:
        self._clock = clock
        self._catalog = catalog
        self._tiers = tuple(tiers)
        self._registry = registry
        self._topics = topics
        self._lock = threading.Lock()
        self._status = UploadStatus(NEVER_MS, "")
        self._upload_failures = RepeatedFailures(logger)
        self._remote_failures = RepeatedFailures(logger)

    @property
    def upload_status(self) -> UploadStatus:
        return self._status

    def upload_now(self, topics: Collection[str], *, delete_local: bool) -> Uploaded:
        """Roll the active segments of the named topics (all if none is named) and upload the rolled ones.

        All partitions are tried, then the first failure is raised, with the result of the others in its
        fields. A partition that is offline or on a failed disk fails if its topic is named, and is left out
        otherwise. Raises UnknownTopicOrPartitionError, NotOwnerError, StoreError, DataDirectoryError;
        PreconditionFailedError if the metadata moved under each of a few tries.
        """
        partitions = self._tiered_partitions(topics)
        named = [self._registry.topic(name) for name in topics]
        failures = [offline.error() for topic in named for offline in topic.offline_partitions]
        failures += [failed.failure for topic in named for failed in topic.failed_partitions]
        for partition in partitions:
            partition.shard.leader_epoch()
            _collect(failures, partition.log.roll)
        last = self._upload(partitions)
        uploaded = last.uploaded
        for _ in range(1, UPLOAD_TRY_COUNT):
            if not last.refusals:
                break
            last = self._upload(partitions)
            uploaded = uploaded.plus(last.uploaded)
        failures += last.failures + last.refusals
        deleted_count = 0
        if delete_local:
            for partition in partitions:
                delete = partial(partition.log.retention.delete_local_segments, ignore_retention=True)
                deleted_count += _collect(failures, delete) or 0
        uploaded = uploaded._replace(local_segments_deleted=deleted_count)
        if failures:
            raise _with_what_was_uploaded(failures[0], uploaded)
        return uploaded

    def upload_pass(self) -> None:
        """Upload rolled segments, periodically. A failure of a partition is logged once while it lasts, and
        tried again.
        """
        done = self._upload(self._tiered_partitions(()))
        self._upload_failures.tell(
            f"a partition could not be uploaded, the next pass tries again: {failure}"
            for failure in done.failures + done.refusals
        )

    def remote_retention_pass(self) -> None:
        """Move the log start of tiered topics by their retention, if their logs have the catalog's current
        configuration. Raises NotOwnerError, PreconditionFailedError (another commit saw a newer catalog,
        which the next pass reads), StoreError.
        """
        followed = self._topics.follow_catalog()
        failures: list[str] = []
        for tier in self._tiers:
            partitions = [
                partition
                for topic in followed.topics
                for partition in topic.partitions
                if partition.shard is tier.shard and partition.offline() is None
            ]
            if not partitions or tier.shard.is_fenced:
                continue
            logs = [partition.log for partition in partitions]
            report = tier.retention.run(logs, epoch=tier.shard.leader_epoch(), catalog_seq=followed.seq)
            failures += [f"retention of {one.topic_partition} failed: {one.error}" for one in report.failed]
            moved = {advanced.topic_partition for advanced in report.advanced}
            for partition in partitions:
                if partition.topic_partition in moved:
                    partition.signal.notify()
        self._remote_failures.tell(failures)

    def collect_pass(self) -> None:
        for tier in self._tiers:
            if not tier.shard.is_fenced:
                tier.collector.run()

    def fold_pass(self) -> None:
        for tier in self._tiers:
            if not tier.shard.is_fenced:
                tier.shard.metadata.fold_if_needed()

    def refresh_pass(self) -> None:
        """Read the heads, notice another owner, then follow the catalog. Raises StoreError after it has asked
        for every head.
        """
        failures: list[LogStoreError] = []
        for tier in self._tiers:
            try:
                tier.shard.refresh()
            except LogStoreError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        self._topics.follow_catalog()

    def compact(self, topics: Collection[str]) -> list[CompactionReport]:
        """Plan and run compaction of the named topics (all if none is named). A refused job says so in its
        report. Raises UnknownTopicOrPartitionError, NotOwnerError, StoreError, DataDirectoryError.
        """
        for name in topics:
            self._registry.topic(name)
        left_alone = {
            offline.topic_id_partition: f"{offline.topic_partition} is offline"
            for offline in self._registry.offline_partitions()
        }
        reports: list[CompactionReport] = []
        for tier in self._tiers:
            tier.shard.leader_epoch()
            try:
                reports += tier.compactor.run_once(topics or None, left_alone=left_alone)
            except OSError as failure:
                raise scratch_error(failure) from failure
        return reports

    def _partitions(self, topics: Collection[str]) -> list[HostedPartition]:
        if not topics:
            return list(self._registry.partitions())
        return [partition for name in topics for partition in self._registry.topic(name).partitions]

    def _tiered_partitions(self, topics: Collection[str]) -> list[HostedPartition]:
        return [one for one in self._partitions(topics) if one.is_tiered and one.offline() is None]

    def _upload(self, partitions: Collection[HostedPartition]) -> _Pass:
        """Fsync rolled segments and upload them; returns the failures of single partitions."""
        uploaded = Uploaded()
        failures: list[LogStoreError] = []
        refusals: list[LogStoreError] = []
        # The bucket never holds what the disk could lose, and appends at `os` leave the fsync to this.
        partitions = [
            one for one in partitions if _collect(failures, partial(_flush_rolled, one.log)) is not None
        ]
        try:
            for tier in self._tiers:
                candidates = [_candidate(self._catalog, one) for one in partitions if one.shard is tier.shard]
                report = tier.uploader.upload(candidates, epoch=tier.shard.leader_epoch())
                failures += [failed.error for failed in report.failed]
                refusals += [
                    PreconditionFailedError(
                        "the metadata refused an uploaded slice, the next pass tries again: "
                        + refused.reason,
                        partition=refused.topic_partition,
                        object=refused.object_name,
                    )
                    for refused in report.refused
                ]
                uploaded = uploaded.plus(Uploaded(report.object_count, report.slice_count, report.data_bytes))
        except NotOwnerError:
            for tier in self._tiers:
                tier.shard.refresh()
            raise
        except OSError as failure:
            error = scratch_error(failure)
            self._note(uploaded, error)
            raise error from failure
        except Exception as error:
            self._note(uploaded, error)
            raise
        self._note(uploaded, next(iter(failures + refusals), None))
        return _Pass(uploaded, failures, refusals)

    def _note(self, uploaded: Uploaded, error: Exception | None) -> None:
        with self._lock:
            last_success_ms = self._clock.now_ms() if uploaded.object_count else self._status.last_success_ms
            self._status = UploadStatus(last_success_ms, "" if error is None else str(error)[:500])


def _with_what_was_uploaded(failure: LogStoreError, uploaded: Uploaded) -> LogStoreError:
    """The failure, with the result of the other partitions in its fields."""
    failure.fields.update(
        uploaded_objects=uploaded.object_count,
        uploaded_slices=uploaded.slice_count,
        uploaded_bytes=uploaded.data_bytes,
        local_segments_deleted=uploaded.local_segments_deleted,
    )
    return failure


def _flush_rolled(log: UnifiedLog) -> int:
    """Flush if a segment was rolled since the last flush; returns the recovery point."""
    is_rolled = log.offsets.recovery_point < log.local_log.segments.active.base_offset
    return log.flusher.flush() if is_rolled else log.offsets.recovery_point


def _collect(failures: list[LogStoreError], work: Callable[[], R]) -> R | None:
    """The result of `work`; None if it failed, after its error was added to `failures`."""
    try:
        return work()
    except LogStoreError as error:
        failures.append(error)
        return None


def _candidate(catalog: Catalog, partition: HostedPartition) -> UploadCandidate:
    """The partition's log, with the topic's hash key if its objects need key streams."""
    entry = catalog.by_id(partition.topic_id_partition.topic_id)
    assert entry is not None, "a hosted topic is in the catalog"
    is_compacted = partition.log.local_log.config.is_compacted
    return UploadCandidate(partition.log, KeyHashing(entry.hash_key) if is_compacted else None)
