"""The calls by which writers get what their appends name: InitProducer."""

from __future__ import annotations

from typing import Any

import grpc

from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.topics.producer_ids import ProducerIds
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2

FIRST_EPOCH = 0
"""The epoch of a new producer."""


class ProducerServicer:
    """A part of `LogService`; see `method_handlers`. Belongs to the event loop."""

    def __init__(self, producer_ids: ProducerIds, pools: WorkerPools, statuses: ErrorStatuses) -> None:
        self._producer_ids = producer_ids
        self._pools = pools
        self.statuses = statuses

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers by the names of their calls."""
        return {
            "InitProducer": grpc.unary_unary_rpc_method_handler(
                self.InitProducer,
                log_pb2.InitProducerRequest.FromString,
                log_pb2.InitProducerResponse.SerializeToString,
            )
        }

    @guarded
    async def InitProducer(
        self, request: log_pb2.InitProducerRequest, context: Context
    ) -> log_pb2.InitProducerResponse:
        # The next block comes from the store.
        producer_id = await self._pools.task(self._producer_ids.give)
        return log_pb2.InitProducerResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)
