"""Reads lists that a server sends in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from stratalog.client.channel import AnswerPart, ServerChannel, no_parts


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
    channel: ServerChannel,
    call: Callable[[str], Awaitable[PageT]],
    parts: Callable[[PageT], Iterable[AnswerPart]] = no_parts,
) -> AsyncIterator[PageT]:
    """The pages of a list, each by a call with its token. Repeats a call as other reads are; `parts` as in
    `ServerChannel.call`. Raises LogStoreError.
    """
    token = ""
    while True:
        page = await channel.call(call(token), is_repeatable=True, parts=parts)
        yield page
        token = page.next_page_token
        if not token:
            return


def at_page(request: RequestT, page_token: str) -> RequestT:
    """The request, for the page of that token from now on."""
    request.page_token = page_token
    return request
