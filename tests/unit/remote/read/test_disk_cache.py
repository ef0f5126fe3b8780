"""The cache on disk: what it returns is right or nothing, whatever happened to its files."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.remote.read.disk_cache import DiskCache
from stratalog.remote.read.range_cache import RangeCache
from stratalog.remote.read.range_file import FileRange
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import MemoryFileSystem

DIRECTORY = "/data/cache"
KEY = "shards/0000/data/one"
OBJECT = random.Random(1).randbytes(60_000)
BLOCK = 4096


def at_once(task: Callable[[], None]) -> None:
    task()


def cache_on(filesystem: MemoryFileSystem | FaultyFileSystem, capacity_bytes: int = 1 << 20) -> DiskCache:
    cache = DiskCache(filesystem, DIRECTORY, capacity_bytes, at_once)
    cache.open()
    cache.check()
    return cache


def fill(cache: DiskCache, starts: range) -> None:
    for start in starts:
        cache.offer(KEY, start, OBJECT[start : start + starts.step])


def readable(cache: DiskCache) -> Iterator[int]:
    """The starts of the ranges that are there; what is read is checked."""
    for position in range(0, len(OBJECT), 1000):
        extent = cache.extent(KEY, position)
        if extent is not None and extent.start == position:
            data = cache.read(KEY, position)
            if data is not None:
                assert data == OBJECT[extent.start : extent.end]
                yield position


def test_ranges_survive_a_restart() -> None:
    disk = MemoryFileSystem()
    fill(cache_on(disk), range(0, 10_000, 1000))
    again = cache_on(disk)
    assert list(readable(again)) == list(range(0, 10_000, 1000))
    assert again.stats.hit_count == 10


def test_the_least_recently_used_range_goes_first_and_its_file_with_it() -> None:
    disk = MemoryFileSystem()
    cache = cache_on(disk, 3 * BLOCK)
    fill(cache, range(0, 3000, 1000))
    assert cache.read(KEY, 0) == OBJECT[:1000]
    fill(cache, range(3000, 4000, 1000))
    assert list(readable(cache)) == [0, 2000, 3000]
    assert len(disk.list_directory(DIRECTORY)) == 3
    assert list(readable(cache_on(disk, 2 * BLOCK))) == [2000, 3000], "a smaller one, after a restart"


def flipped(contents: bytes) -> bytes:
    return contents[:-5] + bytes([contents[-5] ^ 1]) + contents[-4:]


CHANGES: tuple[Callable[[bytes], bytes], ...] = (
    flipped,
    lambda contents: contents[:-1],
    lambda contents: contents + b"x",
    lambda _: b"",
    lambda contents: b"x" + contents[1:],
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_file_is_a_miss_and_is_deleted(change: Callable[[bytes], bytes]) -> None:
    disk = MemoryFileSystem()
    cache = cache_on(disk)
    fill(cache, range(0, 3000, 1000))
    path = f"{DIRECTORY}/{FileRange(KEY, 1000, 2000).file_name}"
    contents = change(disk.read_file(path))
    file = disk.open_append(path)
    file.truncate(0)
    file.append([contents])
    file.close()
    for one in (cache, cache_on(disk)):
        assert list(readable(one)) == [0, 2000]
        assert not disk.exists(path)
        one.check()


def test_foreign_files_are_deleted() -> None:
    disk = MemoryFileSystem()
    fill(cache_on(disk), range(0, 2000, 1000))
    # The data of one range under the name of another one, and names that are none.
    good = disk.read_file(f"{DIRECTORY}/{FileRange(KEY, 0, 1000).file_name}")
    for name in (FileRange(KEY, 5000, 6000).file_name, "x", f"{KEY[-3:]}~1~2"):
        disk.open_append(f"{DIRECTORY}/{name}").append([good])
    disk.make_directories(f"{DIRECTORY}/directory")
    cache = cache_on(disk)
    assert list(readable(cache)) == [0, 1000]
    assert len(disk.list_directory(DIRECTORY)) == 2


def workload(cache: DiskCache) -> None:
    fill(cache, range(0, 5000, 1000))
    list(readable(cache))
    cache.forget(KEY, 1000, 1001)
    cache.yield_space(BLOCK)
    cache.yield_space(0)
    fill(cache, range(6000, 9000, 1000))


def test_a_crash_at_any_file_operation_does_no_harm() -> None:
    whole = FaultyFileSystem()
    workload(cache_on(whole, 4 * BLOCK))
    assert whole.operation_count > 20
    for operation in range(1, whole.operation_count + 1):
        for part in (0.0, 0.5):
            disk = FaultyFileSystem()
            disk.crash_at(operation, part=part)
            with pytest.raises(SimulatedCrash):
                workload(cache_on(disk, 4 * BLOCK))
            again = cache_on(disk.killed(), 4 * BLOCK)
            list(readable(again))
            fill(again, range(0, 3000, 1000))
            assert set(readable(again)) >= {0, 1000, 2000}
            again.check()


def test_an_error_of_the_disk_is_a_miss() -> None:
    whole = FaultyFileSystem()
    workload(cache_on(whole, 4 * BLOCK))
    for operation in range(1, whole.operation_count + 1):
        disk = FaultyFileSystem()
        disk.fail_at(operation, part=0.5)
        cache = cache_on(disk, 4 * BLOCK)
        workload(cache)
        list(readable(cache))
        cache.check()


def test_space_is_given_back_and_nothing_is_written_while_it_is_short() -> None:
    disk = MemoryFileSystem()
    cache = cache_on(disk)
    fill(cache, range(0, 5000, 1000))
    assert cache.yield_space(BLOCK + 1) == 2 * BLOCK
    fill(cache, range(6000, 7000, 1000))
    assert list(readable(cache)) == [2000, 3000, 4000]
    assert cache.yield_space(0) == 0
    fill(cache, range(6000, 7000, 1000))
    assert list(readable(cache)) == [2000, 3000, 4000, 6000]
    assert cache.clear() == 4 * BLOCK
    assert disk.list_directory(DIRECTORY) == []


def test_a_cache_that_is_switched_off_leaves_no_files() -> None:
    disk = MemoryFileSystem()
    fill(cache_on(disk), range(0, 5000, 1000))
    cache = cache_on(disk, 0)
    fill(cache, range(0, 5000, 1000))
    assert not disk.exists(DIRECTORY)
    assert cache.stats.entry_count == 0


@given(
    st.lists(st.tuples(st.integers(0, 199), st.integers(1, 80), st.booleans()), max_size=30),
    st.sampled_from([0, 700, 100_000]),
    st.sampled_from([0, 2 * BLOCK, 1 << 20]),
)
def test_both_caches_together_have_the_bytes_of_the_object(
    steps: list[tuple[int, int, bool]], memory_bytes: int, disk_bytes: int
) -> None:
    """A restart empties the memory and keeps the disk."""
    disk = MemoryFileSystem()
    body = OBJECT[:200]
    fetched: list[tuple[int, int]] = []

    def fetch(_: str, start: int, end: int) -> bytes:
        fetched.append((start, end))
        return body[start:end]

    cache = RangeCache(memory_bytes, fetch, cache_on(disk, disk_bytes))
    for position, size, is_restart in steps:
        if is_restart:
            cache = RangeCache(memory_bytes, fetch, cache_on(disk, disk_bytes))
        one = cache.get(KEY, position, min(position + size, len(body)))
        assert one.start <= position < one.end
        assert one.data == body[one.start : one.end]
        cache.check()
    if disk_bytes == 1 << 20:
        assert sum(end - start for start, end in fetched) <= len(body), "no byte is fetched twice"


def test_a_range_of_the_disk_costs_no_request_after_a_restart() -> None:
    disk = MemoryFileSystem()
    fetched: list[tuple[int, int]] = []

    def fetch(_: str, start: int, end: int) -> bytes:
        fetched.append((start, end))
        return OBJECT[start:end]

    RangeCache(1 << 20, fetch, cache_on(disk)).get(KEY, 1000, 5000)
    again = RangeCache(1 << 20, fetch, cache_on(disk))
    assert again.get(KEY, 3000, 9000).data == OBJECT[1000:5000]
    assert again.get(KEY, 6000, 9000).data == OBJECT[6000:9000]
    assert again.get(KEY, 500, 9000).data == OBJECT[500:1000], "no further than to what is there"
    assert fetched == [(1000, 5000), (6000, 9000), (500, 1000)]
