"""The cache of ranges: every answer is right, no byte that is there is fetched, loads are shared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from queue import SimpleQueue
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import StoreUnavailableError
from stratalog.remote.read.range_cache import CachedRange, DiskExtent, RangeCache

OBJECT = bytes(range(200))
KEYS = ("a", "b")


class Step(NamedTuple):
    kind: str
    key: str
    position: int
    size: int


STEPS = st.builds(
    Step,
    st.sampled_from(["get", "get", "get", "ahead", "late", "forget", "clear"]),
    st.sampled_from(KEYS),
    st.integers(0, len(OBJECT) - 1),
    st.integers(1, 60),
)


def bytes_of(key: str, start: int, end: int) -> bytes:
    return bytes(byte ^ (key == "b") for byte in OBJECT[start:end])


@given(st.lists(STEPS, max_size=40), st.sampled_from([0, 600, 1200, 3000, 100_000]))
def test_ranges_have_the_bytes_of_their_objects(steps: list[Step], capacity_bytes: int) -> None:
    """`late` loads of read-ahead run at the end: readers that came before have loaded them by themselves."""
    fetched: list[tuple[str, int, int]] = []

    def fetch(key: str, start: int, end: int) -> bytes:
        fetched.append((key, start, end))
        return bytes_of(key, start, end)

    cache = RangeCache(capacity_bytes, fetch)
    late: list[CachedRange] = []
    for step in steps:
        end = min(step.position + step.size, len(OBJECT))
        fetched.clear()
        if step.kind == "forget":
            cache.forget(step.key, step.position, end)
            assert cache.find_loaded(step.key, step.position) is None
        elif step.kind == "clear":
            cache.clear()
            assert cache.stats.size_bytes == 0
        elif step.kind == "get":
            was_there = cache.find_loaded(step.key, step.position)
            one = cache.get(step.key, step.position, end)
            assert one.start <= step.position < one.end
            assert one.data == bytes_of(step.key, one.start, one.end)
            assert fetched == ([] if was_there else [(step.key, one.start, one.end)])
        elif cache.end_of(step.key, step.position) is None:
            ahead = cache.reserve_ahead(step.key, step.position, end)
            assert (ahead is not None) or step.size > 0
            late += [ahead] if ahead is not None and step.kind == "late" else []
            if ahead is not None and step.kind == "ahead":
                cache.load_ahead([ahead])
        assert cache.read_ahead_stats.waiting_bytes <= capacity_bytes // 2
        cache.check()
    for ahead in late:
        cache.load_ahead([ahead])
    cache.check()
    everything = cache.stats
    assert everything.size_bytes <= capacity_bytes


def test_the_least_recently_used_range_goes_first() -> None:
    cache = RangeCache(3 * (10 + 512), bytes_of)
    for start in (0, 10, 20):
        cache.get("a", start, start + 10)
    cache.get("a", 0, 10)
    cache.get("a", 30, 40)
    assert [cache.find_loaded("a", start) is not None for start in (0, 10, 20, 30)] == [
        True,
        False,
        True,
        True,
    ]


def test_read_ahead_takes_half_of_the_cache_until_it_is_used() -> None:
    cache = RangeCache(4000, bytes_of)
    first = cache.reserve_ahead("a", 0, 100)
    assert first is not None
    cache.load_ahead([first])
    many = [cache.reserve_ahead(f"{number}", 0, 190) for number in range(11)]
    assert [one is not None for one in many] == [True] * 10 + [False]
    cache.get("a", 5, 6)
    assert cache.read_ahead_stats == (100, 0, 1900)
    assert cache.reserve_ahead("b", 0, 100) is not None


def test_what_was_read_ahead_for_nothing_is_counted() -> None:
    cache = RangeCache(4000, bytes_of)
    one = cache.reserve_ahead("a", 0, 100)
    assert one is not None
    cache.load_ahead([one])
    cache.clear()
    assert cache.read_ahead_stats == (0, 100, 0)


class Slow:
    """Fetches that wait until they may end. Thread-safe: the events are."""

    def __init__(self) -> None:
        self.started, self.release = threading.Event(), threading.Event()
        self.fetched: list[tuple[str, int, int]] = []
        self.failure_count = 0

    def fetch(self, key: str, start: int, end: int) -> bytes:
        self.fetched.append((key, start, end))
        if len(self.fetched) <= self.failure_count:
            self.started.set()
            assert self.release.wait(30)
            raise StoreUnavailableError("cut off")
        if key == "slow":
            self.started.set()
            assert self.release.wait(30)
        return bytes_of(key, start, end)


def in_threads(works: list[Callable[[], None]], slow: Slow) -> None:
    """Run the first until its fetch waits, then all others, then let the fetch end."""
    threads = [threading.Thread(target=work) for work in works]
    threads[0].start()
    assert slow.started.wait(30)
    for thread in threads[1:]:
        thread.start()
    slow.release.set()
    for thread in threads:
        thread.join(30)


def test_two_requests_for_a_range_at_once_are_one() -> None:
    slow = Slow()
    cache = RangeCache(10_000, slow.fetch)
    found: list[bytes] = []

    def read() -> None:
        found.append(cache.get("slow", 10, 20).data)

    in_threads([read] * 5, slow)
    assert found == [bytes_of("slow", 10, 20)] * 5
    assert slow.fetched == [("slow", 10, 20)]
    cache.check()


def test_a_load_that_fails_fails_for_its_caller_only() -> None:
    slow = Slow()
    slow.failure_count = 1
    cache = RangeCache(10_000, slow.fetch)
    found: list[bytes] = []
    failures: list[str] = []

    def first() -> None:
        with pytest.raises(StoreUnavailableError):
            cache.get("a", 10, 20)
        failures.append("first")

    in_threads([first, lambda: found.append(cache.get("a", 12, 20).data)], slow)
    assert (failures, found) == (["first"], [bytes_of("a", 12, 20)])
    cache.check()


def test_two_readers_that_read_ahead_of_the_same_place_share_the_range() -> None:
    """Both have looked before one of them reserves it."""
    fetched: list[int] = []

    def fetch(_: str, start: int, end: int) -> bytes:
        fetched.append(start)
        return bytes(end - start)

    cache = RangeCache(1 << 20, fetch)
    first, second = cache.reserve_ahead("a", 0, 100), cache.reserve_ahead("a", 0, 100)
    later = cache.reserve_ahead("a", 50, 150)
    assert first is not None
    assert first is second is later
    for _ in range(2):
        cache.load_ahead([first])
    assert cache.reserve_ahead("a", 0, 100) is first, "it is loaded"
    assert fetched == [0]
    cache.check()


def test_a_reader_does_not_wait_for_a_thread_of_read_ahead_that_is_busy() -> None:
    """It loads what is only reserved, and the thread finds nothing to do later."""
    slow = Slow()
    cache = RangeCache(10_000, slow.fetch)
    one = cache.reserve_ahead("a", 0, 50)
    assert one is not None
    assert cache.get("a", 10, 20).data == bytes_of("a", 0, 50)
    cache.load_ahead([one])
    assert slow.fetched == [("a", 0, 50)]
    assert cache.read_ahead_stats == (0, 0, 0)


class Requests:
    """Read-ahead that brings each piece when the test lets it. Thread-safe: its parts are."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Sequence[int]]] = []
        self.steps: SimpleQueue[bool] = SimpleQueue()
        """Each piece takes one; False is a connection that breaks."""

    def now_s(self) -> float:
        return 0.0

    def pieces(self, key: str, start: int, ends: Sequence[int]) -> Iterator[bytes]:
        self.sent.append((start, ends))
        for end in ends:
            if not self.steps.get(timeout=30):
                raise StoreUnavailableError("cut off")
            yield bytes_of(key, start, end)
            start = end

    def wait(self, condition: threading.Condition, size_bytes: int, begin_s: float) -> bool:
        condition.wait(30)
        return False

    def send_rival(self, key: str, start: int, end: int, take: Callable[[bytes], bool]) -> bool:
        return False


