"""The calls by which writers get what their appends name: InitProducer and Fence."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc

from stratalog.server.engine.storage_engine import HostedTopics
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2

FIRST_EPOCH = 0
"""The epoch of a new producer."""


class ProducerServicer:
    """A part of `LogService`; see `method_handlers`. Belongs to the event loop."""

    def __init__(self, topics: HostedTopics, pools: WorkerPools, statuses: ErrorStatuses) -> None:
        self._producer_ids = topics.producer_ids
        self._registry = topics.registry
        self._fencing = topics.fencing
        self._pools = pools
        self.statuses = statuses

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers by the names of their calls."""
        return {
            "InitProducer": grpc.unary_unary_rpc_method_handler(
                self.InitProducer,
                log_pb2.InitProducerRequest.FromString,
                log_pb2.InitProducerResponse.SerializeToString,
            ),
            "Fence": grpc.unary_unary_rpc_method_handler(
                self.Fence, log_pb2.FenceRequest.FromString, log_pb2.FenceResponse.SerializeToString
            ),
        }

    @guarded
    async def InitProducer(
        self, request: log_pb2.InitProducerRequest, context: Context
    ) -> log_pb2.InitProducerResponse:
        # The next block comes from the store.
        producer_id = await self._pools.task(self._producer_ids.give)
        return log_pb2.InitProducerResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)

    @guarded
    async def Fence(self, request: log_pb2.FenceRequest, context: Context) -> log_pb2.FenceResponse:
        partition = self._registry.partition(request.topic, request.partition, request.topic_id)
        partition.ensure_served()
        current_token = request.current_token if request.HasField("current_token") else None
        await self._pools.task(partial(self._fencing.commit, partition, request.token, current_token))
        return log_pb2.FenceResponse(log_end_offset=await partition.writer.settled())
