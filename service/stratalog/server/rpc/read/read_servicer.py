"""Read: the server stream of plain records."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import grpc

from stratalog.server.rpc.call_guard import Context, announce, call_at_end, guarded, send
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.read.record_reads import RecordReads
from stratalog.v1 import log_pb2


class ReadServicer:
    """A part of `LogService`; see `method_handlers`. Belongs to the event loop."""

    def __init__(self, reads: RecordReads, statuses: ErrorStatuses) -> None:
        self._reads = reads
        self.statuses = statuses

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handler by the name of its call. It encodes its responses itself."""
        codec = (log_pb2.ReadRequest.FromString, None)
        return {"Read": grpc.unary_stream_rpc_method_handler(self.Read, *codec)}

    @guarded
    async def Read(self, request: log_pb2.ReadRequest, context: Context) -> None:
        read = await self._reads.begin(request)
        call_at_end(read.close)
        await announce(context)
        async with aclosing(read.responses()) as responses:
            async for response in responses:
                await send(context, response)
