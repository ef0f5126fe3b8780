"""Answers Metadata: the topics, their limits, and for each partition the server that owns it.

The newest claim of a shard, which the shard's metadata have in memory, names the owner: this server, or the
one that has taken over. So a server that was replaced shows its clients where to go. The topics are those
that this server hosts. A server that was replaced knows them as they were then, and says so of a topic that
it does not know.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import grpc

from stratalog.base.errors import AuthorizationFailedError, InvalidRequestError, LogStoreError
from stratalog.server.access.permissions import Operation
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.engine.storage_engine import StorageEngine
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_registry import HostedTopic
from stratalog.server.partitions.unknown_topic import unknown_topic
from stratalog.server.rpc.access.shown_topics import IsShown, shown_topics
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.paging import PageCursor
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2

MAX_TOPIC_COUNT = 10_000
UNKNOWN = -1


class MetadataServicer:
    """The handler of `LogService.Metadata`. Belongs to the event loop; answers are made on threads."""

    def __init__(
        self, engine: StorageEngine, pools: WorkerPools, settings: ServerSettings, statuses: ErrorStatuses
    ) -> None:
        self._shards = engine.tier.shards
        self._store_id = str(engine.tier.identity.store_id)
        self._registry = engine.topics.registry
        self._pools = pools
        self._max_request_bytes = settings.max_request_bytes
        self.statuses = statuses

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        codec = (log_pb2.MetadataRequest.FromString, log_pb2.MetadataResponse.SerializeToString)
        return {"Metadata": grpc.unary_unary_rpc_method_handler(self.Metadata, *codec)}

    @guarded
    async def Metadata(self, request: log_pb2.MetadataRequest, context: Context) -> log_pb2.MetadataResponse:
        if len(request.topics) > MAX_TOPIC_COUNT:
            raise InvalidRequestError(
                "a request names too many topics; name none for all of them, or use several requests",
                allowed=MAX_TOPIC_COUNT,
            )
        return await self._pools.compute(partial(self._answer, request, shown_topics()))

    def _answer(self, request: log_pb2.MetadataRequest, is_shown: IsShown) -> log_pb2.MetadataResponse:
        names = sorted(request.topics)
        twice = next((one for one, other in pairwise(names) if one == other), None)
        if twice is not None:
            raise InvalidRequestError("a topic comes twice in the request; name it once", topic=twice)
        cursor = PageCursor(request, f"metadata of {names}", str)
        topics = [(name, self._registry.find(name)) for name in names] or [
            (topic.name, topic) for topic in self._registry.topics() if is_shown(topic.name)
        ]
        page = cursor.page(
            topics,
            itemgetter(0),
            lambda one: len(one[1].all_partitions) if one[1] is not None and is_shown(one[0]) else 1,
        )
        return log_pb2.MetadataResponse(
            topics=[
                self._hidden(name)
                if not is_shown(name)
                else self._unknown(name)
                if topic is None
                else self._described(topic)
                for name, topic in page.items
            ],
            store_id=self._store_id,
            max_request_bytes=self._max_request_bytes,
            next_page_token=page.next_page_token,
        )

    def _hidden(self, name: str) -> log_pb2.TopicMetadata:
        """A name that the caller may not describe, with a topic or without."""
        error = AuthorizationFailedError(
            "the principal may not describe the topic; use another one, or add a permission to the server's"
            " access file",
            operation=Operation.DESCRIBE.value,
            topic=name,
        )
        return log_pb2.TopicMetadata(
            topic=name, max_message_bytes=UNKNOWN, error=self.statuses.status(error, "Metadata")
        )

    def _unknown(self, name: str) -> log_pb2.TopicMetadata:
        """A name without a topic. If this server was replaced, the topic may be newer."""
        error: LogStoreError = unknown_topic(name)
        try:
            self._shards.ensure_owned()
        except LogStoreError as replaced:
            error = replaced
        return log_pb2.TopicMetadata(
            topic=name, max_message_bytes=UNKNOWN, error=self.statuses.status(error, "Metadata")
        )

    def _described(self, topic: HostedTopic) -> log_pb2.TopicMetadata:
        return log_pb2.TopicMetadata(
            topic=topic.name,
            topic_id=str(topic.topic_id),
            partitions=[self._partition(one) for one in topic.all_partitions],
            max_message_bytes=UNKNOWN if topic.config is None else topic.config.max_message_bytes,
        )

    def _partition(self, partition: HostedPartition | OfflinePartition) -> log_pb2.PartitionMetadata:
        owner = partition.shard.owner
        found = log_pb2.PartitionMetadata(
            partition=partition.topic_partition.partition,
            endpoint=owner.endpoint,
            leader_epoch=owner.epoch,
        )
        if not partition.shard.is_fenced:
            error = _failure(partition)
            if error is not None:
                found.error.CopyFrom(self.statuses.status(error, "Metadata", partition.topic_partition))
        return found


def _failure(partition: HostedPartition | OfflinePartition) -> LogStoreError | None:
    """The reason why this server cannot serve the partition; None if it can."""
    if isinstance(partition, OfflinePartition):
        return partition.error()
    offline = partition.offline()
    return None if offline is None else offline.failure
