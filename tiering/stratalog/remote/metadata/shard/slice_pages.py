"""The slices in the pages of one checkpoint, found by partition and offset.

Pages divide the slices of a shard by partition and base offset. The list of pages is in memory, a page is
loaded when a slice of it is wanted, and only that slice is parsed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder, CheckpointRoot
from stratalog.remote.metadata.head.checkpoint_page import Page, PageRef
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.slice_briefs import SliceBriefs
from stratalog.remote.metadata.shard.slice_columns import SliceColumns
from stratalog.remote.metadata.shard.slice_row import (
    SLICES,
    briefs_of,
    columns_of,
    parse_slice,
)


class PageRows(NamedTuple):
    """Some rows of a page."""

    page: Page
    start: int
    end: int

    def slice_at(self, index: int) -> LiveSlice:
        """The slice of a row, counted from the first of these. Raises StoreCorruptError."""
        return parse_slice(self.page.row(self.start + index))[1]

    def __len__(self) -> int:
        return self.end - self.start


class OffsetRange(NamedTuple):
    """Offsets [base, end) of a partition."""

    partition: TopicIdPartition
    base_offset: int
    end_offset: int


class SlicePages:
    """The slice pages of a checkpoint. Immutable, so thread-safe. Every method may load pages, and raises
    ObjectNotFoundError if a page is gone because the head of the state is old, StoreCorruptError,
    StoreUnavailableError."""

    __slots__ = ("_first_keys", "_folder", "_refs")

    def __init__(self, folder: CheckpointFolder, root: CheckpointRoot) -> None:
        self._folder = folder
        self._refs: tuple[PageRef, ...] = root.pages_of(SLICES)
        self._first_keys = [ref.first_key for ref in self._refs]

    @property
    def row_count(self) -> int:
        """The number of slices in all pages."""
        return sum(ref.row_count for ref in self._refs)

    def page_numbers(self, tip: TopicIdPartition, base_offset: int, end_offset: int) -> range:
        """The pages that hold the slices of a range."""
        topic_id = str(tip.topic_id)
        first = bisect_right(self._first_keys, (topic_id, tip.partition, base_offset)) - 1
        last = bisect_left(self._first_keys, (topic_id, tip.partition, end_offset))
        return range(max(first, 0), last)

    def read_ahead(self, ranges: Iterable[OffsetRange]) -> None:
        """Read the pages of these ranges together, before their slices are asked for one by one."""
        numbers = {number for one in ranges for number in self.page_numbers(*one)}
        self._folder.read_ahead(self._refs[number] for number in sorted(numbers))

    def rows_on(self, number: int, tip: TopicIdPartition, base_offset: int, end_offset: int) -> PageRows:
        """The rows of a page that hold slices of a range."""
        page = self._folder.page(self._refs[number])
        topic_id = str(tip.topic_id)
        start = page.index_of((topic_id, tip.partition, base_offset))
        return PageRows(page, start, page.index_of((topic_id, tip.partition, end_offset)))

    def from_holding(self, tip: TopicIdPartition, offset: int, end_offset: int) -> Iterator[LiveSlice]:
        """The slice that holds `offset`, and those behind it whose base offsets lie below `end_offset`. Loads
        each page once: a reader of one record needs no more. None behind all of them, also where the pages
        have slices that a later commit has dropped."""
        topic_id = str(tip.topic_id)
        if offset >= end_offset:
            return
        number, *others = self.page_numbers(tip, offset, end_offset)
        page = self._folder.page(self._refs[number])
        start = page.index_behind((topic_id, tip.partition, offset)) - 1
        rows = PageRows(page, start, page.index_of((topic_id, tip.partition, end_offset)))
        yield from map(rows.slice_at, range(len(rows)))
        for number in others:
            rows = self.rows_on(number, tip, offset, end_offset)
            yield from map(rows.slice_at, range(len(rows)))

    def between(
        self, tip: TopicIdPartition, base_offset: int, end_offset: int, *, newest_first: bool = False
    ) -> Iterator[LiveSlice]:
        """The slices whose base offsets lie in a range, which begins with one of them."""
        numbers = self.page_numbers(tip, base_offset, end_offset)
        for number in reversed(numbers) if newest_first else numbers:
            rows = self.rows_on(number, tip, base_offset, end_offset)
            indexes = range(len(rows))
            for index in reversed(indexes) if newest_first else indexes:
                yield rows.slice_at(index)

    def briefs_between(
        self, tip: TopicIdPartition, base_offset: int, end_offset: int
    ) -> Iterator[SliceBriefs]:
        """The same in brief, page by page."""
        for number in self.page_numbers(tip, base_offset, end_offset):
            rows = self.rows_on(number, tip, base_offset, end_offset)
            yield briefs_of(rows.page, rows.start, rows.end)

    def columns_between(
        self, tip: TopicIdPartition, base_offset: int, end_offset: int
    ) -> Iterator[SliceColumns]:
        """The same as columns, page by page."""
        for number in self.page_numbers(tip, base_offset, end_offset):
            rows = self.rows_on(number, tip, base_offset, end_offset)
            yield columns_of(rows.page, rows.start, rows.end)

    def count_between(self, tip: TopicIdPartition, base_offset: int, end_offset: int) -> int:
        """How many slices have base offsets in a range. Loads the first and the last page of the range."""
        numbers = self.page_numbers(tip, base_offset, end_offset)
        inner = sum(self._refs[number].row_count for number in numbers[1:-1])
        ends = {numbers[0], numbers[-1]} if numbers else set[int]()
        return inner + sum(len(self.rows_on(number, tip, base_offset, end_offset)) for number in ends)

    def slice_at(self, tip: TopicIdPartition, base_offset: int, end_offset: int, index: int) -> LiveSlice:
        """One of the slices whose base offsets lie in a range, by its index among them."""
        numbers = self.page_numbers(tip, base_offset, end_offset)
        left = index
        for number in numbers:
            is_inner = number not in (numbers[0], numbers[-1])
            if is_inner and left >= self._refs[number].row_count:
                left -= self._refs[number].row_count
                continue
            rows = self.rows_on(number, tip, base_offset, end_offset)
            if left < len(rows):
                return rows.slice_at(left)
            left -= len(rows)
        raise StoreCorruptError(
            "a checkpoint has fewer slices of a partition than it says; keep it and investigate",
            **tip.error_fields,
            index=index,
        )
