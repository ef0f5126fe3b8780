"""A bounded cache that loads a missing value once, however many threads ask for it.

The least recently used value is evicted first, in constant time. A load in progress does not count, so each
thread may exceed the bound by one load. A value larger than the whole cache is returned and not kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CacheStats(NamedTuple):
    """The contents of a cache, and its look-ups so far."""

    entry_count: int
    size_bytes: int
    capacity_bytes: int
    hit_count: int
    """Look-ups that found the value, or waited for another one that loaded it."""
    miss_count: int
    """Look-ups that loaded the value."""
    eviction_count: int = 0
    """Values that went because others needed their space, where the cache counts them."""


class LoadingCache(Generic[K, V]):
    """A cache that loads a missing value once for all threads that ask for it. Thread-safe: `_condition`
    guards everything; loads run outside it."""

    def __init__(self, capacity_bytes: int, size_bytes_of: Callable[[V], int]) -> None:
        assert capacity_bytes >= 0
        self._capacity_bytes = capacity_bytes
        self._size_bytes_of = size_bytes_of
        self._condition = threading.Condition()
        self._values: OrderedDict[K, V] = OrderedDict()
        self._size_bytes = 0
        self._loading: set[K] = set()
        self._hit_count = self._miss_count = self._eviction_count = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def stats(self) -> CacheStats:
        with self._condition:
            return CacheStats(
                entry_count=len(self._values),
                size_bytes=self._size_bytes,
                capacity_bytes=self._capacity_bytes,
                hit_count=self._hit_count,
                miss_count=self._miss_count,
                eviction_count=self._eviction_count,
            )

    def clear(self) -> int:
        """Remove all values; returns their size. Loads in progress are kept when they end."""
        with self._condition:
            size_bytes, self._size_bytes = self._size_bytes, 0
            self._values.clear()
            return size_bytes

    def __contains__(self, key: object) -> bool:
        """Whether the value is here now; this is no use of it."""
        with self._condition:
            return key in self._values

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The cached value, or the result of `load`. An error of `load` goes to its own caller only; waiting
        callers try again.
        """
        with self._condition:
            while key in self._loading:
                self._condition.wait()
            if key in self._values:
                self._values.move_to_end(key)
                self._hit_count += 1
                return self._values[key]
            self._loading.add(key)
            self._miss_count += 1
        try:
            value = load()
        except BaseException:
            self._finish(key)
            raise
        self._finish(key, value)
        return value

    def forget(self, key: K) -> None:
        """Remove the value: the next `get` loads it again."""
        with self._condition:
            self._remove(key)

    def check(self) -> None:
        with self._condition:
            assert self._size_bytes == sum(self._size_bytes_of(value) for value in self._values.values())
            assert self._size_bytes <= self._capacity_bytes
            assert not self._loading & self._values.keys()

    def _finish(self, key: K, value: V | None = None) -> None:
        with self._condition:
            self._loading.discard(key)
            if value is not None:
                self._keep(key, value)
            self._condition.notify_all()

    def _keep(self, key: K, value: V) -> None:
        size_bytes = self._size_bytes_of(value)
        if size_bytes > self._capacity_bytes:
            return
        while self._size_bytes + size_bytes > self._capacity_bytes:
            self._remove(next(iter(self._values)))
            self._eviction_count += 1
        self._values[key] = value
        self._size_bytes += size_bytes

    def _remove(self, key: K) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._size_bytes -= self._size_bytes_of(value)
