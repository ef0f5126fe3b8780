"""The connection of the admin client, and its calls of pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from stratalog.client.channel import ServerChannel
from stratalog.client.pages import PageT, pages
from stratalog.v1 import admin_pb2_grpc


class AdminCalls:
    """Calls of the control plane. Belongs to one event loop."""

    def __init__(self, channel: ServerChannel) -> None:
        self._channel = channel
        self._stub = admin_pb2_grpc.AdminServiceStub(channel.grpc)

    def _pages(self, call: Callable[[str], Awaitable[PageT]]) -> AsyncIterator[PageT]:
        """The pages of a list, each by a call with its token."""
        return pages(self._channel, call)