def reserved(cache: RangeCache, *ends: int) -> list[CachedRange]:
    """Ranges of an object from 0 on that follow each other."""
    ranges: list[CachedRange] = []
    for start, end in pairwise((0, *ends)):
        one = cache.reserve_ahead("a", start, end)
        assert one is not None
        ranges.append(one)
    return ranges


def test_ranges_that_follow_each_other_come_by_one_request_each_as_soon_as_it_has_come() -> None:
    requests = Requests()
    cache = RangeCache(10_000, bytes_of, ahead=requests)
    thread = threading.Thread(target=cache.load_ahead, args=[reserved(cache, 50, 120, 200)])
    thread.start()
    requests.steps.put(True)
    assert cache.get("a", 10, 20).data == bytes_of("a", 0, 50), "the others are on their way"
    assert cache.find_loaded("a", 50) is None
    for _ in range(2):
        requests.steps.put(True)
    thread.join(30)
    found = [cache.find_loaded("a", position) for position in (0, 50, 199)]
    assert [one.data for one in found if one is not None] == [
        bytes_of("a", 0, 50),
        bytes_of("a", 50, 120),
        bytes_of("a", 120, 200),
    ]
    assert requests.sent == [(0, [50, 120, 200])]
    cache.check()


def test_a_range_that_its_reader_loads_already_parts_a_request() -> None:
    requests = Requests()
    cache = RangeCache(10_000, bytes_of, ahead=requests)
    ranges = reserved(cache, 50, 120, 160, 200)
    assert cache.get("a", 60, 70).data == bytes_of("a", 50, 120)
    for _ in range(3):
        requests.steps.put(True)
    cache.load_ahead(ranges)
    assert requests.sent == [(0, [50]), (120, [160, 200])]
    assert [one.data for one in ranges] == [bytes_of("a", one.start, one.end) for one in ranges]
    cache.check()


