"""Listings in byte order from servers that have an order of their own, a page at a time.

A level is listed with the delimiter `/`, which gives its objects and its directories (common prefixes, with
their slash); directories are then entered in their turn. Servers send a level in one of two orders:

* byte order of the entries as they stand, as S3 prescribes: `a  a!  a-b  a.b/  a/  a0`;
* byte order of the *names*, without the slash, as SeaweedFS does: `a  a/  a!  a-b  a.b/  a0`.

Either way no later entry can sort before the largest name seen so far, so an entry waits in a heap only until
a name at or above it has been seen. Memory is a page and the entries that wait; a flat level, as all large
ones of the store's layout are, costs one request for each thousand objects.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.object_key import directory_of
from stratalog.objectstore.protocol import ObjectInfo


class ListingPage(NamedTuple):
    """One answer of the server: each part in any order. `next_token` is None on the last page."""

    objects: Sequence[ObjectInfo]
    directories: Sequence[str]
    next_token: str | None


FetchPage = Callable[[str, str, str | None], ListingPage]
"""(prefix, start_after, token) to a page of the level; start_after is empty for the level's beginning."""


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
                raise StoreCorruptError("the store lists keys in an order that cannot be followed", key=key)
            if key != last_key:
                yield key, info
            last_key = key


def _level_start(prefix: str, start_after: str) -> str:
    """Where the server may begin with a level so that nothing wanted is left out; empty for its beginning.

    In the order of names a directory comes earlier than its keys do in byte order: of the first segment
    behind the level's directory, only what stands before a character below `/` is sure to lie before all that
    is wanted, and a character less of it lies before the directory of that very name too.
    """
    if start_after <= prefix:
        return ""
    directory = directory_of(prefix)
    name = start_after[len(directory) :].partition("/")[0]
    ends = [index for index, character in enumerate(name) if character < "/"]
    sure = directory + name[: ends[0] if ends else len(name)][:-1]
    return sure if sure > prefix else ""
