"""The metrics of caches: pages of metadata and tiered data, and the reads behind them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from stratalog.remote.loading_cache import CacheStats
from stratalog.remote.read.object_reads import ObjectReads
from stratalog.server.metrics.families import counter, counters, gauge, gauges
from stratalog.server.partitions.shard_set import ShardSet


def of_metadata_cache(shards: ShardSet) -> Iterator[Metric]:
    """Yield those of the caches of checkpoint pages, which all shards share."""
    metadata = next((shard.metadata for shard in shards), None)
    if metadata is None:
        return
    yield from _of_page_disk(metadata.page_disk_stats)
    stats = metadata.page_cache_stats
    for name, text, value in (
        ("bytes", "Size of the pages of metadata in memory.", stats.size_bytes),
        ("capacity_bytes", "The largest size.", stats.capacity_bytes),
        ("entries", "Pages in memory; one that is there in both forms counts twice.", stats.entry_count),
    ):
        yield gauge("metadata_cache_" + name, text, value)
    for name, text, value in (
        ("hits", "Look-ups that found their page in memory.", stats.hit_count),
        ("misses", "Look-ups that asked the disk next, and then the store.", stats.miss_count),
        ("evictions", "Pages that left the cache because others needed the space.", stats.eviction_count),
    ):
        yield counter("metadata_cache_" + name, text, value)


def _of_page_disk(stats: CacheStats | None) -> Iterator[Metric]:
    if stats is None:
        return
    for name, text, value in (
        ("bytes", "Size of the files of pages of metadata on disk.", stats.size_bytes),
        ("capacity_bytes", "The largest size.", stats.capacity_bytes),
        ("entries", "Pages on disk.", stats.entry_count),
    ):
        yield gauge("metadata_disk_cache_" + name, text, value)
    for name, text, value in (
        ("hits", "Pages that were read from the disk.", stats.hit_count),
        ("misses", "Pages that the disk did not have, which the store was asked for.", stats.miss_count),
    ):
        yield counter("metadata_disk_cache_" + name, text, value)


def of_caches(reads: ObjectReads) -> Iterator[Metric]:
    """Yield the caches of tiered data."""
    found = reads.cache_stats
    caches = {"data": found.data, "index": found.indexes}
    if found.disk is not None:
        caches["disk"] = found.disk
    for name, text, values in (
        ("entries", "Values in the cache.", {key: one.entry_count for key, one in caches.items()}),
        ("bytes", "Size of these values.", {key: one.size_bytes for key, one in caches.items()}),
        ("capacity_bytes", "The largest size.", {key: one.capacity_bytes for key, one in caches.items()}),
    ):
        yield gauges("remote_read_cache_" + name, text, "cache", values)
    for name, text, counts in (
        ("hits", "Look-ups that found their value.", {key: one.hit_count for key, one in caches.items()}),
        ("misses", "Look-ups that did not find it.", {key: one.miss_count for key, one in caches.items()}),
    ):
        labelled = (((key,), count) for key, count in counts.items())
        yield counters("remote_read_cache_" + name, text, ("cache",), labelled)


def of_remote_reads(reads: ObjectReads) -> Iterator[Metric]:
    """Yield the requests of readers, and what was read ahead."""
    gets, ahead = reads.gets.stats, reads.read_ahead_stats
    yield gauge(
        "remote_read_ahead_waiting_bytes",
        "Bytes that were read ahead and wait for their reader.",
        ahead.waiting_bytes,
    )
    for name, text, value in (
        ("gets", "Ranges of objects that readers had fetched.", gets.get_count),
        ("get_failures", "Fetches that failed.", gets.failed_count),
        ("get_bytes", "Bytes that were fetched.", gets.size_bytes),
        ("get_duration_secs", "Seconds that the fetches took together.", gets.duration_s),
        ("hedges", "Second requests for slow ones.", gets.hedge_count),
        ("hedges_won", "Second requests that answered first.", gets.hedge_won_count),
        ("ahead_used_bytes", "Bytes that were read ahead and used.", ahead.used_bytes),
        ("ahead_wasted_bytes", "Bytes that were read ahead for nothing.", ahead.wasted_bytes),
        (
            "damaged_files",
            "Files of the cache on disk that were damaged or could not be read.",
            0 if reads.disk is None else reads.disk.damaged_count,
        ),
    ):
        yield counter("remote_read_" + name, text, value)
