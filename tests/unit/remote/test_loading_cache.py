"""The cache: bounded, least recently used first, one load at a time for a key."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from stratalog.remote.loading_cache import LoadingCache


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())), st.integers(0, 12))
def test_it_behaves_like_a_list_in_order_of_use(calls: list[tuple[int, bool]], capacity_bytes: int) -> None:
    """A key's value is that many bytes; the model is a list of keys, the most recently used last."""
    cache: LoadingCache[int, bytes] = LoadingCache(capacity_bytes, len)
    model: list[int] = []
    loads: list[int] = []
    evicted_count = 0

    def loader(key: int) -> Callable[[], bytes]:
        def load() -> bytes:
            loads.append(key)
            return bytes(key)

        return load

    for key, is_get in calls:
        if not is_get:
            cache.forget(key)
            model = [other for other in model if other != key]
            continue
        loads.clear()
        assert cache.get(key, loader(key)) == bytes(key)
        assert bool(loads) == (key not in model)
        if key in model:
            model.remove(key)
        if key <= capacity_bytes:
            while sum(model) + key > capacity_bytes:
                model.pop(0)
                evicted_count += 1
            model.append(key)
        cache.check()
        assert cache.stats.eviction_count == evicted_count
        assert cache.size_bytes == sum(model)


def test_a_load_is_shared_by_all_that_wait_for_it() -> None:
    cache: LoadingCache[str, bytes] = LoadingCache(100, len)
    started, release = threading.Event(), threading.Event()
    loads: list[int] = []
    results: list[bytes] = []

    def slow() -> bytes:
        loads.append(1)
        started.set()
        assert release.wait(30)
        return b"value"

    threads = [threading.Thread(target=lambda: results.append(cache.get("key", slow))) for _ in range(4)]
    threads[0].start()
    assert started.wait(30)
    for thread in threads[1:]:
        thread.start()
    # Another key does not wait for this one.
    assert cache.get("other", lambda: b"x") == b"x"
    release.set()
    for thread in threads:
        thread.join(30)
    assert results == [b"value"] * 4
    assert len(loads) == 1
    cache.check()


def test_a_load_that_fails_fails_for_its_caller_only() -> None:
    cache: LoadingCache[str, bytes] = LoadingCache(100, len)
    started, release = threading.Event(), threading.Event()
    failures: list[str] = []
    results: list[bytes] = []

    def failing() -> bytes:
        started.set()
        assert release.wait(30)
        raise ConnectionError("cut off")

    def first() -> None:
        try:
            cache.get("key", failing)
        except ConnectionError as error:
            failures.append(str(error))

    threads = [
        threading.Thread(target=first),
        threading.Thread(target=lambda: results.append(cache.get("key", lambda: b"value"))),
    ]
    threads[0].start()
    assert started.wait(30)
    threads[1].start()
    release.set()
    for thread in threads:
        thread.join(30)
    assert (failures, results) == (["cut off"], [b"value"])
    cache.check()
