"""Indexes in pages beside plain lists: at every boundary of a page, beside a writer, on a disk that fails."""

from __future__ import annotations

import errno
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.indexes.index_file import IndexFile, IndexSeal
from stratalog.segment.indexes.index_page_cache import PAGE_BYTES, IndexPageCache
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.segment.open_files import OpenFiles
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.crash_sweep import CrashSweep, Failure
from tests.support.logs.overwriting import flip

PATH = "/d/00000000000000001000.index"
BASE_OFFSET = 1000
OFFSETS_A_PAGE = PAGE_BYTES // 8
TIMES_A_PAGE = PAGE_BYTES // 12
COUNTS = st.integers(0, 3 * OFFSETS_A_PAGE + 2) | st.sampled_from(
    [
        pages * a_page + more
        for a_page in (OFFSETS_A_PAGE, TIMES_A_PAGE)
        for pages in (1, 2, 3)
        for more in (-1, 0, 1)
    ]
)


def new_disk() -> FaultyFileSystem:
    disk = FaultyFileSystem()
    disk.make_directories("/d")
    return disk


def cache_on(disk: FaultyFileSystem, max_bytes: int = 1 << 20) -> IndexPageCache:
    return IndexPageCache(OpenFiles(disk), max_bytes)


def grown(cache: IndexPageCache, count: int) -> OffsetIndex:
    """An index with an entry for every other offset, at positions that are seven apart."""
    index = OffsetIndex(BASE_OFFSET)
    index.attach(cache, PATH)
    for ordinal in range(count):
        index.append(*nth(ordinal))
    return index


def nth(ordinal: int) -> tuple[int, int]:
    return BASE_OFFSET + 2 * ordinal + 1, 7 * ordinal + 3


def reads(disk: FaultyFileSystem, action: Callable[[], object]) -> list[str]:
    """The operations by which the action reads files."""
    before = disk.operation_count
    action()
    return [name for name in disk.trace[before:] if name.startswith("read")]


@given(count=COUNTS, wanted=st.lists(st.integers(-3, 8 * OFFSETS_A_PAGE), max_size=20))
def test_an_index_that_grows_or_was_saved_finds_what_a_list_finds(count: int, wanted: list[int]) -> None:
    disk = new_disk()
    cache = cache_on(disk, max_bytes=1)
    growing = grown(cache, count)
    entries = [nth(ordinal) for ordinal in range(count)]
    saved = OffsetIndex.open(BASE_OFFSET, cache, PATH, growing.save())
    # Beside what was drawn: all that lies at the boundary of a page.
    edges = [2 * page * OFFSETS_A_PAGE + more for page in range(4) for more in range(-2, 4)]
    for index in (growing, saved):
        assert list(index) == entries
        assert (len(index), index.last) == (count, entries[-1] if entries else None)
        for relative_offset in (*wanted, *edges):
            offset = BASE_OFFSET + relative_offset
            rank = bisect_right(entries, offset, key=lambda entry: entry[0])
            assert index.floor(offset) == (entries[rank - 1] if rank else None)
        for size_bytes in (1, 100, 8 * OFFSETS_A_PAGE):
            nearest = max((position for _, position in entries if position <= size_bytes), default=-(10**9))
            loses_little = size_bytes - nearest <= size_bytes // 16
            assert index.whole_size(0, size_bytes) == (nearest if loses_little else size_bytes)
        index.check()
    assert disk.read_file(PATH) == OffsetIndex(BASE_OFFSET, growing.to_bytes()).to_bytes()


