"""Moves data between the tiers and out of them: uploads, retention, deletion, compaction, folding.

Every pass looks at the state as it is and does what is due; nothing is remembered from pass to pass but what
people ask for (when the last upload succeeded, and why the last one failed). So a pass that fails is made up
for by the next.

Deletion goes in this order, always: the log start is committed, then local segments go, then, after the
grace, objects.
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
    FencedError,
    LogStoreError,
    OffsetOutOfRangeError,
    PreconditionFailedError,
)
from stratalog.cleaner.log_cleaner import LogCleaner
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compactor import Compactor
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.tier.collector import Collector
from stratalog.remote.tier.partition_upload import UploadCandidate
from stratalog.remote.tier.remote_retention import RemoteRetention
from stratalog.remote.tier.uploader import Uploader
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.scratch_space import scratch_error
from stratalog.server.topics.confirmed_topics import ConfirmedTopics
from stratalog.server.topics.repeated_failures import RepeatedFailures
from stratalog.server.topics.topic_manager import TopicManager

logger = logging.getLogger(__name__)

R = TypeVar("R")

NEVER_MS = -1
UPLOAD_TRY_COUNT = 3
"""Passes of an upload that somebody waits for, each of which found that the metadata had moved meanwhile."""
HIGH_WATERMARK = -1
"""As an offset to delete before: everything that there is."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTier:
    """What works on one shard's objects."""

    shard: HostedShard
    uploader: Uploader
    retention: RemoteRetention
    collector: Collector
    compactor: Compactor


class Uploaded(NamedTuple):
    """What an upload brought, over all shards."""

    object_count: int = 0
    slice_count: int = 0
    data_bytes: int = 0
    local_segments_deleted: int = 0

    def plus(self, other: Uploaded) -> Uploaded:
        return Uploaded(*map(operator.add, self, other))


class _Pass(NamedTuple):
    """What a pass of the uploader did, and what kept single partitions out of it."""

    uploaded: Uploaded
    failures: list[LogStoreError]
    refusals: list[LogStoreError]
    """By the metadata, which had moved: the next pass looks at it anew."""


class UploadStatus(NamedTuple):
    """How the uploader is doing."""

    last_success_ms: int
    """-1: nothing was uploaded since the start."""
    last_error: str
    """Empty: the last pass succeeded."""


