"""Answers ListOffsets: offsets by name, by timestamp, and of the largest timestamp, across both tiers.

By timestamp the answer is the first record, in the order of offsets, whose timestamp is at or behind the
wanted one. The object store is asked for what lies below the local log start, the local log for the rest, so
one bounded look into each tier is enough, and a range that lies in both is searched once. Local segments can
be deleted between the two looks: then neither saw their range, and both look again.

The isolation level says where the log ends, in either tier: a transaction may be open below the tiered end.
That end only grows, and the tier that is asked last is asked up to an end that is no older, so no record is
passed over between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.errors import InvalidRequestError
from stratalog.log.isolation import Isolation
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.v1 import log_pb2

NO_OFFSET = -1
NO_TIMESTAMP = -1


class Found(NamedTuple):
    """An offset, and the timestamp of its record if it is a record's."""

    offset: int
    timestamp_ms: int = NO_TIMESTAMP


NOT_FOUND = Found(NO_OFFSET)


class OffsetLookup:
    """Looks up offsets by timestamp. Thread-safe: has no state. Reads disk and object store, so call it on a
    pool."""

    def __init__(self, partitions: PartitionRegistry, statuses: ErrorStatuses) -> None:
        self._partitions = partitions
        self._statuses = statuses

    def answer_all(
        self, queries: Sequence[log_pb2.OffsetQuery], isolation: Isolation
    ) -> list[log_pb2.OffsetAnswer]:
        """An answer for each query, in order, with its failure inside."""
        return [self._answer(query, isolation) for query in queries]

    def _answer(self, query: log_pb2.OffsetQuery, isolation: Isolation) -> log_pb2.OffsetAnswer:
        answer = log_pb2.OffsetAnswer(
            topic=query.topic, partition=query.partition, offset=NO_OFFSET, timestamp_ms=NO_TIMESTAMP
        )
        try:
            partition = self._partitions.partition(query.topic, query.partition)
            partition.ensure_meant(query.topic_id, query.leader_epoch)
            answer.topic_id = partition.identity.topic_id
            answer.leader_epoch = partition.identity.leader_epoch
            answer.offset, answer.timestamp_ms = self._find(partition, query, isolation)
        except Exception as error:  # noqa: BLE001 - a failure is inside its answer
            answer.error.CopyFrom(self._statuses.status(error, "ListOffsets"))
        return answer

    def _find(self, partition: HostedPartition, query: log_pb2.OffsetQuery, isolation: Isolation) -> Found:
        if query.WhichOneof("at") == "timestamp_ms":
            return at_timestamp(partition, query.timestamp_ms, isolation)
        find = _BY_SPEC.get(query.spec)
        if find is None:
            raise InvalidRequestError("a query names an offset or a timestamp", spec=int(query.spec))
        if not partition.is_tiered or query.spec not in _TOLD_BY_STORE:
            partition.log.availability.require_disk()
        return find(partition, isolation)


def at_timestamp(partition: HostedPartition, timestamp_ms: int, isolation: Isolation) -> Found:
    """The first record at or above the log start whose timestamp is at least `timestamp_ms`."""
    if timestamp_ms < 0:
        raise InvalidRequestError(
            "a timestamp must not be negative, name an offset instead", timestamp_ms=timestamp_ms
        )

    def look(local_log_start_offset: int) -> Found:
        if partition.log_start_offset < local_log_start_offset:
            tiered = partition.tiered_offset_for_timestamp(timestamp_ms)
            if tiered is not None and tiered.offset < local_log_start_offset:
                is_seen = tiered.offset < partition.watermarks().end_offset(isolation)
                return Found(tiered.offset, tiered.timestamp_ms) if is_seen else NOT_FOUND
        local = partition.log.reader.offset_for_timestamp(timestamp_ms, isolation)
        return NOT_FOUND if local is None else Found(local.offset, local.timestamp_ms)

    return _in_both_tiers(partition, look)


def max_timestamp(partition: HostedPartition, isolation: Isolation) -> Found:
    """The first record with the largest timestamp of either tier."""

    def look(local_log_start_offset: int) -> Found:
        candidates: list[Found] = []
        local = partition.log.reader.max_timestamp(isolation)
        if local is not None:
            candidates.append(Found(local.offset, local.timestamp_ms))
        if partition.log_start_offset < local_log_start_offset:
            tiered = partition.tiered_max_timestamp(partition.watermarks().end_offset(isolation))
            if tiered is not None:
                candidates.append(Found(tiered.offset, tiered.timestamp_ms))
        return max(candidates, key=lambda found: (found.timestamp_ms, -found.offset), default=NOT_FOUND)

    return _in_both_tiers(partition, look)


def _in_both_tiers(partition: HostedPartition, look: Callable[[int], Found]) -> Found:
    """The result of `look(local_log_start_offset)` while that offset does not move. It moves only when local
    segments are deleted, so a second look is rare.
    """
    while True:
        local_log_start_offset = partition.log.offsets.local_log_start_offset
        found = look(local_log_start_offset)
        if partition.log.offsets.local_log_start_offset == local_log_start_offset:
            return found


_BY_SPEC: dict[int, Callable[[HostedPartition, Isolation], Found]] = {
    log_pb2.OFFSET_SPEC_EARLIEST: lambda partition, _: Found(partition.log_start_offset),
    log_pb2.OFFSET_SPEC_LATEST: lambda partition, isolation: Found(
        partition.watermarks().end_offset(isolation)
    ),
    log_pb2.OFFSET_SPEC_MAX_TIMESTAMP: max_timestamp,
    log_pb2.OFFSET_SPEC_EARLIEST_LOCAL: lambda partition, _: Found(
        partition.watermarks().local_log_start_offset
    ),
    # The inclusive form: -1 where nothing is committed in the object store.
    log_pb2.OFFSET_SPEC_LATEST_TIERED: lambda partition, _: Found(partition.tiered_end_offset - 1),
    log_pb2.OFFSET_SPEC_EARLIEST_PENDING_UPLOAD: lambda partition, _: Found(
        partition.log.offsets.earliest_pending_upload_offset if partition.is_tiered else NO_OFFSET
    ),
    log_pb2.OFFSET_SPEC_COMPACTED_UPTO: lambda partition, _: Found(partition.compacted_upto),
}
# The object store has these offsets of a tiered topic, also when a local disk fails.
_TOLD_BY_STORE = frozenset(
    {
        log_pb2.OFFSET_SPEC_EARLIEST,
        log_pb2.OFFSET_SPEC_LATEST_TIERED,
        log_pb2.OFFSET_SPEC_COMPACTED_UPTO,
    }
)
