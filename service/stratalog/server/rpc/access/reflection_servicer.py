"""The reflection of gRPC in the form of our handlers, so that the gate can stand before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any, cast

from grpc_reflection.v1alpha import reflection, reflection_pb2

from stratalog.server.rpc.call_guard import Context, decoded, guarded, send
from stratalog.server.rpc.error_statuses import ErrorStatuses

REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


class ReflectionServicer:
    """Describes the services to clients without the contract, such as grpcurl. Belongs to the event loop."""

    def __init__(self, services: Collection[str], statuses: ErrorStatuses) -> None:
        self._servicer = cast(Any, reflection).aio.ReflectionServicer(services)
        self.statuses = statuses

    @guarded
    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Context) -> None:
        async for response in self._servicer.ServerReflectionInfo(decoded(requests), context):
            await send(context, response)