@pytest.mark.parametrize("power", [0.2, 0.5, 1, 2, 5])
@pytest.mark.parametrize("page_count", [2, 3, 9, 32])
def test_keys_that_do_not_ascend_evenly_are_found_with_few_reads(power: float, page_count: int) -> None:
    disk = new_disk()
    count = page_count * OFFSETS_A_PAGE
    # Even at a power of 1; below it the keys are close together at the end, above it at the beginning.
    keys = [ordinal + int(2**30 * (ordinal / count) ** power) for ordinal in range(count)]
    index = OffsetIndex(0)
    index.attach(cache_on(disk, max_bytes=1), PATH)
    index.extend(b"".join(struct.pack(">ii", key, key) for key in keys))
    for page in range(page_count):
        for ordinal in (0, 1, OFFSETS_A_PAGE // 2, OFFSETS_A_PAGE - 1):
            rank = page * OFFSETS_A_PAGE + ordinal
            for offset in (keys[rank] - 1, keys[rank], keys[rank] + 1):
                expected = bisect_right(keys, offset)
                read = reads(disk, partial(index.floor, offset))
                assert len(read) <= page_count.bit_length() + 2
                assert index.floor(offset) == ((keys[expected - 1],) * 2 if expected else None)


@given(
    count=st.integers(0, 3 * TIMES_A_PAGE),
    cut=st.integers(0, 3 * TIMES_A_PAGE),
    more_count=st.integers(0, TIMES_A_PAGE + 1),
    is_saved=st.booleans(),
)
def test_the_beginning_of_an_index_goes_on_as_if_the_rest_had_never_been(
    count: int, cut: int, more_count: int, is_saved: bool
) -> None:
    disk = new_disk()
    cache = cache_on(disk)
    entries = [TimestampOffset(50 + 3 * number, BASE_OFFSET + number // 2) for number in range(count)]
    index = TimeIndex(BASE_OFFSET)
    index.attach(cache, PATH)
    for entry in entries:
        assert index.maybe_append(entry)
    if is_saved:
        index = TimeIndex.open(BASE_OFFSET, cache, PATH, index.save())
    # Every page of it has been read, and nothing of these may be found again.
    assert list(index) == entries
    index = index.first(min(cut, count))
    index.cut_file()
    expected = entries[:cut]
    for number in range(more_count):
        expected.append(TimestampOffset(10**6 + number, BASE_OFFSET + 10**6))
        assert index.maybe_append(expected[-1])
        if number % 100 == 0:
            assert index.before(10**6 + number + 1) == expected[-1]
    assert list(index) == expected
    index.save()
    assert list(TimeIndex(BASE_OFFSET, disk.read_file(PATH))) == expected


def test_what_grows_holds_a_page_in_memory_where_its_end_is_found() -> None:
    disk = new_disk()
    indexes = SegmentIndexes.empty(0)
    indexes.attach(cache_on(disk), "/d")
    most_bytes = 0
    for number in range(10 * OFFSETS_A_PAGE):
        indexes.add_rows(
            [
                BatchRow(
                    position=100 * number,
                    size_bytes=100,
                    base_offset=number,
                    last_offset=number,
                    max_timestamp_ms=number,
                    leader_epoch=0,
                    is_noted=False,
                )
            ],
            0,
        )
        growing = (indexes.offset_index, indexes.time_index, indexes.transaction_index)
        most_bytes = max(most_bytes, sum(index.memory_bytes for index in growing))
        if indexes.offset_index.memory_bytes:
            assert not reads(disk, lambda: indexes.offset_index.floor(number))  # noqa: B023 - called at once
    assert most_bytes <= 2 * PAGE_BYTES
    # Pages were written, as such, and nothing else.
    assert disk.file_size("/d/00000000000000000000.index") == 9 * PAGE_BYTES
    assert disk.file_size("/d/00000000000000000000.timeindex") % TIMES_A_PAGE == 0


def test_a_search_in_a_large_index_reads_few_pages() -> None:
    disk = new_disk()
    cache = cache_on(disk)
    page_count = 512
    index = OffsetIndex(0)
    for ordinal in range(page_count * OFFSETS_A_PAGE):
        index.append(ordinal, ordinal)
    index.attach(cache, PATH)
    seal = index.save()
    index = OffsetIndex.open(0, cache, PATH, seal)
    # The end is the last page, which `open` has looked at already.
    assert not reads(disk, lambda: index.floor(page_count * OFFSETS_A_PAGE - 1))
    for ordinal in range(0, page_count * OFFSETS_A_PAGE, 10_007):
        found = OffsetIndex.open(0, cache, PATH, seal)
        assert len(reads(disk, lambda: found.floor(ordinal))) <= 10  # noqa: B023 - called at once
        # All of these pages are known by now.
        assert not reads(disk, lambda: found.floor(ordinal))  # noqa: B023 - called at once


def test_opening_reads_one_page_at_most() -> None:
    disk = new_disk()
    cache = cache_on(disk)
    seal = grown(cache, 5 * OFFSETS_A_PAGE + 7).save()
    assert len(reads(disk, lambda: OffsetIndex.open(BASE_OFFSET, cache, PATH, seal))) == 1


class GrowingIndex:
    """An index one entry before its first page is full, and what is done with it."""

    def __init__(self) -> None:
        self.disk = new_disk()
        cache = cache_on(self.disk)
        self.index = grown(cache, OFFSETS_A_PAGE - 1)
        cache.files.forget(PATH)

    def grow(self) -> None:
        for ordinal in range(OFFSETS_A_PAGE - 1, 4 * OFFSETS_A_PAGE):
            self.index.append(*nth(ordinal))
            assert self.index.floor(nth(ordinal)[0]) == nth(ordinal)

    def save(self) -> None:
        self.index.save()


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_page_that_cannot_be_written_stays_in_memory_until_it_can(part: float) -> None:
    def verify(failure: Failure[GrowingIndex]) -> None:
        index = failure.subject.index
        assert list(index) == [nth(ordinal) for ordinal in range(4 * OFFSETS_A_PAGE)]
        if failure.operation < last_write:
            assert index.memory_bytes == 0
            assert index.to_bytes() == failure.subject.disk.read_file(PATH)
        else:
            assert index.memory_bytes == OFFSETS_A_PAGE * 8

    sweep = CrashSweep(GrowingIndex, GrowingIndex.grow)
    last_write = len(sweep.trace) - sweep.trace[::-1].index(f"append {PATH}") - 1
    sweep.at_failures(
        verify, expected=(), errors=(errno.ENOSPC,), only=lambda name: "read" not in name, part=part
    )


def test_a_save_that_fails_changes_nothing_and_may_be_repeated() -> None:
    def verify(failure: Failure[GrowingIndex]) -> None:
        index, disk = failure.subject.index, failure.subject.disk
        assert isinstance(failure.error, OSError)
        entries = list(index)
        assert entries == [nth(ordinal) for ordinal in range(OFFSETS_A_PAGE - 1)]
        index.save()
        assert disk.read_file(PATH) == index.to_bytes()
        # It has not ended: what is saved twice is not there twice, and what follows takes its place.
        index.save()
        index.append(*nth(OFFSETS_A_PAGE - 1))
        index.save()
        assert list(OffsetIndex(BASE_OFFSET, disk.read_file(PATH))) == [*entries, nth(OFFSETS_A_PAGE - 1)]

    CrashSweep(GrowingIndex, GrowingIndex.save).at_failures(verify, expected=(OSError,), errors=(errno.EIO,))


AnyIndex: TypeAlias = OffsetIndex | TimeIndex | TransactionIndex
AnyKind: TypeAlias = type[OffsetIndex] | type[TimeIndex] | type[TransactionIndex]


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex, TransactionIndex])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_page_that_is_not_what_was_written_is_served_to_no_reader(kind: AnyKind, is_sealed: bool) -> None:
    """Each page that is in the file is damaged once, in an index that grows and in one that was sealed,
    however often it was read before."""
    disk = new_disk()
    cache = cache_on(disk, max_bytes=1)
    index = of_three_pages(kind, cache)
    entries = list(index)
    written = disk.read_file(PATH)
    if is_sealed:
        seal = index.save()
        written = disk.read_file(PATH)
        index = kind.open(0, cache, PATH, seal)
        assert list(index) == entries
    for position in range(0, len(written), len(written) // 50):
        flip(disk, PATH, position, bit=position % 8)
        page = position // kind.page_bytes
        a_page = kind.page_bytes // kind.ENTRY_SIZE
        # Another page takes the room of the last one.
        assert index.entry((page + 1) % 2 * a_page) == entries[(page + 1) % 2 * a_page]
        with pytest.raises(CorruptRecordError) as failure:
            index.entry(position // kind.ENTRY_SIZE)
        assert failure.value.fields == {"path": PATH, "position": page * kind.page_bytes}
        flip(disk, PATH, position, bit=position % 8)
    assert list(index) == entries


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex, TransactionIndex])
def test_a_file_of_another_size_is_not_the_one_that_was_sealed(kind: AnyKind) -> None:
    disk = new_disk()
    cache = cache_on(disk)
    seal = of_three_pages(kind, cache).save()
    kind.open(0, cache, PATH, seal)
    for size_bytes in (0, kind.ENTRY_SIZE, seal.size_bytes - kind.ENTRY_SIZE, seal.size_bytes + 1):
        data = disk.read_file(PATH)
        file = disk.open_append(PATH)
        file.truncate(size_bytes)
        cache.files.forget(PATH)
        with pytest.raises(CorruptRecordError) as failure:
            kind.open(0, cache, PATH, seal)
        assert failure.value.fields["size_bytes"] == size_bytes
        file.truncate(0)
        file.append([data])


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex, TransactionIndex])
def test_a_seal_is_of_the_entries_and_not_of_what_the_disk_made_of_them(kind: AnyKind) -> None:
    disk = new_disk()
    cache = cache_on(disk, max_bytes=1)
    index = of_three_pages(kind, cache)
    expected = IndexSeal.of(index.to_bytes(), kind.page_bytes)
    flip(disk, PATH, 7, bit=2)
    assert index.save() == expected


