"""Pages of long lists: one item behind the other by a key that does not change, and tokens that name the key.

A token has the key of the last item of its page, and the next page begins behind that key. So items that come
and go between two pages move no other item, and the server keeps nothing. A token also has the list that it
is for, and a checksum: a text that is not a token of this list is refused. Callers must not look inside, so
it is Base64.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from stratalog.base.errors import InvalidRequestError

Item = TypeVar("Item")
Key = TypeVar("Key", str, int)

MAX_PAGE_SIZE = 1_000
"""Items of the largest page, and of a page whose request has no size."""

_CHECKSUM_BYTES = 4


class PagedRequest(Protocol):
    """A request for one page of a list."""

    @property
    def page_size(self) -> int: ...

    @property
    def page_token(self) -> str: ...


class Page(NamedTuple, Generic[Item]):
    """Some items of a list in order."""

    items: Sequence[Item]
    next_page_token: str
    """Empty if no item follows."""


class PageCursor(Generic[Key]):
    """A place in a list whose items are in the order of their keys, and the size of the page there.
    Immutable."""

    def __init__(self, request: PagedRequest, list_name: str, key_type: type[Key]) -> None:
        """`list_name`: one line that names the list, such as `segments of UUID-3`. Raises
        InvalidRequestError for a negative size, and for a text that is not a token of this list.
        """
        if request.page_size < 0:
            raise InvalidRequestError(
                "the size of a page is negative; use 0 for the largest size", page_size=request.page_size
            )
        self.size = min(request.page_size or MAX_PAGE_SIZE, MAX_PAGE_SIZE)
        self.after: Key | None = (
            _key_of(request.page_token, list_name, key_type) if request.page_token else None
        )
        """The key of the last item before the page; None if the page is the first one."""
        self._list_name = list_name

    def page(self, items: Sequence[Item], key: Callable[[Item], Key]) -> Page[Item]:
        """The page of `items`, which ascend by `key`. Items up to the page, and items behind it except for
        the first, may be left out.
        """
        start = 0 if self.after is None else bisect_right(items, self.after, key=key)
        chosen = items[start : start + self.size]
        is_last = start + self.size >= len(items)
        return Page(chosen, "" if is_last else _token(self._list_name, key(chosen[-1])))


def _token(list_name: str, key: str | int) -> str:
    content = f"{list_name}\n{key}".encode()
    checksum = zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "big")
    return base64.urlsafe_b64encode(checksum + content).decode()


def _key_of(token: str, list_name: str, key_type: type[Key]) -> Key:
    """The key in a token of that list. Raises InvalidRequestError."""
    try:
        content = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)[_CHECKSUM_BYTES:]
        key = key_type(content.decode().partition("\n")[2])
    except (binascii.Error, ValueError):
        raise _refusal() from None
    if _token(list_name, key) != token:
        raise _refusal()
    return key


def _refusal() -> InvalidRequestError:
    return InvalidRequestError(
        "the page token is not one of this list; use `next_page_token` of the page before, with the same"
        " request, or leave it out for the first page"
    )
