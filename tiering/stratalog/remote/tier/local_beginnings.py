"""Commits what only a local disk knows of the beginning of a log, before anything else of its partition.

Two things may have happened on the disk while the store was away, or before the topic was tiered:

* The log start has moved behind the tiered end: the retention of all tiers has deleted segments that were
  never uploaded.
* The local log begins behind the tiered end: segments that were never uploaded are gone.

In both cases records are lost that the store never had. A gap says so, and the upload goes on behind it. In a
partition without slices there is nothing before what has expired, and the log start moves instead.

Both are read from the log. What is committed here is a fact, not a
decision: it takes nothing that is live. The configuration of an outage may be outdated by now, so the log
start moves past the slices by the next pass of retention only, with the configuration of then.

The caller is the uploader: a gap that is committed while objects of its partition are on their way, or while
the outcome of their commit is unknown, overtakes them, and what they hold is lost with it.

The reason of a gap in front of the first segment is that of the loss, whatever the policy is by now: the log
knows how far the server has dropped segments for space (`space_drops`). Those behind are missing on the disk,
which the log says as an error. Neither waits for an operator: the loss is there, and an upload that stood
still would risk all later records as well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicIdPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_judge import LostRange, Refusal

logger = logging.getLogger(__name__)

_LEVELS = {
    GapReason.EXPIRED: logging.INFO,
    GapReason.DROPPED_BY_POLICY: logging.WARNING,
    GapReason.MISSING_ON_LOCAL_DISK: logging.ERROR,
}


class _Beginning(NamedTuple):
    """The beginning of a local log."""

    log: UnifiedLog
    log_start_offset: int
    first_offset: int
    """The base offset of the first segment."""

    def lost(self, tip: TopicIdPartition, tiered_end_offset: int) -> Iterator[LostRange]:
        """The ranges behind the tiered end that are not in the log any more. Raises DataDirectoryError."""
        end_offset = tiered_end_offset
        if self.log_start_offset > end_offset:
            yield LostRange(tip, end_offset, self.log_start_offset, GapReason.EXPIRED)
            end_offset = self.log_start_offset
        if self.first_offset > end_offset:
            dropped_end_offset = min(self.first_offset, self.log.retention.space_drop_end_offset())
            if dropped_end_offset > end_offset:
                yield LostRange(tip, end_offset, dropped_end_offset, GapReason.DROPPED_BY_POLICY)
                end_offset = dropped_end_offset
        if self.first_offset > end_offset:
            yield LostRange(tip, end_offset, self.first_offset, GapReason.MISSING_ON_LOCAL_DISK)


def commit_local_beginnings(
    metadata: MetadataLog, logs: Sequence[UnifiedLog], epoch: int
) -> tuple[Refusal, ...]:
    """Commit the beginnings of these logs that the shard does not have. Asks nothing if there are none.
    Returns the gaps that the metadata refused. Raises NotOwnerError, StoreError."""
    # The log is read before the shard, which it follows otherwise.
    beginnings = {
        TopicIdPartition(log.topic_id, log.topic_partition.partition): _Beginning(
            log, log.offsets.log_start_offset, log.local_log.segments.start_offset
        )
        for log in logs
        if log.local_log.config.remote_storage_enable
    }
    state = metadata.state()
    lost: list[LostRange] = []
    for tip, beginning in beginnings.items():
        if tip.topic_id not in state.dropped_topics:
            try:
                lost += beginning.lost(tip, state.partition(tip).tiered_end_offset)
            except DataDirectoryError as failure:
                # Its upload fails by itself, and the others go on.
                logger.warning("%s: the reason of a loss cannot be read: %s", tip, failure)
    if not lost:
        return ()
    outcome = metadata.add_gaps(lost, epoch)
    refused = {one.partition for one in outcome.refused}
    for one in lost:
        if one.partition not in refused:
            _tell(beginnings[one.partition].log, one)
    return outcome.refused


def _tell(log: UnifiedLog, lost: LostRange) -> None:
    is_unexplained = lost.reason is GapReason.MISSING_ON_LOCAL_DISK
    logger.log(
        _LEVELS[lost.reason],
        "%s: records that never reached the object store are lost, and the loss is on record there; the"
        " upload goes on behind it%s, base_offset=`%d` end_offset=`%d` reason=`%s`",
        log.topic_partition,
        "; look at the disk, because no rule has deleted these segments" if is_unexplained else "",
        lost.base_offset,
        lost.end_offset,
        lost.reason.value,
    )
