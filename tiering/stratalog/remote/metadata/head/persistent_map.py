"""A mapping whose changed copy shares all that did not change.

The keys are spread over a fixed number of small dictionaries. A changed copy shares the dictionaries that it
did not touch. So a commit to a shard with a hundred thousand objects costs as much as it touches, plus a copy
of the outer tuple. A snapshot that a reader holds never changes, without a lock.

Invariant: a dictionary that an instance refers to never changes. `Evolution` copies each one before its first
change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar, cast, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_BUCKET_COUNT = 1024
_EMPTY: dict[object, object] = {}


class PersistentMap(Mapping[K, V]):
    """A mapping whose changed copies share what did not change. Immutable, so thread-safe. The order of
    iteration is arbitrary."""

    __slots__ = ("_buckets", "_size")

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        empty = cast("dict[K, V]", _EMPTY)
        self._buckets: tuple[dict[K, V], ...] = (empty,) * _BUCKET_COUNT
        self._size = 0
        buckets: dict[int, dict[K, V]] = {}
        for key, value in items:
            buckets.setdefault(hash(key) % _BUCKET_COUNT, {})[key] = value
        if buckets:
            self._buckets = tuple(buckets.get(number, empty) for number in range(_BUCKET_COUNT))
            self._size = sum(map(len, buckets.values()))

    def of_buckets(self, buckets: tuple[dict[K, V], ...], size: int) -> PersistentMap[K, V]:
        """A map of these dictionaries, which must not change any more. For `Evolution`."""
        result: PersistentMap[K, V] = PersistentMap()
        result._buckets = buckets
        result._size = size
        return result

    def evolve(self) -> Evolution[K, V]:
        """Begin a changed copy."""
        return Evolution(self, self._buckets)

    def __getitem__(self, key: K) -> V:
        return self._buckets[hash(key) % _BUCKET_COUNT][key]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: object = None) -> object:
        return self._buckets[hash(key) % _BUCKET_COUNT].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._buckets[hash(key) % _BUCKET_COUNT]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for bucket in self._buckets:
            yield from bucket

    def rows(self) -> Iterator[tuple[K, V]]:
        """All keys with their values, none of which is looked up."""
        for bucket in self._buckets:
            yield from bucket.items()

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"

    def check(self) -> None:
        assert self._size == sum(map(len, self._buckets)), "the size is the number of entries"
        for number, bucket in enumerate(self._buckets):
            assert all(hash(key) % _BUCKET_COUNT == number for key in bucket), "keys lie in their own bucket"
        assert not _EMPTY, "the shared empty bucket stays empty"


class Evolution(Generic[K, V]):
    """Builds a changed copy of a `PersistentMap`. Not thread-safe: one function uses it."""

    __slots__ = ("_base", "_buckets", "_fresh")

    def __init__(self, base: PersistentMap[K, V], buckets: tuple[dict[K, V], ...]) -> None:
        self._base = base
        self._buckets: Sequence[dict[K, V]] = buckets
        self._fresh: dict[int, dict[K, V]] = {}
        """Buckets that this copy has made, by number."""

    def __setitem__(self, key: K, value: V) -> None:
        self.own_bucket(key)[key] = value

    def get(self, key: K) -> V | None:
        number = hash(key) % _BUCKET_COUNT
        return self._fresh.get(number, self._buckets[number]).get(key)

    def __contains__(self, key: K) -> bool:
        number = hash(key) % _BUCKET_COUNT
        return key in self._fresh.get(number, self._buckets[number])

    def pop(self, key: K) -> V:
        """Remove a key and return its value. Raises KeyError."""
        return self.own_bucket(key).pop(key)

    def finish(self) -> PersistentMap[K, V]:
        """The changed copy, or the base where nothing changed. Call it once, last."""
        if not self._fresh:
            return self._base
        buckets, size = list(self._buckets), len(self._base)
        for number, bucket in self._fresh.items():
            size += len(bucket) - len(buckets[number])
            buckets[number] = bucket
        return self._base.of_buckets(tuple(buckets), size)

    def own_bucket(self, key: K) -> dict[K, V]:
        """The dictionary of the copy in which this key belongs. A caller that looks at a value before it
        replaces it does both here: a key is hashed each time it is looked up."""
        number = hash(key) % _BUCKET_COUNT
        bucket = self._fresh.get(number)
        if bucket is None:
            bucket = self._fresh[number] = self._buckets[number].copy()
        return bucket
