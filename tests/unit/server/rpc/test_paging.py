"""Pages of a list that changes between them, and tokens that are not of the list."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import InvalidRequestError
from stratalog.base.types import TopicPartition
from stratalog.server.rpc.paging import MAX_PAGE_SIZE, Page, PageCursor, topic_partition_of
from stratalog.v1 import admin_pb2

NAMES = st.text(st.characters(codec="utf-8") | st.sampled_from("\n=ab"), min_size=1, max_size=4)


def request(size: int = 0, token: str = "") -> admin_pb2.ListTopicsRequest:
    return admin_pb2.ListTopicsRequest(page_size=size, page_token=token)


def name_page(names: Sequence[str], size: int = 0, token: str = "", *, of: str = "topics") -> Page[str]:
    return PageCursor(request(size, token), of, str).page(sorted(names), str)


def number_page(numbers: Sequence[int], size: int = 0, token: str = "") -> Page[int]:
    return PageCursor(request(size, token), "segments", int).page(sorted(numbers), int)


@given(
    st.sets(NAMES, max_size=30),
    st.lists(st.tuples(st.integers(1, 5), st.sets(NAMES, max_size=5), st.integers(0, 5))),
)
def test_what_is_there_throughout_is_in_one_page_exactly(
    names: set[str], changes: list[tuple[int, set[str], int]]
) -> None:
    """Names come and go between the pages, those at their borders too."""
    existing, throughout, seen, token = set(names), set(names), list[str](), ""
    for number in range(100):
        size, added, removed_count = changes[number % len(changes)] if changes else (3, set[str](), 0)
        page = name_page(sorted(existing), size, token)
        assert len(page.items) <= size
        seen += page.items
        token = page.next_page_token
        if not token:
            break
        assert page.items, "only the last page is empty"
        # The last name of the page goes first: the token has it.
        removed = [*reversed(page.items), *sorted(existing)][:removed_count]
        existing.difference_update(removed)
        throughout.difference_update(removed)
        existing |= added
    else:
        # Names that are added behind each page for ever would make a list without an end.
        return
    assert seen == sorted(set(seen)), "in order, none twice"
    assert throughout <= set(seen)


@given(st.sets(st.integers(0, 1 << 62), max_size=20), st.integers(1, 7))
def test_numbers_are_in_the_order_of_numbers(numbers: set[int], size: int) -> None:
    seen, token, page_count = list[int](), "", 0
    while True:
        page = number_page(sorted(numbers), size, token)
        seen += page.items
        token, page_count = page.next_page_token, page_count + 1
        if not token:
            break
    assert seen == sorted(numbers)
    assert page_count == max(1, -(-len(numbers) // size)), "no empty page at the end"


@given(st.sets(st.tuples(st.sampled_from(["a", "a-1", "b"]), st.integers(0, 12))), st.integers(1, 4))
def test_partitions_are_in_the_order_of_topic_and_number(keys: set[tuple[str, int]], size: int) -> None:
    partitions, seen, token = sorted(TopicPartition(*key) for key in keys), list[TopicPartition](), ""
    while True:
        cursor = PageCursor(request(size, token), "partitions", topic_partition_of)
        page = cursor.page(partitions, lambda one: one)
        seen += page.items
        token = page.next_page_token
        if not token:
            break
    assert seen == partitions


@pytest.mark.parametrize(
    ("size", "expected"), [(0, MAX_PAGE_SIZE), (1, 1), (MAX_PAGE_SIZE + 1, MAX_PAGE_SIZE)]
)
def test_the_size_of_a_page_is_bounded(size: int, expected: int) -> None:
    page = number_page(range(MAX_PAGE_SIZE + 5), size)
    assert len(page.items) == expected
    assert page.next_page_token


def test_a_list_that_fills_its_page_has_no_other_page() -> None:
    assert number_page(range(MAX_PAGE_SIZE)).next_page_token == ""
    assert number_page([]) == Page([], "")


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        number_page([], -1)
    assert caught.value.fields == {"page_size": -1}


TOKEN = name_page(["a", "b"], 1).next_page_token
OF_ANOTHER_LIST = name_page(["a", "b"], 1, of="topics of another store").next_page_token
OF_NUMBERS = number_page([1, 2], 1).next_page_token
WITHOUT_ITS_CHECKSUM = base64.urlsafe_b64encode(b"\0\0\0\0topics\na").decode()


@pytest.mark.parametrize(
    "token",
    [
        "a",
        "topics",
        "ÄÖÜ",
        " " + TOKEN,
        TOKEN + "\n",
        TOKEN[:-4],
        TOKEN + "=",
        TOKEN.swapcase(),
        OF_ANOTHER_LIST,
        OF_NUMBERS,
        WITHOUT_ITS_CHECKSUM,
    ],
)
def test_another_text_than_a_token_of_the_list_is_refused(token: str) -> None:
    assert name_page(["a", "b"], 1, TOKEN).items == ["b"]
    with pytest.raises(InvalidRequestError):
        name_page(["a", "b"], 1, token)


@given(st.binary(max_size=40), st.text(max_size=40))
def test_any_text_is_a_token_or_refused(data: bytes, text: str) -> None:
    for token in (base64.urlsafe_b64encode(data).decode(), text):
        if token:
            with pytest.raises(InvalidRequestError):
                number_page([1, 2, 3], 1, token)


def test_a_number_of_another_form_is_refused() -> None:
    """Each key has one token, so that tokens can be compared."""
    with pytest.raises(InvalidRequestError):
        number_page([1, 2, 3], 1, name_page(["+1", "2"], 1, of="segments").next_page_token)
