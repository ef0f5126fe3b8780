"""The transaction index against a plain list, Kafka's bytes, and bytes that are none."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.index_page_cache import IndexPageCache
from stratalog.segment.indexes.transaction_index import (
    ENTRY_SIZE,
    AbortedTransaction,
    TransactionIndex,
    bytes_below,
    without_markers,
)
from stratalog.segment.open_files import OpenFiles
from stratalog.testing.memory_filesystem import MemoryFileSystem

PATH = "/log/00000000000000000010.txnindex"


def history(choices: list[tuple[int, bool]]) -> list[AbortedTransaction]:
    """Every aborted transaction of a log in which these producers begin or end one, an offset each."""
    began: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    for offset, (producer_id, is_abort) in enumerate(choices):
        if producer_id not in began:
            began[producer_id] = offset
            continue
        first_offset = began.pop(producer_id)
        if is_abort:
            stable = min(began.values(), default=offset + 1)
            aborted.append(AbortedTransaction(producer_id, first_offset, offset, stable))
    return aborted


HISTORIES = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60).map(history)


def index_of(entries: list[AbortedTransaction]) -> TransactionIndex:
    index = TransactionIndex(0)
    for entry in entries:
        index.append(entry)
    return index


@given(entries=HISTORIES, start=st.integers(0, 60), size=st.integers(0, 30), cut=st.integers(0, 60))
def test_a_search_over_segments_finds_every_transaction_in_the_range(
    entries: list[AbortedTransaction], start: int, size: int, cut: int
) -> None:
    segments = [
        index_of([entry for entry in entries if entry.last_offset < cut]),
        index_of([entry for entry in entries if entry.last_offset >= cut]),
    ]
    found: list[AbortedTransaction] = []
    for index in segments:
        searched = index.collect(start, start + size)
        found += searched.transactions
        if searched.is_complete:
            break
    assert found == [
        entry for entry in entries if entry.last_offset >= start and entry.first_offset < start + size
    ]


def test_a_search_stops_where_everything_below_its_end_was_decided() -> None:
    index = index_of([AbortedTransaction(1, 2, 5, 6), AbortedTransaction(2, 8, 12, 13)])
    assert index.collect(0, 6) == ((AbortedTransaction(1, 2, 5, 6),), True)
    assert not index.collect(0, 14).is_complete
    assert index.collect(0, 13).is_complete
    assert index.collect(6, 8) == ((), True)
    assert TransactionIndex(0).collect(0, 1) == ((), False)


@given(entries=HISTORIES, offset=st.integers(0, 60))
def test_truncation_forgets_the_markers_from_the_offset_on(
    entries: list[AbortedTransaction], offset: int
) -> None:
    index = index_of(entries)
    index = index.below(offset)
    kept = [entry for entry in entries if entry.last_offset < offset]
    assert list(index) == kept
    assert list(TransactionIndex(0, index.to_bytes())) == kept
    assert index.size_bytes == len(index) * ENTRY_SIZE == len(kept) * ENTRY_SIZE


def test_a_segment_without_an_abort_has_no_file() -> None:
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/log")
    index = TransactionIndex.load(filesystem, "/log", 10)
    index.attach(IndexPageCache(OpenFiles(filesystem)), PATH)
    assert index.save_or_remove() == IndexSeal()
    assert filesystem.list_directory("/log") == []
    index.append(AbortedTransaction(1, 2, 12, 13))
    index.append(AbortedTransaction(2, 13, 14, 15))
    assert index.save_or_remove().size_bytes == 2 * ENTRY_SIZE
    assert filesystem.read_file(PATH) == index.to_bytes()
    assert list(TransactionIndex.load(filesystem, "/log", 10)) == list(index)
    index = index.below(14)
    index.save_or_remove()
    assert filesystem.file_size(PATH) == ENTRY_SIZE
    index = index.below(10)
    index.save_or_remove()
    assert filesystem.list_directory("/log") == []


@pytest.mark.parametrize("count", [0, 1, 119, 120, 121, 239, 240, 241, 299])
@pytest.mark.parametrize("added", [0, 1, 125])
def test_what_was_cut_and_goes_on_is_sealed_as_it_is(count: int, added: int) -> None:
    """In a file that grows, and in the same one, opened again."""
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/log")
    cache = IndexPageCache(OpenFiles(filesystem), max_bytes=1)
    entries = [AbortedTransaction(1, 2 * i, 2 * i + 1, 2 * i + 2) for i in range(count + added)]
    longer = [AbortedTransaction(1, 2 * i, 2 * i + 1, 2 * i + 2) for i in range(300)]
    for is_opened in (False, True):
        index = TransactionIndex(0)
        index.attach(cache, PATH)
        for entry in longer:
            index.append(entry)
        if is_opened:
            index = TransactionIndex.open(0, cache, PATH, index.save())
        index = index.below(2 * count)
        assert list(index) == entries[:count]
        for entry in entries[count:]:
            index.append(entry)
        assert list(index) == entries
        seal = index.save_or_remove()
        data = b"" if not entries else filesystem.read_file(PATH)
        assert data == index_of(entries).to_bytes()
        assert seal == IndexSeal.of(data, TransactionIndex.page_bytes)
        if entries:
            assert list(TransactionIndex.open(0, cache, PATH, seal)) == entries


def entry_bytes(version: int, *numbers: int) -> bytes:
    return version.to_bytes(2) + b"".join(number.to_bytes(8, signed=True) for number in numbers)


@pytest.mark.parametrize(
    "data",
    [
        entry_bytes(0, 1, 2, 12, 13)[:-1],
        entry_bytes(1, 1, 2, 12, 13),
        entry_bytes(0, 1, 2, 9, 10),
        entry_bytes(0, 1, 13, 12, 13),
        entry_bytes(0, 1, -1, 12, 13),
        entry_bytes(0, -1, 2, 12, 13),
        entry_bytes(0, 1, 2, 12, -1),
        entry_bytes(0, 1, 2, 12, 13) + entry_bytes(0, 2, 3, 12, 13),
    ],
)
def test_bytes_that_are_no_transaction_index_are_refused(data: bytes) -> None:
    TransactionIndex(10, entry_bytes(0, 1, 2, 12, 13))
    with pytest.raises(CorruptRecordError):
        TransactionIndex(10, data)


@given(
    data=st.binary(max_size=4 * ENTRY_SIZE)
    | st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4), max_size=4).map(
        lambda rows: b"".join(entry_bytes(0, *row) for row in rows)
    )
)
def test_garbage_is_an_index_or_refused(data: bytes) -> None:
    with contextlib.suppress(CorruptRecordError):
        assert TransactionIndex(0, data).to_bytes() == data


@given(entries=HISTORIES, limit=st.integers(0, 61), dropped=st.sets(st.integers(0, 60)))
def test_entries_of_other_indexes_are_taken_as_bytes(
    entries: list[AbortedTransaction], limit: int, dropped: set[int]
) -> None:
    data = index_of(entries).to_bytes()
    size = bytes_below(data, limit)
    parts: list[TransactionIndex] = []
    for part in (data[:size], data[size:]):
        parts.append(TransactionIndex(0))
        parts[-1].extend(without_markers(part, dropped))
        # A second part goes behind the first, and no part is none.
        parts[-1].extend(b"")

    kept = [entry for entry in entries if entry.last_offset not in dropped]
    assert list(parts[0]) == [entry for entry in kept if entry.last_offset < limit]
    assert list(parts[1]) == [entry for entry in kept if entry.last_offset >= limit]
    for index in parts:
        assert index.last == next(reversed(list(index)), None)


def test_entries_come_in_order() -> None:
    index = index_of([AbortedTransaction(1, 0, 5, 6)])
    with pytest.raises(AssertionError):
        index.extend(index.to_bytes())


def test_entries_are_read_from_any_of_them_on() -> None:
    entries = [AbortedTransaction(1, 3 * number, 3 * number + 2, 0) for number in range(300)]
    index = TransactionIndex(0)
    index.attach(IndexPageCache(OpenFiles(MemoryFileSystem(), 4)), PATH)
    for entry in entries:
        index.append(entry)
    for first in (0, 1, 119, 120, 121, 239, 240, 241, 299, 300):
        assert b"".join(index.chunks(first)) == index_of(entries[first:]).to_bytes()
