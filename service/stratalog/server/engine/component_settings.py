"""The settings of components, from the configuration of the server. All functions are pure."""

from __future__ import annotations

from dataclasses import replace

from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.objectstore.counted import RequestPrices
from stratalog.remote.read.object_reads import RemoteReaderSettings
from stratalog.remote.tier.uploader_settings import UploaderSettings
from stratalog.server.background.waiting_tails import BUSY_FACTOR, CommitSettings
from stratalog.server.configuration.broker_config import BrokerConfig

UPLOAD_MEMORY_BYTES = 64 << 20
"""The memory of the objects that are on their way to the store, of all shards: once for segments, once for
tails, which a backlog of segments must not slow down. Objects beyond it are in scratch files."""


def uploader_settings(config: BrokerConfig) -> UploaderSettings:
    """The settings of the uploads of rolled segments."""
    return UploaderSettings(
        # A sixteenth is left for indexes and key streams, so that an object is one request.
        max_object_bytes=config.copied_object_bytes - config.copied_object_bytes // 16,
        put_count=config.copy_thread_count,
        stall_ms=config.copy_stall_ms,
        # Above the space that is enough for `FreeSpace`: what is uploaded need not be dropped.
        short_below_bytes=config.min_free_bytes + config.min_free_bytes // 2,
        max_bytes_per_s=config.max_copied_bytes_per_s,
        max_requests_per_s=config.max_copy_requests_per_s,
    )


def reader_settings(config: BrokerConfig) -> RemoteReaderSettings:
    """The settings of reads of tiered data."""
    return RemoteReaderSettings(
        chunk_bytes=config.read_chunk_bytes,
        read_ahead_bytes=config.read_ahead_bytes,
        hedge_percent=config.read_hedge_percent,
        data_cache_bytes=config.read_cache_bytes,
    )


def tail_settings(config: BrokerConfig) -> UploaderSettings:
    """The settings of the uploads of waiting tails. A turn waits for an object that hangs, so the object is
    given up when the appends in it are. The budgets are those of segments."""
    return replace(
        uploader_settings(config),
        # A turn has the bytes that begin it, and what comes until then: that needs no object of its own.
        max_object_bytes=BUSY_FACTOR * config.commit_buffer_bytes,
        put_backoff_ms=50,
        stall_ms=min(config.copy_stall_ms, config.commit_timeout_ms),
        short_below_bytes=0,
    )


def commit_settings(config: BrokerConfig) -> CommitSettings:
    """The settings of the commits of waiting tails."""
    return CommitSettings(
        interval_ms=config.commit_interval_ms,
        buffer_bytes=config.commit_buffer_bytes,
        max_slices_per_s=config.max_committed_slices_per_s,
        timeout_ms=config.commit_timeout_ms,
    )


def compaction_settings(config: BrokerConfig, spool_directory: str) -> CompactionSettings:
    """The settings of the compaction of tiered data, with its scratch files in that directory."""
    return CompactionSettings(spool_directory=spool_directory, **config.compaction)


def request_prices(config: BrokerConfig) -> RequestPrices:
    """The prices of the store's requests, which plans of compaction have, too."""
    settings = compaction_settings(config, "/")
    return RequestPrices(settings.get_price, settings.put_price)
