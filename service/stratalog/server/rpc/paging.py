"""Pages of long lists: one item behind the other by a key that does not change, and tokens that name the key.

A token has the key of the last item of its page, and the next page begins behind that key. So items that come
and go between two pages move no other item, and the server keeps nothing. A token also has a checksum of the
key and of the list that it is for: a text that is not a token of this list is refused. Callers must not look
inside, so it is Base64.

Some items are themselves lists: a topic has partitions. Their number is the item's weight, and a page ends
before the one that would make it too heavy, so that an answer stays below the 4 MiB that gRPC clients take.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from stratalog.base.errors import InvalidRequestError
from stratalog.base.types import TopicIdPartition, TopicPartition

Item = TypeVar("Item")


class PageKey(Protocol):
    """The place of an item in its list. `str()` has all of it, on one line or several."""

    def __lt__(self, other: Any, /) -> bool: ...


Key = TypeVar("Key", bound=PageKey)

MAX_PAGE_SIZE = 1_000
"""Items of the largest page, and of a page whose request has no size."""

MAX_PAGE_WEIGHT = 10_000
"""The weight of the heaviest page of several items."""

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

    def __init__(self, request: PagedRequest, list_name: str, key_of: Callable[[str], Key]) -> None:
        """`list_name` names the list and the other fields of its request, such as `segments of UUID-3`.
        `key_of` reads the text of a key, and raises ValueError. Raises InvalidRequestError for a negative
        size, and for a text that is not a token of this list.
        """
        if request.page_size < 0:
            raise InvalidRequestError(
                "the size of a page is negative; use 0 for the largest size", page_size=request.page_size
            )
        self.size = min(request.page_size or MAX_PAGE_SIZE, MAX_PAGE_SIZE)
        self.after: Key | None = _key(request.page_token, list_name, key_of) if request.page_token else None
        """The key of the last item before the page; None if the page is the first one."""
        self._list_name = list_name

    def page(
        self,
        items: Sequence[Item],
        key: Callable[[Item], Key],
        weight: Callable[[Item], int] = lambda _: 1,
    ) -> Page[Item]:
        """The page of `items`, which ascend by `key`. Items up to the page, and items behind it except for
        the first, may be left out.
        """
        start = 0 if self.after is None else bisect_right(items, self.after, key=key)
        end, total_weight = start, 0
        for item in items[start : start + self.size]:
            total_weight += weight(item)
            if total_weight > MAX_PAGE_WEIGHT and end > start:
                break
            end += 1
        chosen = items[start:end]
        return Page(chosen, "" if end == len(items) else _token(self._list_name, key(chosen[-1])))


def topic_partition_of(text: str) -> TopicPartition:
    """The key whose `str()` is the text. Raises ValueError."""
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


def topic_id_partition_of(text: str) -> TopicIdPartition:
    """The key whose `str()` is the text. Raises ValueError."""
    topic_id, _, partition = text.rpartition(":")
    return TopicIdPartition(UUID(topic_id), int(partition))


def number_and_text(number: int, text: str) -> str:
    """The text of a key of a number and of a text that may have anything in it."""
    return f"{number}:{text}"


def number_and_text_of(text: str) -> tuple[int, str]:
    """The parts of what `number_and_text` returned. Raises ValueError."""
    number, _, rest = text.partition(":")
    return int(number), rest


def _token(list_name: str, key: PageKey) -> str:
    text = str(key)
    checksum = zlib.crc32(f"{list_name}\n{text}".encode()).to_bytes(_CHECKSUM_BYTES, "big")
    return base64.urlsafe_b64encode(checksum + text.encode()).decode()


def _key(token: str, list_name: str, key_of: Callable[[str], Key]) -> Key:
    """The key in a token of that list. Raises InvalidRequestError."""
    try:
        content = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        key = key_of(content[_CHECKSUM_BYTES:].decode())
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
