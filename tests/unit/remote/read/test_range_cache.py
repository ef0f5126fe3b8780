"""The cache of ranges: every answer is right, no byte that is there is fetched, loads are shared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import StoreUnavailableError
from stratalog.remote.read.range_cache import CachedRange, RangeCache

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
                cache.load_ahead(ahead)
        assert cache.read_ahead_stats.waiting_bytes <= capacity_bytes // 2
        cache.check()
    for ahead in late:
        cache.load_ahead(ahead)
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
    cache.load_ahead(first)
    many = [cache.reserve_ahead(f"{number}", 0, 190) for number in range(11)]
    assert [one is not None for one in many] == [True] * 10 + [False]
    cache.get("a", 5, 6)
    assert cache.read_ahead_stats == (100, 0, 1900)
    assert cache.reserve_ahead("b", 0, 100) is not None


def test_what_was_read_ahead_for_nothing_is_counted() -> None:
    cache = RangeCache(4000, bytes_of)
    one = cache.reserve_ahead("a", 0, 100)
    assert one is not None
    cache.load_ahead(one)
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
        cache.load_ahead(first)
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
    cache.load_ahead(one)
    assert slow.fetched == [("a", 0, 50)]
    assert cache.read_ahead_stats == (0, 0, 0)
