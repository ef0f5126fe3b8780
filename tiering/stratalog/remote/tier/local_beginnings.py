"""Commits what only a local disk knows of the beginning of a log, before anything else of its partition.

Two things may have happened on the disk while the store was away, or before the topic was tiered:

* The log start has moved: retention of all tiers has deleted segments that were never uploaded.
* The local log begins behind the tiered end: segments that were never uploaded are gone. The records between
  are lost; a gap says so, and the upload goes on behind it.

Both are read from the log, so nothing needs to be remembered. The configuration is not asked again: what is
committed here is a fact, not a decision. Only the reason of a gap follows from it: under the policy `drop`
the server has dropped the segments itself; under any other they are missing on the disk, which the log says
as an error. Neither waits for an operator: the loss is there, and an upload that stood still would risk all
later records as well.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stratalog.base.types import TopicIdPartition
from stratalog.log.log_config import BacklogPolicy
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_judge import LostRange, Refusal
from stratalog.remote.metadata.shard.tiered_partition import GapReason

logger = logging.getLogger(__name__)


def commit_local_beginnings(
    metadata: MetadataLog, logs: Sequence[UnifiedLog], epoch: int
) -> tuple[Refusal, ...]:
    """Commit the beginnings of these logs that the shard does not have. Asks nothing if there are none.
    Returns the gaps that the metadata refused. Raises NotOwnerError, StoreError."""
    # The log is read before the shard, which it follows otherwise.
    beginnings = {
        TopicIdPartition(log.topic_id, log.topic_partition.partition): (
            log,
            log.offsets.log_start_offset,
            log.local_log.segments.start_offset,
        )
        for log in logs
        if log.local_log.config.remote_storage_enable
    }
    state = metadata.state()
    ahead = {
        tip: start
        for tip, (_, start, _) in beginnings.items()
        if start > state.partition(tip).log_start_offset
    }
    if ahead:
        metadata.advance_log_start(ahead, epoch=epoch, catalog_seq=None)
        state = metadata.state()
    lost = [
        LostRange(tip, state.partition(tip).tiered_end_offset, begin_offset, _reason(log))
        for tip, (log, _, begin_offset) in beginnings.items()
        if begin_offset > state.partition(tip).tiered_end_offset and tip.topic_id not in state.dropped_topics
    ]
    if not lost:
        return ()
    outcome = metadata.add_gaps(lost, epoch)
    refused = {one.partition for one in outcome.refused}
    for one in lost:
        if one.partition not in refused:
            _tell(beginnings[one.partition][0], one)
    return outcome.refused


def _reason(log: UnifiedLog) -> GapReason:
    is_dropped = log.local_log.config.remote_copy_backlog_policy is BacklogPolicy.DROP
    return GapReason.DROPPED_BY_POLICY if is_dropped else GapReason.MISSING_ON_LOCAL_DISK


def _tell(log: UnifiedLog, lost: LostRange) -> None:
    is_policy = lost.reason is GapReason.DROPPED_BY_POLICY
    logger.log(
        logging.WARNING if is_policy else logging.ERROR,
        "%s: records that never reached the object store are lost, and the loss is on record there; the"
        " upload goes on behind it%s, base_offset=`%d` end_offset=`%d` reason=`%s`",
        log.topic_partition,
        "" if is_policy else "; look at the disk, because no rule has deleted these segments",
        lost.base_offset,
        lost.end_offset,
        lost.reason.value,
    )