class TierManager:
    """Thread-safe: the components are, and `_lock` guards status and counts. Every method may take the
    network for long.
    """

    def __init__(
        self,
        clock: Clock,
        catalog: Catalog,
        tiers: Iterable[ShardTier],
        registry: PartitionRegistry,
        topics: TopicManager,
        logs: LogManager,
        cleaner: LogCleaner,
        confirmed: ConfirmedTopics,
    ) -> None:
        """`cleaner`: does the retention of local logs that are compacted."""
        self._logs = logs
        self._cleaner = cleaner
        self._confirmed = confirmed
        self._clock = clock
        self._catalog = catalog
        self._tiers = tuple(tiers)
        self._registry = registry
        self._topics = topics
        self._lock = threading.Lock()
        self._status = UploadStatus(NEVER_MS, "")
        self._upload_failures = RepeatedFailures(logger)
        self._local_failures = RepeatedFailures(logger)
        self._remote_failures = RepeatedFailures(logger)
        self.deleted_segment_count = 0
        """Local segments that `local_retention_pass` has dropped, but for what the cleaner counts."""

    @property
    def upload_status(self) -> UploadStatus:
        return self._status

    def upload_now(self, topics: Collection[str], *, delete_local: bool) -> Uploaded:
        """Roll the active segments of the named topics (none: all) and upload what is rolled.

        A partition that fails holds up no other: all are tried, then the first failure is raised, with what
        the others have brought among its fields; one that is offline, or whose disk has failed, fails where
        its topic is named, and is left out otherwise. Raises
        UnknownTopicOrPartitionError, FencedError, StoreError, DataDirectoryError; PreconditionFailedError
        where the metadata moved under each of a few tries.
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
                delete = partial(partition.log.delete_local_segments, ignore_retention=True)
                deleted_count += _collect(failures, delete) or 0
        uploaded = uploaded._replace(local_segments_deleted=deleted_count)
        if failures:
            raise _with_what_was_uploaded(failures[0], uploaded)
        return uploaded

    def upload_pass(self) -> None:
        """Upload what is rolled. The periodic task; failures of partitions are logged, once as long as they
        last, and tried again.
        """
        done = self._upload(self._tiered_partitions(()))
        self._upload_failures.tell(
            f"a partition could not be uploaded, it is tried again: {failure}"
            for failure in done.failures + done.refusals
        )

    def local_retention_pass(self) -> None:
        """Delete local segments: of tiered topics what is committed in the object store, by local retention;
        of others by retention. A failing partition does not stop the rest, and is logged once as long as it
        fails; those whose disk has failed are left alone.

        What a topic that is not tiered loses is lost, so it is deleted only by a configuration that the
        catalog has just confirmed; while the store does not answer, these wait.
        """
        partitions = [partition for partition in self._partitions(()) if partition.offline() is None]
        untiered = [partition for partition in partitions if not partition.is_tiered]
        confirmed = (self._confirmed.follow() if untiered else None) or frozenset()
        deleted_count = 0
        failures: list[str] = []
        for partition in partitions:
            try:
                if partition.is_tiered:
                    deleted_count += partition.log.delete_local_segments()
                elif partition.topic_id_partition.topic_id in confirmed:
                    deleted_count += self._logs.tasks.delete_old_segments(partition.log)
            except (LogStoreError, OSError) as error:
                failures.append(f"local retention of {partition.topic_partition} failed: {error}")
        self._local_failures.tell(failures)
        with self._lock:
            self.deleted_segment_count += deleted_count
        self._cleaner.delete_old_segments()
        for partition in untiered:
            partition.signal.notify()

    def remote_retention_pass(self) -> None:
        """Move the log start of tiered topics as their retention says; of those only that go by what the
        catalog says now. Raises FencedError, PreconditionFailedError (somebody went by a newer catalog, the
        next pass finds it), StoreError.
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
        """Delete objects that commits dropped long enough ago."""
        for tier in self._tiers:
            if not tier.shard.is_fenced:
                tier.collector.run()

    def fold_pass(self) -> None:
        """Fold heads that have outgrown their bounds."""
        for tier in self._tiers:
            if not tier.shard.is_fenced:
                tier.shard.metadata.fold_if_needed()

    def refresh_pass(self) -> None:
        """Read the heads and notice another owner, then follow the catalog. Raises StoreError, once every
        head was asked for.
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
        """Plan and run compaction of the named topics (none: all). Raises UnknownTopicOrPartitionError,
        FencedError, StoreError, DataDirectoryError; jobs that were refused say so in their reports.
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

    def delete_records(self, partition: HostedPartition, before_offset: int) -> int:
        """Move the log start to `before_offset` (-1: the high watermark); returns the log start. It is
        committed in the object store first, then the local log follows. Raises OffsetOutOfRangeError,
        FencedError, StoreError.
        """
        epoch = partition.shard.leader_epoch()
        high_watermark = partition.log.high_watermark
        offset = high_watermark if before_offset == HIGH_WATERMARK else before_offset
        if not 0 <= offset <= high_watermark:
            raise OffsetOutOfRangeError(
                "records can be deleted up to the high watermark only",
                offset=offset,
                log_start_offset=partition.log_start_offset,
                log_end_offset=high_watermark,
            )
        if partition.is_tiered:
            starts = {partition.topic_id_partition: offset}
            outcome = partition.shard.metadata.advance_log_start(starts, epoch=epoch, catalog_seq=None)
            for refusal in outcome.refused:
                raise PreconditionFailedError(
                    "the log start did not move, try again: " + refusal.reason,
                    partition=partition.topic_partition,
                    before_offset=offset,
                )
            state = partition.shard.metadata.state().partition(partition.topic_id_partition)
            partition.log.update_tiered_end_offset(state.tiered_end_offset)
            offset = min(state.log_start_offset, partition.log.high_watermark)
        partition.log.increment_log_start_offset(offset)
        partition.signal.notify()
        return partition.log_start_offset

    def _partitions(self, topics: Collection[str]) -> list[HostedPartition]:
        if not topics:
            return list(self._registry.partitions())
        return [partition for name in topics for partition in self._registry.topic(name).partitions]

    def _tiered_partitions(self, topics: Collection[str]) -> list[HostedPartition]:
        """Those that can be uploaded: the disk of their log has not failed."""
        return [one for one in self._partitions(topics) if one.is_tiered and one.offline() is None]

    def _upload(self, partitions: Collection[HostedPartition]) -> _Pass:
        """Fsync what is rolled and upload it; the failures of single partitions are returned."""
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
        except FencedError:
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
    """The failure, for whoever asks what became of the others."""
    failure.fields.update(
        uploaded_objects=uploaded.object_count,
        uploaded_slices=uploaded.slice_count,
        uploaded_bytes=uploaded.data_bytes,
        local_segments_deleted=uploaded.local_segments_deleted,
    )
    return failure


def _flush_rolled(log: UnifiedLog) -> int:
    """Flush where a segment was rolled since the last flush; returns the recovery point."""
    is_rolled = log.recovery_point < log.active_base_offset
    return log.flush() if is_rolled else log.recovery_point


def _collect(failures: list[LogStoreError], work: Callable[[], R]) -> R | None:
    """The result of `work`; None where it failed, and its error is among `failures` then."""
    try:
        return work()
    except LogStoreError as error:
        failures.append(error)
        return None


def _candidate(catalog: Catalog, partition: HostedPartition) -> UploadCandidate:
    """With the topic's hash key where its objects need key streams."""
    entry = catalog.by_id(partition.topic_id_partition.topic_id)
    assert entry is not None, "a hosted topic is in the catalog"
    is_compacted = partition.log.config.is_compacted
    return UploadCandidate(partition.log, KeyHashing(entry.hash_key) if is_compacted else None)