def test_a_request_that_breaks_leaves_what_has_come_and_its_readers_load_the_rest() -> None:
    requests = Requests()
    cache = RangeCache(10_000, bytes_of, ahead=requests)
    ranges = reserved(cache, 50, 120, 200)
    waiting: list[bytes] = []

    def load() -> None:
        with pytest.raises(StoreUnavailableError):
            cache.load_ahead(ranges)

    loading = threading.Thread(target=load)
    loading.start()
    requests.steps.put(True)
    assert cache.get("a", 0, 1) is ranges[0]
    reader = threading.Thread(target=lambda: waiting.append(cache.get("a", 130, 200).data))
    reader.start()
    requests.steps.put(False)
    for thread in (loading, reader):
        thread.join(30)
    assert cache.find_loaded("a", 0) is ranges[0]
    assert waiting[0] == bytes_of("a", 130, 200), "by a request of its own"
    assert cache.find_loaded("a", 60) is None
    assert cache.get("a", 60, 200).data == bytes_of("a", 60, 130)
    assert cache.read_ahead_stats == (50, 0, 0)
    cache.check()


@pytest.mark.parametrize("is_parted", [False, True])
def test_a_load_that_fails_leaves_no_range_behind_it_reserved(is_parted: bool) -> None:
    """The runs behind the one that failed counted as read ahead for ever, and left no room for others."""
    requests = Requests()
    cache = RangeCache(10_000, bytes_of, None if is_parted else Disk(None), requests)
    ranges = reserved(cache, 50, 120, 160, 200)
    if is_parted:
        cache.get("a", 60, 70)
    requests.steps.put(False)
    with pytest.raises(StoreUnavailableError):
        cache.load_ahead(ranges)
    assert not cache.still_reserved(ranges)
    assert cache.read_ahead_stats.waiting_bytes == 0
    cache.check()


class Disk:
    """A cache on disk that has bytes [50, 120) of the object, or a damaged file of them."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data
        self.offered: list[int] = []

    def extent(self, key: str, position: int) -> DiskExtent | None:
        return DiskExtent(50, 120) if 50 <= position < 120 else None

    def start_behind(self, key: str, position: int) -> int | None:
        return 50 if position < 50 else None

    def read(self, key: str, start: int) -> bytes | None:
        return self._data

    def offer(self, key: str, start: int, data: bytes) -> None:
        self.offered.append(start)

    def forget(self, key: str, start: int, end: int) -> None:
        raise AssertionError("nothing is damaged in the store")


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_range_of_the_disk_parts_a_request(is_damaged: bool) -> None:
    requests, disk = Requests(), Disk(None if is_damaged else bytes_of("a", 50, 120))
    cache = RangeCache(10_000, bytes_of, disk, requests)
    ranges = reserved(cache, 50, 120, 160, 200)
    for _ in range(4):
        requests.steps.put(True)
    cache.load_ahead(ranges)
    assert requests.sent == [(0, [50]), *[(50, [120])] * is_damaged, (120, [160, 200])]
    assert disk.offered == [0, *[50] * is_damaged, 120, 160]
    assert [one.data for one in ranges] == [bytes_of("a", one.start, one.end) for one in ranges]
    cache.check()
