"""Decides which pages of a table a fold rewrites, and merges their rows with the changes.

Both are pure. The pages of a table divide the keys: each page has those from its first key up to the first
key of the next page; keys below the first page join it. Neighbours that are rewritten and have become small
are written as one page.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.remote.metadata.head.checkpoint_page import (
    KeyRange,
    Page,
    PageRef,
    Row,
    RowKey,
    TableChange,
)
from stratalog.remote.metadata.head.page_columns import Column, joined, packed, taken


class PageRewrite(NamedTuple):
    """Neighbouring pages to read, and the changes in their range."""

    first_page: int
    """The index of the first one among the pages of the table."""
    pages: tuple[PageRef, ...]
    gone: Sequence[KeyRange]
    fresh: Sequence[tuple[RowKey, Row]]


def plan_rewrites(change: TableChange, known: Sequence[PageRef], page_rows: int) -> list[PageRewrite]:
    """The pages that hold changes, in order, with the changes of each. Without known pages there is one
    rewrite for each page to write."""
    if not known:
        return [
            PageRewrite(start, (), (), change.fresh[start : start + page_rows])
            for start in range(0, len(change.fresh), page_rows)
        ]
    rewrites: list[PageRewrite] = []
    row_count = 0
    for one in _touched(change, known):
        count = one.pages[0].row_count + len(one.fresh)
        last = rewrites[-1] if rewrites else None
        is_neighbour = last is not None and last.first_page + len(last.pages) == one.first_page
        if last is not None and is_neighbour and row_count + count <= page_rows // 2:
            rewrites[-1] = _joined(last, one)
            row_count += count
        else:
            rewrites.append(one)
            row_count = count
    return rewrites


def _touched(change: TableChange, known: Sequence[PageRef]) -> Iterator[PageRewrite]:
    """Each page that holds changes."""
    firsts = [page.first_key for page in known]
    lasts = [page.last_key for page in known]
    gone: dict[int, dict[KeyRange, None]] = defaultdict(dict)
    fresh: dict[int, list[tuple[RowKey, Row]]] = defaultdict(list)
    at = 0
    for keys in change.gone:
        for number in range(bisect.bisect_left(lasts, keys.first), bisect.bisect_right(firsts, keys.last)):
            gone[number][keys] = None
        while at < len(change.fresh) and change.fresh[at][0] <= keys.last:
            number = max(bisect.bisect_right(firsts, change.fresh[at][0]) - 1, 0)
            gone[number][keys] = None
            fresh[number].append(change.fresh[at])
            at += 1
    assert at == len(change.fresh), "every fresh row lies in a range that goes"
    for number in sorted(gone):
        yield PageRewrite(number, (known[number],), tuple(gone[number]), fresh.get(number, ()))


def merged(change: TableChange, rewrite: PageRewrite, pages: Sequence[Page]) -> Page:
    """The rows of the pages without those that go, and with the fresh ones. Unknown columns stay, also those
    of a row that is replaced."""
    names = {name for page in pages for name in page.columns}
    added = tuple(sorted(names.difference(change.columns)))
    columns = change.columns + added
    base = _joined_pages(columns, change.key_size, pages)
    rows = _MergedRows(base, len(added))
    at = fresh_at = 0
    for keys in rewrite.gone:
        start, stop = base.index_of(keys.first), base.index_behind(keys.last)
        rows.keep(at, start)
        extras = _extras(base, range(start, stop), len(change.columns)) if added else {}
        while fresh_at < len(rewrite.fresh) and rewrite.fresh[fresh_at][0] <= keys.last:
            key, row = rewrite.fresh[fresh_at]
            rows.append(row, extras.get(key))
            fresh_at += 1
        at = stop
    rows.keep(at, base.row_count)
    for _, row in rewrite.fresh[fresh_at:]:
        rows.append(row, None)
    return Page(columns, rows.values(), rows.count, change.key_size, base.what)


class _MergedRows:
    """Collects the rows of a page, some of them from a page that it replaces. Not thread-safe: one call uses
    it."""

    def __init__(self, base: Page, added_count: int) -> None:
        """`added_count`: how many of the last columns are unknown to this version."""
        self._base = base
        self._nothing = (None,) * added_count
        self._fresh: list[Sequence[object]] = []
        self._ranges: list[range] = []
        """The rows by their numbers in the replaced page; those behind it are the fresh ones."""
        self.count = 0

    def keep(self, start: int, end: int) -> None:
        """Take these rows of the replaced page."""
        if start < end:
            self._ranges.append(range(start, end))
            self.count += end - start

    def append(self, row: Row, extras: Sequence[object] | None) -> None:
        """Take a fresh row, with these values of unknown columns."""
        number = self._base.row_count + len(self._fresh)
        last = self._ranges[-1] if self._ranges else range(0)
        if last.stop == number > self._base.row_count:
            self._ranges[-1] = range(last.start, number + 1)
        else:
            self._ranges.append(range(number, number + 1))
        self._fresh.append((*row, *(self._nothing if extras is None else extras)))
        self.count += 1

    def values(self) -> Sequence[Column]:
        """The columns of all rows."""
        columns = self._base.values
        if self._fresh:
            fresh = map(packed, zip(*self._fresh, strict=True))
            columns = [joined(pair) for pair in zip(columns, fresh, strict=True)]
        return [taken(column, self._ranges) for column in columns]


def _joined_pages(columns: tuple[str, ...], key_size: int, pages: Sequence[Page]) -> Page:
    """The rows of all pages, with these columns."""
    stored = [page.with_columns(columns) for page in pages]
    if len(stored) == 1:
        return stored[0]
    what = stored[0].what if stored else "checkpoint page"
    values = [joined([page.values[number] for page in stored]) for number in range(len(columns))]
    return Page(columns, values, sum(page.row_count for page in stored), key_size, what)


def divided(page: Page, page_rows: int) -> Iterator[Page]:
    """The rows as pages of one size, about `page_rows` each. A page is not divided before it has half as many
    more: of a fold that adds a few rows to many full pages, each would become two."""
    count = page.row_count
    part_count = 1 if count <= page_rows + page_rows // 2 else -(-count // page_rows)
    cuts = [count * number // part_count for number in range(part_count + 1)]
    for start, end in itertools.pairwise(cuts):
        if start < end:
            yield page.part(start, end)


def _joined(left: PageRewrite, right: PageRewrite) -> PageRewrite:
    gone = tuple(dict.fromkeys((*left.gone, *right.gone)))
    return PageRewrite(left.first_page, left.pages + right.pages, gone, (*left.fresh, *right.fresh))


def _extras(page: Page, indexes: range, known_count: int) -> dict[RowKey, Sequence[object]]:
    """The values of the columns behind the known ones, by key."""
    unknown = page.values[known_count:]
    return {page.key(index): [column[index] for column in unknown] for index in indexes}
