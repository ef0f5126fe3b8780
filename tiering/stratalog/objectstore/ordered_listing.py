"""Lists keys in byte order, page by page, from servers that may use another order.

A level is listed with the delimiter `/`, which returns its objects and its directories (common prefixes, with
their slash); directories are then listed in turn. Servers return a level in one of two orders:

* byte order of the entries, as S3 prescribes: `a  a!  a-b  a.b/  a/  a0`;
* byte order of the *names*, without the slash, as SeaweedFS does: `a  a/  a!  a-b  a.b/  a0`.

In both orders no later entry can sort before the largest name so far, so an entry waits in a heap only until
a name at or above it arrives. Memory holds a page and the waiting entries. A flat level, as all large levels
of the store's layout are, costs one request for each thousand objects.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.object_key import directory_of
from stratalog.objectstore.protocol import ObjectInfo


class ListingPage(NamedTuple):
    """One response of the server, in any order. `next_token` is None on the last page."""

    objects: Sequence[ObjectInfo]
    directories: Sequence[str]
    next_token: str | None


FetchPage = Callable[[str, str, str | None], ListingPage]
"""Maps (prefix, start_after, token) to a page of the level; start_after is empty for its beginning."""


def list_in_key_order(fetch_page: FetchPage, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
    """All objects below `prefix` and behind `start_after`, in byte order of their keys."""
    if start_after > prefix and not start_after.startswith(prefix):
        return
    for key, info in _level_in_key_order(fetch_page, prefix, _level_start(prefix, start_after)):
        if info is None:
            if key > start_after or start_after.startswith(key):
                yield from list_in_key_order(fetch_page, key, start_after)
        elif key > start_after:
            yield info


def _level_in_key_order(
    fetch_page: FetchPage, prefix: str, level_start: str
) -> Iterator[tuple[str, ObjectInfo | None]]:
    """The entries of one level; a directory has no info."""
    waiting: list[tuple[str, ObjectInfo | None]] = []
    largest_name = ""
    last_key = ""
    token: str | None = None
    is_last_page = False
    while not is_last_page:
        page = fetch_page(prefix, level_start, token)
        token = page.next_token
        is_last_page = token is None
        entries = [(info.key, info) for info in page.objects] + [
            (directory, None) for directory in page.directories
        ]
        for entry in entries:
            largest_name = max(largest_name, entry[0].rstrip("/"))
            heapq.heappush(waiting, entry)
        while waiting and (is_last_page or waiting[0][0] <= largest_name):
            key, info = heapq.heappop(waiting)
            if key < last_key:
                raise StoreCorruptError(
                    "the store lists keys in an unknown order; use another store", key=key
                )
            if key != last_key:
                yield key, info
            last_key = key


def _level_start(prefix: str, start_after: str) -> str:
    """The `start_after` for a level that skips no wanted key; empty for the level's beginning.

    In the order of names a directory comes before the place of its keys in byte order. Take the first segment
    of `start_after` behind the level's directory: only its part before a character below `/` sorts before all
    wanted entries in both orders. One character less also sorts before the directory of that very name.
    """
    if start_after <= prefix:
        return ""
    directory = directory_of(prefix)
    name = start_after[len(directory) :].partition("/")[0]
    ends = [index for index, character in enumerate(name) if character < "/"]
    sure = directory + name[: ends[0] if ends else len(name)][:-1]
    return sure if sure > prefix else ""
