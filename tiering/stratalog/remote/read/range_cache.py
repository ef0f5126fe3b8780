"""The ranges of objects in memory: bounded, each loaded once however many readers ask for it.

A range has any size, and no two overlap: one that is loaded ends where the next one that is there begins. The
least recently used range is evicted first, in constant time. Ranges that are being loaded do not count, so
each thread may exceed the bound by one of them. A range larger than the whole cache is returned and not kept.

Read-ahead reserves ranges, and loads them on another thread: those that follow each other by one request, and
each of them is there as soon as its bytes have come. A reader that needs a range before that thread has begun
loads it itself, so no reader waits for a thread that is busy. A reader that waits for such a load
sends a second request once the first is late; the first good answer counts. What read-ahead has reserved or
loaded, and no reader has used yet, takes at most half of the cache.

Below the memory lies an optional cache on disk. A range that it has is loaded from there; what comes from the
store is offered to it.

Objects are immutable and keys are never reused, so the cache never holds old data.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

from stratalog.remote.loading_cache import CacheStats
from stratalog.remote.read.range_map import RangeMap

FetchRange = Callable[[str, int, int], bytes]
"""Returns bytes [start, end) of the object with a key. Raises StoreError."""

_OVERHEAD_BYTES = 512
"""Memory of a range beside its data, so that many small ones are bounded, too."""


class ReadAheadStats(NamedTuple):
    """Bytes that read-ahead has loaded, since the start."""

    used_bytes: int
    """Ranges that a reader has used."""
    wasted_bytes: int
    """Ranges that were evicted before."""
    waiting_bytes: int
    """Ranges that wait for their first reader, or are being loaded."""


class DiskExtent(NamedTuple):
    """Bytes [start, end) of an object, in the cache on disk."""

    start: int
    end: int


class LowerCache(Protocol):
    """The part of a cache on disk that this cache uses. Thread-safe; no method raises OSError."""

    def extent(self, key: str, position: int) -> DiskExtent | None:
        """The range that has the byte at `position`."""
        ...

    def start_behind(self, key: str, position: int) -> int | None:
        """The start of the first range behind `position`."""
        ...

    def read(self, key: str, start: int) -> bytes | None:
        """The range that begins at `start`; None if it is gone or damaged."""
        ...

    def offer(self, key: str, start: int, data: bytes) -> None:
        """Keep a range that came from the store, soon, or not at all."""
        ...

    def forget(self, key: str, start: int, end: int) -> None:
        """Remove what has a byte of [start, end)."""
        ...


class AheadSource(Protocol):
    """The store, for loads of read-ahead. Thread-safe."""

    def now_s(self) -> float:
        """The time at which a load begins, for `wait`."""
        ...

    def pieces(self, key: str, start: int, ends: Sequence[int]) -> Iterator[bytes]:
        """The bytes of the object with a key from `start` up to each of `ends`, by one request, each piece as
        it comes. Raises StoreError."""
        ...

    def wait(self, condition: threading.Condition, size_bytes: int, begin_s: float) -> bool:
        """Wait for `condition`; returns whether a load of this size that began at `begin_s` is late."""
        ...

    def send_rival(self, key: str, start: int, end: int, take: Callable[[bytes], bool]) -> bool:
        """Send a second request, which passes its data to `take`; False if there is none to spare."""
        ...


class _Request(NamedTuple):
    """A request of read-ahead to the store."""

    start: int
    """Its first byte."""
    begin_s: float


class _State(enum.Enum):
    RESERVED = "reserved"
    """No thread loads it yet."""
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    """It is in the cache no longer; its readers load it again."""


class CachedRange:
    """Bytes [start, end) of an object. Its data never change once loaded; the rest is guarded by the
    cache's condition."""

    __slots__ = ("data", "end", "extent", "has_rival", "is_ahead", "key", "request", "start", "state")

    def __init__(self, key: str, start: int, end: int, extent: DiskExtent | None, *, is_ahead: bool) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.extent = extent
        """The range on disk that has it."""
        self.is_ahead = is_ahead
        """Read-ahead asked for it, and no reader has used it yet."""
        self.state = _State.RESERVED
        self.request: _Request | None = None
        """That of read-ahead which loads it from the store; None if none does."""
        self.has_rival = False
        """A reader has sent a second request, or was refused one."""
        self.data = b""

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class RangeCache:
    """Ranges of objects in memory. Thread-safe: `_condition` guards everything; loads run outside it."""

    def __init__(
        self,
        capacity_bytes: int,
        fetch: FetchRange,
        disk: LowerCache | None = None,
        ahead: AheadSource | None = None,
    ) -> None:
        """Without `ahead`, read-ahead uses `fetch` as well, and its loads get no second request."""
        assert capacity_bytes >= 0
        self._capacity_bytes = capacity_bytes
        self._fetch = fetch
        self._disk = disk
        self._ahead = ahead
        self._condition = threading.Condition()
        self._ranges: RangeMap[CachedRange] = RangeMap()
        self._loaded: OrderedDict[CachedRange, None] = OrderedDict()
        self._size_bytes = 0
        self._hit_count = self._miss_count = 0
        self._ahead_bytes = self._used_ahead_bytes = self._wasted_ahead_bytes = 0

    @property
    def stats(self) -> CacheStats:
        with self._condition:
            return CacheStats(
                len(self._loaded), self._size_bytes, self._capacity_bytes, self._hit_count, self._miss_count
            )

    @property
    def read_ahead_stats(self) -> ReadAheadStats:
        with self._condition:
            return ReadAheadStats(self._used_ahead_bytes, self._wasted_ahead_bytes, self._ahead_bytes)

    def clear(self) -> int:
        """Remove all ranges from memory; returns their size. Loads in progress are kept when they end."""
        with self._condition:
            size_bytes = self._size_bytes
            for one in tuple(self._loaded):
                self._remove(one)
            return size_bytes

    def get(self, key: str, position: int, end: int) -> CachedRange:
        """A loaded range with the byte at `position`. If there is none, [position, end) is loaded, or less
        where another range begins. Raises the errors of the load, to its own caller only: callers that wait
        for it try again.
        """
        with self._condition:
            one = self._ranges.find(key, position)
            while one is not None and one.state is _State.LOADING:
                self._wait(one)
                one = self._ranges.find(key, position)
            if one is None:
                one = self._reserve(key, position, end, is_ahead=False)
            if one.state is _State.LOADED:
                self._hit_count += 1
                self._use(one)
                return one
            self._miss_count += 1
            self._end_ahead(one)
            one.state = _State.LOADING
        self._load([one], self._fetched([one]))
        return one

    def find_loaded(self, key: str, position: int) -> CachedRange | None:
        """The range with the byte at `position` if it is in memory."""
        with self._condition:
            one = self._ranges.find(key, position)
            if one is None or one.state is not _State.LOADED:
                return None
            self._hit_count += 1
            self._use(one)
            return one

    def end_of(self, key: str, position: int) -> int | None:
        """The end of the range with the byte at `position` that is in memory, or is or will be loaded."""
        with self._condition:
            one = self._ranges.find(key, position)
            return None if one is None else one.end

    def reserve_ahead(self, key: str, position: int, end: int) -> CachedRange | None:
        """Reserve [position, end) for `load_ahead`, or less where another range begins. Another reader may
        have reserved or loaded the position meanwhile: returns that range then. Returns None if what was read
        ahead and not used yet takes too much of the cache already."""
        with self._condition:
            one = self._ranges.find(key, position)
            if one is not None:
                return one
            if self._ahead_bytes + end - position > self._capacity_bytes // 2:
                return None
            return self._reserve(key, position, end, is_ahead=True)

    def load_ahead(self, ranges: Sequence[CachedRange]) -> None:
        """Load reserved ranges of one object, in the order of their places, unless a reader does so already.
        Raises the errors of the load, and gives up what is still reserved then."""
        try:
            while run := self._begin_run(ranges):
                self._load(
                    run, self._fetched(run) if self._ahead is None else self._requested(run, self._ahead)
                )
        except BaseException:
            self.drop_ahead(ranges)
            raise

    def drop_ahead(self, ranges: Sequence[CachedRange]) -> None:
        """Give up reserved ranges that no thread has begun to load. Another reader that comes to one loads it
        itself."""
        with self._condition:
            for one in ranges:
                if one.state is _State.RESERVED:
                    one.state = _State.FAILED
                    self._discard(one)

    def still_reserved(self, ranges: Sequence[CachedRange]) -> list[CachedRange]:
        """Those that no thread has begun to load."""
        with self._condition:
            return [one for one in ranges if one.state is _State.RESERVED]

    def forget(self, key: str, start: int, end: int) -> None:
        """Remove what has a byte of [start, end), also from the disk: the next `get` fetches it again."""
        with self._condition:
            for one in self._ranges.within(key, start, end):
                if one.state is _State.LOADED:
                    self._remove(one)
        if self._disk is not None:
            self._disk.forget(key, start, end)

    def check(self) -> None:
        with self._condition:
            self._ranges.check()
            assert self._size_bytes == sum(map(_cost_bytes, self._loaded)) <= self._capacity_bytes
            assert all(one.state is _State.LOADED for one in self._loaded)
            assert sum(one.state is _State.LOADED for one in self._ranges) == len(self._loaded)
            assert self._ahead_bytes == sum(one.size_bytes for one in self._ranges if one.is_ahead)

    def _reserve(self, key: str, position: int, end: int, *, is_ahead: bool) -> CachedRange:
        """Reserve the range for a position that no range has: what the disk has around it, or else
        [position, end), in either case without what is there already."""
        extent = None
        start = position
        if self._disk is not None:
            extent = self._disk.extent(key, position)
            if extent is not None:
                start, end = max(extent.start, self._ranges.end_before(key, position)), extent.end
            else:
                end = _lower(end, self._disk.start_behind(key, position))
        end = _lower(end, self._ranges.start_behind(key, position))
        one = CachedRange(key, start, end, extent, is_ahead=is_ahead)
        self._ranges.add(one)
        self._ahead_bytes += one.size_bytes if is_ahead else 0
        return one

    def _begin_run(self, ranges: Sequence[CachedRange]) -> Sequence[CachedRange]:
        """Mark the first of the reserved ranges as loading, with those behind it that one request brings;
        none if none is reserved any more."""
        run: list[CachedRange] = []
        with self._condition:
            for one in ranges:
                if run and (one.start != run[-1].end or one.extent is not None):
                    break
                if one.state is _State.RESERVED:
                    run.append(one)
                elif run:
                    break
                if run and one.extent is not None:
                    break
            for one in run:
                one.state = _State.LOADING
                if self._ahead is not None and one.extent is None:
                    one.request = _Request(run[0].start, self._ahead.now_s())
        return run

    def _wait(self, one: CachedRange) -> None:
        """Wait until a load has ended, this one as a rule; send it a rival if it is late."""
        request = one.request
        if self._ahead is None or request is None or one.has_rival:
            self._condition.wait()
            return
        size_bytes = one.end - request.start
        if self._ahead.wait(self._condition, size_bytes, request.begin_s) and one.state is _State.LOADING:
            one.has_rival = True
            self._condition.release()
            try:
                self._ahead.send_rival(one.key, one.start, one.end, lambda data: self._finish(one, data))
            finally:
                self._condition.acquire()

    def _fetched(self, run: Sequence[CachedRange]) -> Generator[bytes]:
        """The data of ranges, by a request for each."""
        for one in run:
            yield self._fetch(one.key, one.start, one.end)

    def _requested(self, run: Sequence[CachedRange], ahead: AheadSource) -> Generator[bytes]:
        """The data of ranges that follow each other, by one request of read-ahead."""
        yield from ahead.pieces(run[0].key, run[0].start, [one.end for one in run])

    def _load(self, run: Sequence[CachedRange], from_store: Generator[bytes]) -> None:
        """Load ranges that this thread has marked as loading."""
        try:
            with closing(from_store):
                for one in run:
                    self._finish(one, self._from_disk(one) or self._from_store(one, from_store))
        except BaseException:
            with self._condition:
                for one in run:
                    # Those that have come stay, and a rival may have loaded one by now.
                    if one.state is _State.LOADING:
                        one.state = _State.FAILED
                        self._discard(one)
                self._condition.notify_all()
            raise

    def _finish(self, one: CachedRange, data: bytes) -> bool:
        """Keep the data of a range; returns False if another load came first, or failed."""
        assert len(data) == one.size_bytes, "a load returns the whole range"
        with self._condition:
            if one.state is not _State.LOADING:
                return False
            one.data = data
            one.state = _State.LOADED
            if _cost_bytes(one) > self._capacity_bytes:
                self._discard(one)
            else:
                self._loaded[one] = None
                self._size_bytes += _cost_bytes(one)
                while self._size_bytes > self._capacity_bytes:
                    self._remove(next(iter(self._loaded)))
            self._condition.notify_all()
            return True

    def _from_disk(self, one: CachedRange) -> bytes | None:
        if self._disk is None or one.extent is None:
            return None
        data = self._disk.read(one.key, one.extent.start)
        if data is None or len(data) != one.extent.end - one.extent.start:
            return None
        return data[one.start - one.extent.start : one.end - one.extent.start]

    def _from_store(self, one: CachedRange, from_store: Iterator[bytes]) -> bytes:
        data = next(from_store)
        if self._disk is not None:
            self._disk.offer(one.key, one.start, data)
        return data

    def _use(self, one: CachedRange) -> None:
        if one in self._loaded:
            self._loaded.move_to_end(one)
        if self._end_ahead(one):
            self._used_ahead_bytes += one.size_bytes

    def _end_ahead(self, one: CachedRange) -> bool:
        """Note that the range no longer waits for its first reader; returns whether it did."""
        was_ahead, one.is_ahead = one.is_ahead, False
        self._ahead_bytes -= one.size_bytes if was_ahead else 0
        return was_ahead

    def _remove(self, one: CachedRange) -> None:
        del self._loaded[one]
        self._size_bytes -= _cost_bytes(one)
        self._discard(one)

    def _discard(self, one: CachedRange) -> None:
        """Take a range out of the map. What was read ahead for nothing is counted."""
        self._ranges.remove(one)
        if self._end_ahead(one) and one.state is _State.LOADED:
            self._wasted_ahead_bytes += one.size_bytes


def _cost_bytes(one: CachedRange) -> int:
    return one.size_bytes + _OVERHEAD_BYTES


def _lower(end: int, other: int | None) -> int:
    return end if other is None else min(end, other)
