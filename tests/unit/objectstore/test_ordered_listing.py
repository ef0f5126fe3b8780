"""Listings come out in byte order from servers of either order, whatever the keys, pages and start."""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import combinations, islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.object_key import directory_of
from stratalog.objectstore.ordered_listing import ListingPage, list_in_key_order
from stratalog.objectstore.protocol import ObjectInfo

# Few characters, on both sides of the slash, so that names are often prefixes of each other.
segments = st.text(alphabet="a0-.", min_size=1, max_size=3).map(lambda text: "a" + text[1:])
keys = st.lists(segments, min_size=1, max_size=3).map("/".join)
prefixes = st.one_of(st.just(""), keys, keys.map(lambda key: key + "/"), keys.map(lambda key: key[:-1]))


class FakeServer:
    """Lists one level at a time. `by_name` is SeaweedFS's order and its harshest reading of StartAfter."""

    def __init__(self, stored: Set[str], page_size: int, *, by_name: bool) -> None:
        self.stored = stored
        self.page_size = page_size
        self.by_name = by_name
        self.request_count = 0

    def entries(self, prefix: str, start_after: str) -> list[str]:
        directory = directory_of(prefix)
        below = [key for key in self.stored if key.startswith(prefix)]
        found: set[str] = set()
        for key in below:
            name, slash, _ = key[len(directory) :].partition("/")
            entry = directory + name + slash
            if not slash and entry == prefix and prefix.endswith("/"):
                continue
            if self.by_name and directory + name > start_after:
                found.add(entry)
            if not self.by_name and key > start_after:
                found.add(entry)
        if self.by_name:
            return sorted(found, key=lambda entry: (entry.rstrip("/"), entry))
        return sorted(found)

    def fetch_page(self, prefix: str, start_after: str, token: str | None) -> ListingPage:
        assert token is None or int(token) > 0
        self.request_count += 1
        entries = self.entries(prefix, start_after)
        start = int(token or 0)
        end = start + self.page_size
        page = entries[start:end]
        return ListingPage(
            [ObjectInfo(entry, 0, 0) for entry in page if not entry.endswith("/")],
            [entry for entry in page if entry.endswith("/")],
            str(end) if end < len(entries) else None,
        )


def listed(server: FakeServer, prefix: str, start_after: str) -> list[str]:
    return [info.key for info in list_in_key_order(server.fetch_page, prefix, start_after)]


@given(
    stored=st.sets(keys, max_size=25),
    prefix=prefixes,
    start_after=st.one_of(st.just(""), keys, prefixes),
    page_size=st.integers(1, 5),
    by_name=st.booleans(),
)
def test_every_key_comes_once_and_in_order(
    stored: set[str], prefix: str, start_after: str, page_size: int, by_name: bool
) -> None:
    server = FakeServer(stored, page_size, by_name=by_name)
    expected = sorted(key for key in stored if key.startswith(prefix) and key > start_after)
    assert listed(server, prefix, start_after) == expected


def test_every_small_store_from_every_start() -> None:
    """All stores of these keys: chance alone seldom starts at the very name of a directory."""
    names = ("a", "a/a", "a-", "a-/a", "a.a", "a0")
    starts = ("", "a", "a-", "a-/", "a.", "a/", "a/0", "a0", "b")
    stores = (set(kept) for size in range(len(names) + 1) for kept in combinations(names, size))
    for stored, start_after, by_name in product(stores, starts, (True, False)):
        expected = sorted(key for key in stored if key > start_after)
        for page_size in (1, 2):
            assert listed(FakeServer(stored, page_size, by_name=by_name), "", start_after) == expected


@pytest.mark.parametrize("by_name", [True, False])
def test_a_flat_level_is_read_as_it_is_needed(by_name: bool) -> None:
    stored = {f"data/{number:020}-{number * 7919 % 1000:03}" for number in range(1000)}
    server = FakeServer(stored, 10, by_name=by_name)
    first = list(islice(list_in_key_order(server.fetch_page, "data/"), 5))
    assert [info.key for info in first] == sorted(stored)[:5]
    assert server.request_count == 1
    server.request_count = 0
    late = f"data/{950:020}-"
    assert listed(server, "data/", late) == [key for key in sorted(stored) if key > late]
    # 50 keys are wanted; the births that differ in their last digit only may come along.
    assert server.request_count <= 7


def test_an_unknown_order_is_an_error_and_no_loss() -> None:
    pages = {None: (["b"], "1"), "1": (["a"], None)}

    def fetch_page(_prefix: str, _start_after: str, token: str | None) -> ListingPage:
        found, next_token = pages[token]
        return ListingPage([ObjectInfo(key, 0, 0) for key in found], [], next_token)

    with pytest.raises(StoreCorruptError):
        list(list_in_key_order(fetch_page, ""))


def test_a_directory_that_is_named_on_two_pages_is_entered_once() -> None:
    fetch: Callable[[str, str, str | None], ListingPage] = lambda prefix, _start, token: (  # noqa: E731
        ListingPage([ObjectInfo("a/x", 0, 0)], [], None)
        if prefix == "a/"
        else ListingPage([], ["a/"], "1" if token is None else None)
    )
    assert [info.key for info in list_in_key_order(fetch, "")] == ["a/x"]
