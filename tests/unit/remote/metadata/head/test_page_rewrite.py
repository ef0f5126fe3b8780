"""A fold reads and writes only the pages that hold changes, and pages stay neither tiny nor too large."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.remote.metadata.head.checkpoint_page import KeyRange, Page, PageRef, Row, RowKey, TableChange
from stratalog.remote.metadata.head.page_rewrite import divided, merged, plan_rewrites
from tests.support.tiered.checkpoint_pages import page_of_rows, reference

COLUMNS = ("key", "value")
PAGE_ROWS = 8


def page_of(keys: list[int]) -> Page:
    return page_of_rows([{"key": key, "value": "old"} for key in keys])


def ref_of(page: Page) -> PageRef:
    return reference("k", "n", page)


def change_of(rows: dict[int, str | None]) -> TableChange:
    keys = sorted(rows)
    fresh: list[tuple[RowKey, Row]] = [((key,), (key, rows[key])) for key in keys if rows[key] is not None]
    return TableChange(COLUMNS, 1, [KeyRange((key,), (key,)) for key in keys], fresh)


def folded(pages: list[Page], change: TableChange) -> tuple[list[Page], set[int]]:
    """The pages after a fold, and the indexes of those that it read."""
    rewrites = plan_rewrites(change, [ref_of(page) for page in pages], PAGE_ROWS)
    read = {one.first_page + offset for one in rewrites for offset in range(len(one.pages))}
    result: list[tuple[int, Page]] = [
        (number, page) for number, page in enumerate(pages) if number not in read
    ]
    for one in rewrites:
        mine = pages[one.first_page : one.first_page + len(one.pages)]
        result += [(one.first_page, part) for part in divided(merged(change, one, mine), PAGE_ROWS)]
    return [page for _, page in sorted(result, key=lambda item: item[1].key(0))], read


@pytest.mark.parametrize("seed", range(20))
def test_pages_hold_the_rows_of_a_dictionary(seed: int) -> None:
    random = Random(seed)
    expected: dict[int, str] = {}
    pages: list[Page] = []
    for _ in range(30):
        changes: dict[int, str | None] = {}
        for _ in range(random.randrange(1, 12)):
            key = random.randrange(60)
            changes[key] = random.choice((None, f"v{random.randrange(100)}"))
        pages, read = folded(pages, change_of(changes))
        for key, value in changes.items():
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
        rows = [page.row(index) for page in pages for index in range(page.row_count)]
        assert {row.integer("key"): row.text("value") for row in rows} == expected
        assert [row.integer("key") for row in rows] == sorted(expected)
        assert all(1 <= page.row_count <= PAGE_ROWS * 3 // 2 for page in pages)
        assert len(read) <= len(changes)


def test_only_pages_with_changes_are_read() -> None:
    pages = [page_of([0, 2, 4]), page_of([6, 8]), page_of([10, 12, 14, 16, 18])]
    assert folded(pages, change_of({7: "new"}))[1] == {1}
    assert folded(pages, change_of({3: None}))[1] == {0}
    assert folded(pages, change_of({99: "new"}))[1] == {2}
    assert folded(pages, change_of({}))[1] == set()


def test_small_neighbours_become_one_page() -> None:
    pages = [page_of([0]), page_of([2]), page_of([10, 12, 14, 16, 18])]
    after, _ = folded(pages, change_of({1: "new", 3: "new"}))
    assert [page.row_count for page in after] == [4, 5]


@pytest.mark.parametrize(("fresh_count", "sizes"), [(1, [9]), (4, [12]), (5, [6, 7]), (9, [5, 6, 6])])
def test_a_page_is_divided_in_equal_parts_once_it_is_half_as_large_again(
    fresh_count: int, sizes: list[int]
) -> None:
    after, _ = folded([page_of(list(range(8)))], change_of(dict.fromkeys(range(8, 8 + fresh_count), "new")))
    assert [page.row_count for page in after] == sizes
