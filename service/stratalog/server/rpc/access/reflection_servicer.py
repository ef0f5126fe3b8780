"""The reflection of gRPC in the form of our handlers, so that the gate can stand before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any, cast

from grpc_reflection.v1alpha import reflection, reflection_pb2

from stratalog.server.fetch.closing import Closing
from stratalog.server.fetch.partition_signal import waiting_for
from stratalog.server.rpc.call_guard import Context, decoded, guarded, send
from stratalog.server.rpc.error_statuses import ErrorStatuses

REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


class ReflectionServicer:
    """Describes the services to clients without the contract, such as grpcurl. Belongs to the event loop."""

    def __init__(self, services: Collection[str], closing: Closing, statuses: ErrorStatuses) -> None:
        self._servicer = cast(Any, reflection).aio.ReflectionServicer(services)
        self._closing = closing
        self.statuses = statuses

    @guarded
    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Context) -> None:
        # An answer on its way is not cut off: the transport would forget that it has sent the headers, and
        # the call would never end.
        sending = asyncio.Lock()
        answering = asyncio.ensure_future(self._answer(requests, context, sending))
        with waiting_for([self._closing.signal]) as is_closing:
            ending = asyncio.ensure_future(is_closing.wait())
            try:
                await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    # It would keep the stop for the whole grace.
                    async with sending:
                        self._closing.check()
                await answering
            finally:
                answering.cancel()
                ending.cancel()

    async def _answer(self, requests: AsyncIterator[Any], context: Context, sending: asyncio.Lock) -> None:
        async for response in self._servicer.ServerReflectionInfo(decoded(requests), context):
            async with sending:
                await send(context, response)
