"""Answers ListOffsets: the places of positions, each with the failure of its query.

What is known in memory is looked up in one job. Searches through records go on beside each other where their
partitions are in different log directories, and one after the other in the same, so that a call never takes
more than one thread of a directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from stratalog.base.errors import LogStoreError, OverloadedError
from stratalog.base.types import TopicPartition
from stratalog.log.isolation import Isolation
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.position import NO_OFFSET, NO_TIMESTAMP, at_once, find, searches_records
from stratalog.server.rpc.start_lookup import searched
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2


class OffsetLookup:
    """Looks up offsets. Belongs to the event loop; `_answer_known` runs on a thread."""

    def __init__(self, partitions: PartitionRegistry, pools: WorkerPools, statuses: ErrorStatuses) -> None:
        self._partitions = partitions
        self._pools = pools
        self._statuses = statuses

    async def answer_all(
        self, queries: Sequence[log_pb2.OffsetQuery], isolation: Isolation
    ) -> list[log_pb2.OffsetAnswer]:
        """An answer for each query, in order, with its failure inside. Raises OverloadedError if too many
        look-ups in the object store wait."""
        answers = [
            log_pb2.OffsetAnswer(
                topic=query.topic, partition=query.partition, offset=NO_OFFSET, timestamp_ms=NO_TIMESTAMP
            )
            for query in queries
        ]
        known: list[int] = []
        searching: dict[str, list[int]] = {}
        for place, query in enumerate(queries):
            directory = self._directory_of(query) if searches_records(query.at) else None
            (known if directory is None else searching.setdefault(directory, [])).append(place)
        if known:
            pairs = [(queries[place], answers[place]) for place in known]
            await self._pools.compute(partial(self._answer_known, pairs, isolation))
        await asyncio.gather(
            *(
                self._search([(queries[place], answers[place]) for place in places], isolation)
                for places in searching.values()
            )
        )
        return answers

    def _directory_of(self, query: log_pb2.OffsetQuery) -> str | None:
        """The log directory of the query's partition; None if it has none here."""
        try:
            return self._partitions.partition(query.topic, query.partition, query.topic_id).log_dir
        except LogStoreError:
            # Its answer has the error.
            return None

    def _answer_known(
        self, pairs: Sequence[tuple[log_pb2.OffsetQuery, log_pb2.OffsetAnswer]], isolation: Isolation
    ) -> None:
        for query, answer in pairs:
            try:
                partition = self._meant(query, answer)
                answer.offset, answer.timestamp_ms = at_once(find(partition, query.at, isolation))
            except Exception as error:  # noqa: BLE001 - a failure is inside its answer
                self._fail(answer, error)

    async def _search(
        self, pairs: Sequence[tuple[log_pb2.OffsetQuery, log_pb2.OffsetAnswer]], isolation: Isolation
    ) -> None:
        for query, answer in pairs:
            try:
                partition = self._meant(query, answer)
                search = find(partition, query.at, isolation)
                found = await searched(search, partition, self._pools, self._pools.cold_lookup)
                answer.offset, answer.timestamp_ms = found
            except OverloadedError:
                raise
            except Exception as error:  # noqa: BLE001 - a failure is inside its answer
                self._fail(answer, error)

    def _meant(self, query: log_pb2.OffsetQuery, answer: log_pb2.OffsetAnswer) -> HostedPartition:
        """The partition of a query, whose identity goes into the answer. Raises LogStoreError."""
        partition = self._partitions.partition(query.topic, query.partition, query.topic_id)
        partition.ensure_meant(query.leader_epoch)
        answer.topic_id = partition.identity.topic_id
        answer.leader_epoch = partition.identity.leader_epoch
        return partition

    def _fail(self, answer: log_pb2.OffsetAnswer, error: Exception) -> None:
        named = TopicPartition(answer.topic, answer.partition)
        answer.error.CopyFrom(self._statuses.status(error, "ListOffsets", named))
