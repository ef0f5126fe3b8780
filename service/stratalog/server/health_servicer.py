"""Answers health checks, for the server and for each of its services.

Checks are answered from the begin of the start to the end of the stop. A stream that watches the health ends
when the server stops, once it has said so. The servicer of grpcio-health-checking would keep such streams,
and with them the stop, for the whole grace. It also writes to all of them under one lock, so that one whose
client does not read holds up the report of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from stratalog.server.fetch.closing import Closing
from stratalog.server.fetch.partition_signal import PartitionSignal, waiting_for
from stratalog.server.rpc.call_guard import Context, abort, guarded, send
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.method_handlers import Handlers, described_handlers, refusing_undecodable

# Its stubs have another class for the descriptor, and lack the messages of List.
_SERVICE = cast(ServiceDescriptor, health_pb2.DESCRIPTOR.services_by_name["Health"])
_LIST_RESPONSE: Any = vars(health_pb2)["HealthListResponse"]
SERVICE_NAME = _SERVICE.full_name
PATIENCE_S = 10.0
"""The message of a call has so long to come: it is tiny, and strangers may send it."""


class HealthServicer:
    """The handlers of `grpc.health.v1.Health`. Belongs to the event loop."""

    def __init__(self, names: Iterable[str], closing: Closing, statuses: ErrorStatuses) -> None:
        """The full names of the services that have the health of the server."""
        self.statuses = statuses
        self._names = frozenset(("", *names))
        self._closing = closing
        self.is_serving = False
        """Whether the server serves. Other threads may read it."""
        self._changed = PartitionSignal(asyncio.get_running_loop())

    def method_handlers(self) -> Handlers:
        """The handlers by the names of their calls."""
        return refusing_undecodable(described_handlers(self, _SERVICE))

    def report(self, *, is_serving: bool) -> None:
        """Change the health of the server and of all services. At first none serves."""
        self.is_serving = is_serving
        self._changed.notify()

    @guarded
    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._names:
            await abort(context, grpc.StatusCode.NOT_FOUND, "the server has no service of this name")
        return self._health_of(request.service)

    @guarded
    async def List(self, request: Message, context: Context) -> Message:
        response: Message = _LIST_RESPONSE(statuses={name: self._health_of(name) for name in self._names})
        return response

    @guarded
    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        sent: health_pb2.HealthCheckResponse | None = None
        with waiting_for([self._changed, self._closing.signal]) as changed:
            while True:
                changed.clear()
                health = self._health_of(request.service)
                if health != sent:
                    await send(context, health)
                    sent = health
                    # It may have changed meanwhile.
                    continue
                self._closing.check()
                await changed.wait()

    def _health_of(self, name: str) -> health_pb2.HealthCheckResponse:
        response = health_pb2.HealthCheckResponse
        if name not in self._names:
            return response(status=response.SERVICE_UNKNOWN)
        return response(status=response.SERVING if self.is_serving else response.NOT_SERVING)
