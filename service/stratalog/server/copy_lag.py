"""The records that are not in the object store yet, by topic: those in closed segments, which the next upload
takes, and those in active segments (the tails), which are rolled after `remote.copy.max.age.ms`.

It is measured after each turn of the upload, from what is in memory. There is a row for each tiered topic,
not for each partition, so that the number of rows stays small.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from stratalog.server.background.pass_outcome import Backlog
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry


class TopicLag(NamedTuple):
    """The records of one topic that are not in the object store."""

    closed: Backlog = Backlog()
    """In closed segments; a piece is a segment."""
    tails: Backlog = Backlog()
    """In active segments; a piece is a partition. The size of a segment that is in the store in part is an
    estimate, by the share of its offsets."""


class CopyLag:
    """Measures the lag. Thread-safe: a measurement replaces the one before by one assignment."""

    def __init__(self, registry: PartitionRegistry) -> None:
        self._registry = registry
        self._by_topic: Mapping[str, TopicLag] = MappingProxyType({})

    @property
    def by_topic(self) -> Mapping[str, TopicLag]:
        """The lag of each tiered topic at the last measurement, by name; empty before the first."""
        return self._by_topic

    def measure(self) -> Backlog:
        """Measure it now; returns the closed segments of all topics, the work that waits for the upload.
        Partitions on failed disks are left out."""
        lags = {
            topic.name: _lag_of(topic.partitions)
            for topic in self._registry.topics()
            if topic.config is not None and topic.config.remote_storage_enable
        }
        self._by_topic = MappingProxyType(lags)
        whole = Backlog()
        for lag in lags.values():
            whole = whole.plus(lag.closed)
        return whole


def _lag_of(partitions: tuple[HostedPartition, ...]) -> TopicLag:
    closed, tails = Backlog(), Backlog()
    for partition in partitions:
        if partition.is_tiered and partition.log.local_log.config.is_copied and partition.offline() is None:
            lag = partition_lag(partition)
            closed, tails = closed.plus(lag.closed), tails.plus(lag.tails)
    return TopicLag(closed, tails)


def partition_lag(partition: HostedPartition, last_upload_ms: int = -1) -> TopicLag:
    """The records of a tiered partition that are not in the object store, by what is in memory. Their age
    goes by their arrival, whatever their own times are. `last_upload_ms`: wall time of the last commit with
    records of the partition, if it is known; the rest of a segment that is there in part has come later."""
    closed, tails = Backlog(), Backlog()
    pending_offset = max(partition.log_start_offset, partition.tiered_end_offset)
    held = partition.log.local_log.segments
    # A policy may have dropped segments that are behind the tiered end.
    for segment in held.since(max(pending_offset, held.start_offset)):
        # Appends go on: each number is read once.
        is_active, end_offset, size_bytes = segment.is_active, segment.end_offset, segment.size_bytes
        record_count = end_offset - max(segment.base_offset, pending_offset)
        if record_count <= 0 or size_bytes == 0:
            continue
        since_ms = segment.first_append_ms
        if segment.base_offset < pending_offset:
            size_bytes = size_bytes * record_count // (end_offset - segment.base_offset)
            since_ms = max(since_ms, last_upload_ms)
        waiting = Backlog(1, size_bytes, record_count, since_ms)
        if is_active:
            tails = tails.plus(waiting)
        else:
            closed = closed.plus(waiting)
    return TopicLag(closed, tails)
