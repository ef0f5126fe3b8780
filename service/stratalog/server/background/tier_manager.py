"""Moves data between the tiers and out of them: uploads, retention, deletion, compaction, folding.

Each pass looks at the current state and does what is due. Passes remember nothing but what operators ask for:
when the last upload succeeded, and why the last one failed. So the next pass makes up for a failed one.

Deletion always goes in this order: the log start is committed, then local segments are deleted, then, after
the grace, objects.
"""

from __future__ import annotations

import logging
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
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicPartition
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.tier.partition_upload import UploadCandidate
from stratalog.remote.tier.remote_retention import ExplainedPartition, FailedRetention
from stratalog.server.background.repeated_failures import RepeatedFailures
from stratalog.server.background.scratch_space import scratch_error
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.background.upload_tracker import UploadTracker
from stratalog.server.operations.operation import Operation
from stratalog.server.operations.operation_results import FailedPartition, Uploaded
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.topics.topic_manager import TopicManager

logger = logging.getLogger(__name__)

R = TypeVar("R")

NEVER_MS = -1
UPLOAD_TRY_COUNT = 3
"""Tries of an upload that a caller waits for, while the metadata moves under each of them."""


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

    def upload(self, topics: Collection[str], operation: Operation, *, delete_local: bool) -> None:
        """`upload_now` as an operation."""
        self.upload_now(topics, delete_local=delete_local, operation=operation)

    def upload_now(
        self, topics: Collection[str], *, delete_local: bool, operation: Operation | None = None
    ) -> Uploaded:
        """Roll the active segments of the named topics (all if none is named) and upload the rolled ones.

        All partitions are tried, then the first failure is raised, with the result of the others in its
        fields. A partition that is offline or on a failed disk fails if its topic is named, and is left out
        otherwise. Raises UnknownTopicOrPartitionError, NotOwnerError, StoreError, DataDirectoryError;
        PreconditionFailedError if the metadata moved under each of a few tries; StoppingError between two
        objects or reads.
        """
        tracker = UploadTracker(operation, [] if topics else self._unserved())
        partitions = self._tiered_partitions(topics)
        named = [self._registry.topic(name) for name in topics]
        failures = [offline.error() for topic in named for offline in topic.offline_partitions]
        failures += [failed.failure for topic in named for failed in topic.failed_partitions]
        for partition in partitions:
            tracker.check()
            partition.shard.leader_epoch()
            _collect(failures, partition.log.roll)
        last = self._upload(partitions, tracker)
        uploaded = last.uploaded
        for _ in range(1, UPLOAD_TRY_COUNT):
            if not last.refusals:
                break
            last = self._upload(partitions, tracker)
            uploaded = uploaded.plus(last.uploaded)
        failures += last.failures + last.refusals
        deleted_count = 0
        if delete_local:
            for partition in partitions:
                tracker.check()
                delete = partial(partition.log.retention.delete_local_segments, ignore_retention=True)
                deleted_count += _collect(failures, delete) or 0
                tracker.note_deleted(deleted_count)
        uploaded = uploaded._replace(local_segments_deleted=deleted_count)
        if failures:
            raise _with_what_was_uploaded(failures[0], uploaded)
        return uploaded

    def upload_pass(self) -> None:
        """Upload rolled segments, periodically. A failure of a partition is logged once while it lasts, and
        tried again.
        """
        done = self._upload(self._tiered_partitions(()), UploadTracker(None, []))
        self._upload_failures.tell(
            f"a partition could not be uploaded, the next pass tries again: {failure}"
            for failure in done.failures + done.refusals
        )

    def remote_retention_pass(self) -> None:
        """Move the log start of tiered topics by their retention, if their logs have the catalog's current
        configuration. Raises NotOwnerError, PreconditionFailedError (another commit saw a newer catalog,
        which the next pass reads), StoreError.
        """
        self._remote_failures.tell(
            f"retention of {one.topic_partition} failed: {one.error}" for one in self.retain((), StopSignal())
        )

    def retain(self, topics: Collection[str], stop: StopSignal) -> list[FailedRetention]:
        """Move the log start of the named tiered topics (all if none is named), as `remote_retention_pass`;
        returns the partitions that failed. Also raises StoppingError, between two shards."""
        followed = self._topics.follow_catalog()
        failed: list[FailedRetention] = []
        for tier in self._tiers:
            partitions = _retained_in(tier, followed.topics, topics)
            if not partitions or tier.shard.is_fenced:
                continue
            stop.check()
            logs = [partition.log for partition in partitions]
            report = tier.retention.run(logs, epoch=tier.shard.leader_epoch(), catalog_seq=followed.seq)
            failed += report.failed
            moved = {advanced.topic_partition for advanced in report.advanced}
            for partition in partitions:
                if partition.topic_partition in moved:
                    partition.signal.notify()
        return failed

    def explain_retention(
        self, partitions: Collection[HostedPartition]
    ) -> dict[TopicPartition, ExplainedPartition | LogStoreError]:
        """Explain what `retain`, and the deletion of local segments behind it, would do now with those of
        these partitions that are tiered and whose topics the catalog confirms. Changes nothing. Raises
        StoreError, NotOwnerError."""
        confirmed = {topic.topic_id for topic in self._topics.follow_catalog().topics}
        found: dict[TopicPartition, ExplainedPartition | LogStoreError] = {}
        for tier in self._tiers:
            chosen = [
                one
                for one in partitions
                if one.shard is tier.shard
                and one.is_tiered
                and one.topic_id_partition.topic_id in confirmed
                and one.offline() is None
            ]
            if chosen:
                tier.shard.leader_epoch()
                explained = tier.retention.explain([partition.log for partition in chosen])
                found.update(zip((one.topic_partition for one in chosen), explained, strict=True))
        return found

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

    def _partitions(self, topics: Collection[str]) -> list[HostedPartition]:
        if not topics:
            return list(self._registry.partitions())
        return [partition for name in topics for partition in self._registry.topic(name).partitions]

    def _tiered_partitions(self, topics: Collection[str]) -> list[HostedPartition]:
        return [one for one in self._partitions(topics) if one.is_tiered and one.offline() is None]

    def _unserved(self) -> list[FailedPartition]:
        """The partitions that an upload of all topics leaves out."""
        return [
            FailedPartition.offline(one.topic_partition, one.path, one.reason)
            for topic in self._registry.topics()
            if topic.config is None or topic.config.remote_storage_enable
            for one in topic.unserved_partitions
        ]

    def _upload(self, partitions: Collection[HostedPartition], tracker: UploadTracker) -> _Pass:
        """Fsync rolled segments and upload them; returns the failures of single partitions."""
        uploaded = Uploaded()
        failures: list[LogStoreError] = []
        refusals: list[LogStoreError] = []
        tracker.begin(partitions)
        # The bucket never holds what the disk could lose, and appends at `os` leave the fsync to this.
        partitions = [
            one for one in partitions if _collect(failures, one.log.flusher.flush_rolled) is not None
        ]
        try:
            for tier in self._tiers:
                candidates = [_candidate(self._catalog, one) for one in partitions if one.shard is tier.shard]
                report = tier.uploader.upload(
                    candidates,
                    epoch=tier.shard.leader_epoch(),
                    stop=tracker.stop,
                    on_object=tracker.note_objects,
                )
                tracker.end_report(report)
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


def _retained_in(
    tier: ShardTier, topics: Iterable[HostedTopic], names: Collection[str]
) -> list[HostedPartition]:
    """The partitions of the shard that retention looks at, of the named topics or of all."""
    return [
        partition
        for topic in topics
        if not names or topic.name in names
        for partition in topic.partitions
        if partition.shard is tier.shard and partition.offline() is None
    ]


def _with_what_was_uploaded(failure: LogStoreError, uploaded: Uploaded) -> LogStoreError:
    """The failure, with the result of the other partitions in its fields."""
    failure.fields.update(
        uploaded_objects=uploaded.object_count,
        uploaded_slices=uploaded.slice_count,
        uploaded_bytes=uploaded.data_bytes,
        local_segments_deleted=uploaded.local_segments_deleted,
    )
    return failure


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
