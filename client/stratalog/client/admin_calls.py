"""The connection of the admin client, and its calls of pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from stratalog.client.channel import ServerChannel
from stratalog.client.retry import RetryPolicy, retrying
from stratalog.v1 import admin_pb2_grpc

CALL_TIMEOUT_S = 30.0


class PagedResponse(Protocol):
    """An answer with one page of a list."""

    @property
    def next_page_token(self) -> str: ...


PageT = TypeVar("PageT", bound=PagedResponse)


class AdminCalls:
    """Calls of the control plane. Belongs to one event loop."""

    def __init__(self, channel: ServerChannel, retry: RetryPolicy) -> None:
        self._channel = channel
        self._retry = retry
        self._stub = admin_pb2_grpc.AdminServiceStub(channel.grpc)

    async def _pages(self, call: Callable[[str], Awaitable[PageT]]) -> AsyncIterator[PageT]:
        """The pages of a list, each by a call with its token. Repeats a call as other reads are."""
        token = ""
        while True:
            page = await retrying(self._retry, partial(self._page, call, token))
            yield page
            token = page.next_page_token
            if not token:
                return

    async def _page(self, call: Callable[[str], Awaitable[PageT]], token: str) -> PageT:
        return await self._channel.call(call(token))
