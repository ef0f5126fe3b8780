"""Reads lists that a server sends in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from stratalog.client.channel import ServerChannel
from stratalog.client.retry import RetryPolicy, retrying


class PagedResponse(Protocol):
    """An answer with one page of a list."""

    @property
    def next_page_token(self) -> str: ...


class PagedRequest(Protocol):
    """A request for one page of a list."""

    page_token: str


PageT = TypeVar("PageT", bound=PagedResponse)
RequestT = TypeVar("RequestT", bound=PagedRequest)


async def pages(
    channel: ServerChannel, retry: RetryPolicy, call: Callable[[str], Awaitable[PageT]]
) -> AsyncIterator[PageT]:
    """The pages of a list, each by a call with its token. Repeats a call as other reads are. Raises
    LogStoreError.
    """
    token = ""
    while True:
        page = await retrying(retry, partial(_page, channel, call, token))
        yield page
        token = page.next_page_token
        if not token:
            return


def at_page(request: RequestT, page_token: str) -> RequestT:
    """The request, for the page of that token from now on."""
    request.page_token = page_token
    return request


async def _page(channel: ServerChannel, call: Callable[[str], Awaitable[PageT]], token: str) -> PageT:
    return await channel.call(call(token))
