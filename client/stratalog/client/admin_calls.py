"""The connection of the admin client, and its calls of pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.pages import PageT, pages
from stratalog.v1 import admin_pb2_grpc


class AdminCalls:
    """Calls of the control plane. Belongs to one event loop."""

    def __init__(self, owners: OwnerChannels) -> None:
        self._owners = owners
        self._channel = owners.channel
        """The client's connection: any server answers calls about topics."""
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel.grpc)

    def _pages(self, call: Callable[[str], Awaitable[PageT]]) -> AsyncIterator[PageT]:
        """The pages of a list, each by a call with its token."""
        return pages(self._channel, call)
