"""Retention on request: applies it to all tiers of the named topics at once, or explains what it would do.

An explanation asks the same rules as the deletion: those of `RemoteRetention` for the log start of tiered
topics, and those of `LogRetention` for local segments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from stratalog.base.disk_calls import DiskCalls, Result, WorkSteps
from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.log.read.segment_info import SegmentInfo
from stratalog.log.retention.retention_outlook import RetentionOutlook
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.retention.remote_retention import ExplainedPartition, RetentionReport
from stratalog.server.background.local_retention import LocalRetention
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.background.tier_manager import TierManager
from stratalog.server.background.tier_outcomes import retention_outcome
from stratalog.server.operations.operation import Operation, OperationProgress
from stratalog.server.operations.operation_results import (
    FailedPartition,
    RetainedPartition,
    RetentionResult,
)
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry

UNCONFIRMED = (
    "the catalog does not confirm the topic's configuration now, so nothing of it is deleted; try again"
)


class _Before(NamedTuple):
    log_start_offset: int
    slices: Sequence[LiveSlice]
    segments: tuple[SegmentInfo, ...]


class TierRetention:
    """Applies and explains retention. Thread-safe: its parts are. Every method may take the network for
    long."""

    def __init__(
        self, registry: PartitionRegistry, tiers: TierManager, local: LocalRetention, disk_calls: DiskCalls
    ) -> None:
        """`disk_calls` does the work on local logs: a partition whose disk does not answer fails alone."""
        self._registry = registry
        self._tiers = tiers
        self._local = local
        self._disk_calls = disk_calls

    def run(self, topics: Collection[str], operation: Operation) -> PassOutcome:
        """Delete what the retention of the named topics (all if none is named) does not keep: first the log
        start of tiered ones is committed, then local segments go, partition by partition. A partition that
        fails does not stop the others. Returns the outcome of the first part. Raises
        UnknownTopicOrPartitionError, NotOwnerError, StoreError; StoppingError between two partitions.
        """
        chosen = self._chosen(topics)
        # The first reason of each: what follows from it says no more.
        failed = {
            one.topic_partition: FailedPartition.offline(one.topic_partition, one.path, one.reason)
            for topic in chosen
            for one in topic.unserved_partitions
        }
        partitions = [one for topic in chosen for one in topic.partitions if one.offline() is None]
        before: dict[TopicPartition, _Before] = {}
        reports: list[RetentionReport] = []
        try:
            for partition in partitions:
                with _noting(failed, partition):
                    before[partition.topic_partition] = self._before(partition)
            operation.report(OperationProgress("moves log starts", 0, len(partitions)))
            reports += self._tiers.retain(topics, operation.stop)
            for one in (one for report in reports for one in report.failed):
                failed.setdefault(one.topic_partition, FailedPartition(one.topic_partition, str(one.error)))
            confirmed = self._local.confirm(partitions)
            for number, partition in enumerate(partitions):
                operation.stop.check()
                if not partition.is_tiered and partition.topic_id_partition.topic_id not in confirmed:
                    name = partition.topic_partition
                    failed.setdefault(name, FailedPartition(name, UNCONFIRMED))
                    continue
                with _noting(failed, partition):
                    partition.shard.leader_epoch()
                    self._in_log(partition, partial(self._local.retain, partition))
                operation.report(OperationProgress("deletes segments", number + 1, len(partitions)))
        finally:
            retained = [
                _retained(one, before[one.topic_partition])
                for one in partitions
                if one.topic_partition in before
            ]
            operation.set_result(
                RetentionResult(
                    partitions=tuple(one for one in retained if _is_shorter(one)),
                    failed=tuple(failed.values()),
                    clock_refused_count=sum(report.clock_refused_count for report in reports),
                    clock_skew_ms=max((report.clock_skew_ms for report in reports), key=abs, default=0),
                )
            )
        return retention_outcome(reports)

    def partitions(self, topics: Collection[str]) -> list[HostedPartition | OfflinePartition]:
        """The partitions that `run` looks at, by topic and number. Raises UnknownTopicOrPartitionError."""
        return [one for topic in self._chosen(sorted(set(topics))) for one in topic.all_partitions]

    def explain(
        self, partitions: Sequence[HostedPartition | OfflinePartition]
    ) -> Iterator[tuple[TopicPartition, ExplainedPartition | LogStoreError | str]]:
        """Explain what `run` would delete now of each of these partitions, in order; a reason for one that it
        would leave out, the error of one that fails. Changes nothing. Raises StoreError.
        """
        hosted = [one for one in partitions if isinstance(one, HostedPartition)]
        tiered = self._tiers.explain_retention(hosted)
        for partition in partitions:
            name = partition.topic_partition
            if isinstance(partition, OfflinePartition):
                yield name, partition.reason
            elif (offline := partition.offline()) is not None:
                yield name, offline.reason
            elif partition.shard.is_fenced:
                yield name, partition.shard.owner.not_owner()
            elif partition.is_tiered:
                yield name, tiered.get(name, UNCONFIRMED)
            else:
                yield name, self._explained_local(partition)

    def _in_log(self, partition: HostedPartition, work: Callable[[], Result]) -> Result:
        """The result of work of the log's retention. Also raises DataDirectoryError if the disk does not
        answer, or an fsync of the log takes long."""
        log = partition.log
        return self._disk_calls.run(
            partition.log_dir, work, lambda: log.retention.look_count, lock=log.flush_lock
        )

    def _before(self, partition: HostedPartition) -> _Before:
        steps, reader = WorkSteps(), partition.log.reader
        look = partial(reader.segments, on_segment=steps.note)
        segments = self._disk_calls.run(partition.log_dir, look, lambda: steps.count)
        state = partition.tier_state()
        return _Before(partition.log_start_offset, () if state is None else state.slices, segments)

    def _explained_local(self, partition: HostedPartition) -> ExplainedPartition | LogStoreError:
        try:
            outlook = self._in_log(partition, partition.log.retention.explain)
        except LogStoreError as error:
            return error
        start_offset = partition.log_start_offset
        new_offset = start_offset
        if outlook.expired:
            new_offset = outlook.expired[-1].end_offset if outlook.next is None else outlook.next.base_offset
        return ExplainedPartition(start_offset, max(start_offset, new_offset), RetentionOutlook(), outlook)

    def _chosen(self, topics: Collection[str]) -> Sequence[HostedTopic]:
        return [self._registry.topic(name) for name in topics] or self._registry.topics()


@contextmanager
def _noting(failed: dict[TopicPartition, FailedPartition], partition: HostedPartition) -> Generator[None]:
    """Note a failure of the block for the partition, unless it has one, and go on."""
    try:
        yield
    except (LogStoreError, OSError) as error:
        name = partition.topic_partition
        failed.setdefault(name, FailedPartition(name, str(error)))


def _retained(partition: HostedPartition, before: _Before) -> RetainedPartition:
    start_offset = partition.log_start_offset
    local_start_offset = partition.log.local_log.segments.start_offset
    slices = list(takewhile(lambda live: live.end_offset <= start_offset, before.slices))
    segments = [one for one in before.segments if one.end_offset <= local_start_offset and one.size_bytes]
    return RetainedPartition(
        topic_partition=partition.topic_partition,
        old_log_start_offset=before.log_start_offset,
        new_log_start_offset=start_offset,
        dropped_slice_count=len(slices),
        dropped_slice_bytes=sum(live.entry.data_bytes for live in slices),
        deleted_segment_count=len(segments),
        deleted_segment_bytes=sum(one.size_bytes for one in segments),
    )


def _is_shorter(one: RetainedPartition) -> bool:
    is_moved = one.new_log_start_offset > one.old_log_start_offset
    return is_moved or one.dropped_slice_count > 0 or one.deleted_segment_count > 0