def of_three_pages(kind: AnyKind, cache: IndexPageCache) -> AnyIndex:
    """The third one is in memory."""
    index = kind(0)
    index.attach(cache, PATH)
    for number in range(5 * kind.page_bytes // kind.ENTRY_SIZE // 2):
        if isinstance(index, OffsetIndex):
            index.append(number, number)
        elif isinstance(index, TimeIndex):
            index.maybe_append(TimestampOffset(number, number))
        else:
            index.append(AbortedTransaction(1, 2 * number, 2 * number + 1, 2 * number + 2))
    return index


def test_readers_beside_a_writer_find_all_that_was_there_before_they_looked() -> None:
    """Every look-up begins with an entry that is known to be there; pages move to the file meanwhile."""
    disk = new_disk()
    index = grown(cache_on(disk, max_bytes=3 * PAGE_BYTES), 1)
    is_done = threading.Event()

    def look() -> int:
        step = look_up_count = 1
        while not is_done.is_set():
            count = len(index)
            step = step * 48_271 % (2**31 - 1)
            for ordinal in (step % count, count - 1):
                offset, position = nth(ordinal)
                assert index.floor(offset) == (offset, position)
                assert index.floor(offset + 1) == (offset, position)
            look_up_count += 1
        return look_up_count

    with ThreadPoolExecutor() as threads:
        readers = [threads.submit(look) for _ in range(2)]
        for ordinal in range(1, 12 * OFFSETS_A_PAGE):
            index.append(*nth(ordinal))
        is_done.set()
        assert all(reader.result() > 0 for reader in readers)


def test_the_cache_forgets_what_was_not_used_for_longest() -> None:
    disk = new_disk()
    cache = cache_on(disk, max_bytes=3 * (PAGE_BYTES + 256))
    file = IndexFile(cache, PATH, PAGE_BYTES)
    file.write(0, bytes(8 * PAGE_BYTES))

    def look(*pages: int) -> int:
        return len(reads(disk, lambda: [file.page(page * PAGE_BYTES, PAGE_BYTES) for page in pages]))

    assert look(0, 1, 2) == 3
    assert look(0, 3) == 1
    assert look(0, 2, 3) == 0
    assert look(1) == 1
    cache.check()
    file.forget_pages(8 * PAGE_BYTES)
    assert cache.size_bytes == 0
    # Another opening of the same file knows nothing of what was read before.
    assert look(0) == 1
    other = file.anew()
    assert len(reads(disk, lambda: other.page(0, PAGE_BYTES))) == 1
    cache.check()
    # A page that is larger than all the room is kept all the same, alone.
    small = IndexFile(
        cache_on(disk, max_bytes=1), PATH, PAGE_BYTES, IndexSeal.of(bytes(PAGE_BYTES), PAGE_BYTES).page_crcs
    )
    for _ in range(2):
        assert len(reads(disk, lambda: small.page(0, PAGE_BYTES))) <= 1
