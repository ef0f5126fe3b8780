"""Whose clock decides what is old: the store's.

The store's `Date` comes with every head, is the same for all actors, and cannot be set wrong on one of
them. An actor whose own clock differs by more than five minutes has something wrong with it, and deletes
and expires nothing.
"""

from __future__ import annotations

from stratalog.base.clock import Clock
from stratalog.remote.metadata.shard.metadata_log import MetadataLog

MAX_CLOCK_SKEW_MS = 5 * 60 * 1000


def clock_skew_ms(clock: Clock, metadata: MetadataLog) -> int:
    """Own clock minus the store's, as of the last head that was read."""
    return clock.now_ms() - metadata.store_date_ms
