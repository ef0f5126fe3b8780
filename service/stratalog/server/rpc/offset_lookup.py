"""Answers ListOffsets: the places of positions, each with the failure of its query."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.types import TopicPartition
from stratalog.log.isolation import Isolation
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.position import NO_OFFSET, NO_TIMESTAMP, find
from stratalog.v1 import log_pb2


class OffsetLookup:
    """Looks up offsets. Thread-safe: has no state. Reads disk and object store, so call it on a pool."""

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
            partition = self._partitions.partition(query.topic, query.partition, query.topic_id)
            partition.ensure_meant(query.leader_epoch)
            answer.topic_id = partition.identity.topic_id
            answer.leader_epoch = partition.identity.leader_epoch
            answer.offset, answer.timestamp_ms = find(partition, query.at, isolation)
        except Exception as error:  # noqa: BLE001 - a failure is inside its answer
            named = TopicPartition(query.topic, query.partition)
            answer.error.CopyFrom(self._statuses.status(error, "ListOffsets", named))
        return answer
