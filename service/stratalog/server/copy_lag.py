"""The records that are not in the object store yet, by topic: those in closed segments, which the next upload
takes, and those in active segments (the tails), which are rolled after `remote.copy.max.age.ms`.

It is measured after each turn of the upload, from what is in memory. There is a row for each tiered topic,
not for each partition, so that the number of rows stays small.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.server.background.pass_outcome import Backlog
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry


class TopicLag(NamedTuple):
    """The records of one topic that are not in the object store."""

    closed: Backlog = Backlog()
    """In closed segments; a piece is a segment."""
    tails: Backlog = Backlog()
    """In active segments; a piece is a partition. The size of a tail that is there in part is an estimate, by
    the share of its offsets."""


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
        Partitions on failed disks are left out. Raises DataDirectoryError."""
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
            closed = closed.plus(_closed_lag(partition))
            tails = tails.plus(_tail_lag(partition))
    return TopicLag(closed, tails)


def _closed_lag(partition: HostedPartition) -> Backlog:
    end_offset = partition.tiered_end_offset
    held = partition.log.local_log.segments
    # A policy may have dropped segments that are behind the tiered end.
    first = next(held.since(max(end_offset, held.start_offset)))
    try:
        segments = partition.log.reader.segments(begin_offset=first.base_offset)
    except DataDirectoryError:
        if partition.offline() is None:
            raise
        return Backlog()
    pending = [one for one in segments if not one.is_active and one.end_offset > end_offset]
    return Backlog(
        len(pending),
        sum(one.size_bytes for one in pending),
        sum(one.end_offset - max(one.base_offset, end_offset) for one in pending),
        # The last record of a segment waits since about its own time.
        min((one.max_timestamp_ms for one in pending if one.max_timestamp_ms >= 0), default=-1),
    )


def _tail_lag(partition: HostedPartition) -> Backlog:
    active = partition.log.local_log.segments.active
    # Appends go on: each number is read once.
    end_offset, size_bytes = active.end_offset, active.size_bytes
    record_count = end_offset - max(active.base_offset, partition.tiered_end_offset)
    if record_count <= 0 or size_bytes == 0:
        return Backlog()
    waiting_bytes = size_bytes * record_count // (end_offset - active.base_offset)
    return Backlog(1, waiting_bytes, record_count, active.first_append_ms)
