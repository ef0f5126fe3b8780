"""The caches and requests that the readers of all shards of a store share, within one budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError
from stratalog.base.scheduler import RunBeside
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.loading_cache import CacheStats, LoadingCache
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.read.active_readers import ActiveReaders
from stratalog.remote.read.ahead_gets import AheadGets
from stratalog.remote.read.disk_cache import DiskCache
from stratalog.remote.read.hedged_gets import HedgedGets
from stratalog.remote.read.neighbour_reads import NeighbourReads
from stratalog.remote.read.range_cache import CachedRange, RangeCache, ReadAheadStats

_SHARES_OF_A_READER: Final = 4
"""One for the range that a reader is in, two for requests ahead, and one for what it has left behind."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReaderSettings:
    """Sizes of requests and caches. Immutable."""

    first_bytes: int = 64 << 10
    """Request of a reader that begins, where it needs no index: about one index interval."""
    chunk_bytes: int = 4 << 20
    """Size of a request for data, which sequential readers come to. Where the end of a slice or a multiple of
    this size lies close behind its end, a request is up to twice as large. Read-ahead asks for several at
    once where it has room for three."""
    read_ahead_bytes: int = 32 << 20
    """How far a sequential reader reads ahead at most; 0: not at all. It needs the product of the store's
    latency and its bandwidth."""
    hedge_percent: int = 5
    """Most second requests for slow ones, in percent of all; 0: none."""
    hedge_least_ms: int = 5
    """Requests of a size that mostly take less than this get no second one."""
    data_cache_bytes: int = 192 << 20
    """Data of objects in memory. At least a few chunks for each reader that lags behind."""
    index_cache_bytes: int = 32 << 20
    """Indexes of slices in memory; about 100 KB for a slice of 256 MiB."""

    def __post_init__(self) -> None:
        assert self.first_bytes > 0
        assert self.chunk_bytes > 0
        assert self.read_ahead_bytes >= 0
        assert 0 <= self.hedge_percent <= 100
        assert self.data_cache_bytes >= 0
        assert self.index_cache_bytes >= 0


class ReaderCaches(NamedTuple):
    """The caches of tiered data."""

    data: CacheStats
    indexes: CacheStats
    disk: CacheStats | None
    """None without a cache on disk."""


class ReadThreads(NamedTuple):
    """The other threads of readers, each with a bounded number. Neither waits for the other's end."""

    ahead: RunBeside
    """Runs loads of read-ahead, which may wait for requests."""
    requests: RunBeside
    """Runs single requests, which wait for nothing else."""

    @staticmethod
    def none() -> ReadThreads:
        """Everything runs at once, within the read."""
        return ReadThreads(_at_once, _at_once)


class ObjectReads:
    """Reads objects of a store through bounded caches. Thread-safe: its parts are."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        threads: ReadThreads,
        settings: RemoteReaderSettings | None = None,
        disk: DiskCache | None = None,
    ) -> None:
        self.settings = settings or RemoteReaderSettings()
        self.gets = HedgedGets(
            store, clock, threads.requests, self.settings.hedge_percent, self.settings.hedge_least_ms
        )
        ahead = AheadGets(self.gets, clock, threads.requests)
        self.ranges = RangeCache(self.settings.data_cache_bytes, self.gets.get, disk, ahead)
        self.disk = disk
        self.indexes: LoadingCache[tuple[str, int], SliceIndex] = LoadingCache(
            self.settings.index_cache_bytes, _index_size_bytes
        )
        self.neighbours = NeighbourReads(self.settings.chunk_bytes)
        self._active = ActiveReaders()
        self._threads = threads

    @property
    def cache_stats(self) -> ReaderCaches:
        return ReaderCaches(
            self.ranges.stats, self.indexes.stats, None if self.disk is None else self.disk.stats
        )

    @property
    def read_ahead_stats(self) -> ReadAheadStats:
        return self.ranges.read_ahead_stats

    def empty_caches(self) -> int:
        """Empty all caches; returns the size of their values. Readers fetch the data again."""
        on_disk_bytes = 0 if self.disk is None else self.disk.clear()
        return self.ranges.clear() + self.indexes.clear() + on_disk_bytes

    def share_bytes(self, tip: TopicIdPartition) -> int:
        """Note a read of a partition; returns the part of the cache that its reader may fill by a request,
        and as much ahead of it. So no reader evicts what another comes back for."""
        return self.settings.data_cache_bytes // _SHARES_OF_A_READER // self._active.note(tip)

    def leave(self, tip: TopicIdPartition) -> None:
        """Note that a reader of a partition has ended, so that the others get its share of the cache."""
        self._active.leave(tip)

    def request_end(self, position: int, wanted_bytes: int, limit: int) -> int:
        """Where a request for `wanted_bytes` from `position` on ends, at most at `limit`.

        Requests of a chunk end at multiples of it in the object: stores keep objects in blocks of a few MiB,
        and a range over two blocks costs them twice the work. A rest of less than half a chunk is taken
        along.
        """
        chunk_bytes = self.settings.chunk_bytes
        end = position + wanted_bytes
        if wanted_bytes >= chunk_bytes:
            end = (end + chunk_bytes // 2) // chunk_bytes * chunk_bytes
            end = limit if limit - end < chunk_bytes // 2 else end
        return min(end, limit)

    def read_ahead(self, key: str, position: int, end: int) -> Sequence[CachedRange]:
        """Load [position, end) on another thread, or less where another range begins, by one request, in
        ranges of a chunk; returns the ranges, fewer or none if too much waits for readers already. A load
        that fails is not tried again: its reader does that.
        """
        ranges: list[CachedRange] = []
        while position < end:
            one = self.ranges.reserve_ahead(
                key, position, self.request_end(position, self.settings.chunk_bytes, end)
            )
            if one is None:
                break
            ranges.append(one)
            position = one.end
        if ranges:
            self._threads.ahead(lambda: _ignoring_failure(lambda: self.ranges.load_ahead(ranges)))
        return ranges


def _at_once(task: Callable[[], None]) -> None:
    task()


def _ignoring_failure(work: Callable[[], None]) -> None:
    try:
        work()
    except LogStoreError:
        # The reader's own request tells.
        return


def _index_size_bytes(index: SliceIndex) -> int:
    return 512 + 24 * index.interval_count + 32 * len(index.aborted) + len(index.producer_snapshot)
