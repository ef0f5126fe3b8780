"""Commits what only a local disk knows of the beginning of a log, before anything else of its partition.

Two things may have happened on the disk while the store was away, or before the topic was tiered:

* The log start has moved: retention of all tiers has deleted segments that were never uploaded.
* The local log begins behind the tiered end: segments that were never uploaded are gone. The records between
  are lost; a gap says so, and the upload goes on behind it.

Both are read from the log, so nothing needs to be remembered. The configuration is not asked again: what is
committed here is a fact, not a decision.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.types import TopicIdPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.metadata.shard.metadata_log import MetadataLog


def commit_local_beginnings(metadata: MetadataLog, logs: Sequence[UnifiedLog], epoch: int) -> None:
    """Commit the beginnings of these logs that the shard does not have. Asks nothing if there are none.
    Raises NotOwnerError, StoreError."""
    # The log is read before the shard, which it follows otherwise.
    starts = {
        TopicIdPartition(log.topic_id, log.topic_partition.partition): log.offsets.log_start_offset
        for log in logs
        if log.local_log.config.remote_storage_enable
    }
    state = metadata.state()
    ahead = {tip: start for tip, start in starts.items() if start > state.partition(tip).log_start_offset}
    if ahead:
        metadata.advance_log_start(ahead, epoch=epoch, catalog_seq=None)
