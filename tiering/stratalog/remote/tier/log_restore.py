"""Restores the producers and leader epochs of a log that begins anew at the tiered end, from the bucket.

Such a log belongs to an empty data directory, or replaces a log that was set aside. Its batches are in the
bucket, and so are the producers and leader epochs at the tiered end. With them, a producer that repeats its
last batch gets the offsets of the first time, a producer that goes on has the right sequence number, and a
leader epoch is still found where it began.

This has to happen before the first append. A crash in between is harmless: the next opening of the empty log
restores it again.
"""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError, DataDirectoryError, StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.log.leader_epoch_cache import EpochEntry
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.read.remote_reader import RemoteReader


def restore_log(log: UnifiedLog, reader: RemoteReader) -> bool:
    """Restore a log that was compared with the bucket. Returns whether it needed that.

    One GET, or none if the log is complete. Raises DataDirectoryError if the store's object is damaged
    or the disk fails, StoreError.
    """
    if not log.local_log.config.remote_storage_enable or not log.state_transfer.is_restorable:
        return False
    try:
        state = reader.state_at_end(TopicIdPartition(log.topic_id, log.topic_partition.partition))
        if state is None or state.producers.end_offset != log.offsets.log_end_offset:
            return False
        log.state_transfer.restore(state.producers, [EpochEntry(*epoch) for epoch in state.leader_epochs])
    except (StoreCorruptError, CorruptRecordError) as damage:
        raise DataDirectoryError(
            "the producers of an empty log cannot be restored, because the object store is damaged; restore"
            " the object from a copy",
            path=log.local_log.directory,
            reason=str(damage),
        ) from damage
    return True
