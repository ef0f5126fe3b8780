"""A log that begins anew at the tiered end learns from the bucket what lies below it.

That is the log of an empty data directory, and one that was set aside: its batches are in the bucket, and so
is what was known of its producers and leader epochs. With it, a producer that sends its last batch again is
answered with the offsets of the first time, one that goes on is at the right sequence number, and a leader
epoch is still found where it began.

It has to be done before anything is appended. A crash in between does no harm: an empty log that has not been
told is told when it is opened next.
"""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError, DataDirectoryError, StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.log.leader_epoch_cache import EpochEntry
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.tier.remote_reader import RemoteReader


def restore_log(log: UnifiedLog, reader: RemoteReader) -> bool:
    """Tell the log, which was compared with the bucket, what it has to be told; whether there was anything.

    One GET, or none where the log knows itself. Raises DataDirectoryError where the store has damage there,
    or the disk fails, StoreError.
    """
    if not log.config.remote_storage_enable or not log.state_transfer.is_restorable:
        return False
    try:
        state = reader.state_at_end(TopicIdPartition(log.topic_id, log.topic_partition.partition))
        if state is None or state.producers.end_offset != log.log_end_offset:
            return False
        log.state_transfer.restore(state.producers, [EpochEntry(*epoch) for epoch in state.leader_epochs])
    except (StoreCorruptError, CorruptRecordError) as damage:
        raise DataDirectoryError(
            "an empty log cannot learn what lies below it, the object store has that damaged; restore the"
            " object from a copy",
            path=log.directory,
            reason=str(damage),
        ) from damage
    return True
