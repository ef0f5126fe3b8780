"""The transaction index against a plain list, Kafka's bytes, and bytes that are none."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.segment.indexes.index_file import IndexFile
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
from tests.support.logs.overwriting import flip

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
    file = TransactionIndex.file(IndexPageCache(OpenFiles(filesystem)), "/log", 10)
    index = TransactionIndex.load(filesystem, "/log", 10)
    index.attach(file)
    index.save_or_remove(500)
    assert filesystem.list_directory("/log") == []
    index.append(AbortedTransaction(1, 2, 12, 13))
    index.append(AbortedTransaction(2, 13, 14, 15))
    index.save_or_remove(500)
    assert filesystem.read_file(PATH) == index.to_bytes()
    assert list(TransactionIndex.load(filesystem, "/log", 10)) == list(index)
    assert list(TransactionIndex.open_proven(10, file.anew(), 500)) == list(index)
    index = index.below(14)
    index.save_or_remove(500)
    assert filesystem.file_size(PATH) == ENTRY_SIZE
    index = index.below(10)
    index.save_or_remove(500)
    assert filesystem.list_directory("/log") == []
    assert list(TransactionIndex.open_proven(10, file.anew(), 500)) == []


def many(count: int) -> list[AbortedTransaction]:
    return [AbortedTransaction(1, 2 * i, 2 * i + 1, 2 * i + 2) for i in range(count)]


class _Disk:
    """An index that fills more than two pages, on a disk whose bits can be flipped, read through a cache with
    room for one."""

    def __init__(self) -> None:
        self.filesystem = MemoryFileSystem()
        self.filesystem.make_directories("/log")
        self._cache = IndexPageCache(OpenFiles(self.filesystem), max_bytes=1)
        self.entries = many(300)
        self.index = TransactionIndex(0)
        self.index.attach(self.file())
        for entry in self.entries:
            self.index.append(entry)

    def file(self) -> IndexFile:
        return TransactionIndex.file(self._cache, "/log", 0)

    def opened(self) -> TransactionIndex:
        return TransactionIndex.open_proven(0, self.file(), 9000)


INDEX, CHECKSUM = (f"/log/{0:020d}{suffix}" for suffix in (".txnindex", ".txnchecksum"))
LOWEST_BITS = [
    entry * ENTRY_SIZE + field for entry in (0, 119, 120, 239, 240, 299) for field in (9, 17, 25, 33)
]


@pytest.mark.parametrize("position", LOWEST_BITS)
def test_what_the_disk_makes_of_an_index_after_it_was_opened_is_served_to_nobody(position: int) -> None:
    disk = _Disk()
    disk.index.save_or_remove(9000)
    index = disk.opened()
    flip(disk.filesystem, INDEX, position, bit=2)
    entry = position // ENTRY_SIZE
    # Another page takes the room of the last one.
    index.entry((entry + 150) % 300)
    with pytest.raises(CorruptRecordError, match="not what it was") as failure:
        index.collect(0, 600)
    assert failure.value.fields == {"path": INDEX, "position": entry // 120 * 120 * ENTRY_SIZE}
    with pytest.raises(CorruptRecordError, match="transaction index"):
        disk.opened()


@pytest.mark.parametrize("position", LOWEST_BITS[:16])
def test_an_index_that_grows_gives_no_checksum_to_what_the_disk_made_of_it(position: int) -> None:
    disk = _Disk()
    assert disk.filesystem.file_size(INDEX) == 240 * ENTRY_SIZE
    flip(disk.filesystem, INDEX, position, bit=2)
    with pytest.raises(CorruptRecordError, match="not what it was"):
        disk.index.collect(0, 600)
    with pytest.raises(CorruptRecordError, match="not what it was"):
        disk.index.below(500)
    disk.index.save_or_remove(9000)
    with pytest.raises(CorruptRecordError, match="transaction index"):
        disk.opened()


@given(start=st.integers(0, 610), size=st.integers(0, 610), is_saved=st.booleans())
def test_entries_between_two_offsets_are_those_with_markers_there(
    start: int, size: int, is_saved: bool
) -> None:
    disk = _Disk()
    disk.index.save_or_remove(9000)
    index = disk.opened() if is_saved else disk.index
    found = b"".join(index.between(start, start + size))
    expected = [entry for entry in disk.entries if start <= entry.last_offset < start + size]
    assert list(TransactionIndex(0, found)) == expected


@given(first=st.integers(1, 300), second=st.integers(0, 300), added=st.integers(0, 300))
def test_an_index_that_is_cut_and_grows_again_knows_its_pages(first: int, second: int, added: int) -> None:
    disk = _Disk()
    index = disk.index
    expected = disk.entries
    for count in (first, min(first, second)):
        index.save_or_remove(count)
        index, expected = index.below(2 * count), expected[:count]
        assert list(index) == expected
    for entry in many(count + added)[count:]:
        index.append(entry)
        expected = [*expected, entry]
    assert list(index) == expected
    index.save_or_remove(77)
    opened = TransactionIndex.open_proven(0, disk.file(), 77)
    assert list(opened) == list(opened.below(10_000)) == expected


def test_an_index_of_another_time_does_not_pass_with_its_own_checksum() -> None:
    disk = _Disk()
    disk.index.save_or_remove(8999)
    with pytest.raises(CorruptRecordError, match="does not match the checksum"):
        disk.opened()
    disk.filesystem.unlink(CHECKSUM)
    assert list(disk.opened()) == disk.entries


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
    index.attach(IndexFile(IndexPageCache(OpenFiles(MemoryFileSystem(), 4)), PATH))
    for entry in entries:
        index.append(entry)
    for first in (0, 1, 119, 120, 121, 239, 240, 241, 299, 300):
        assert b"".join(index.chunks(first)) == index_of(entries[first:]).to_bytes()
