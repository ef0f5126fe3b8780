"""The leader epochs of a partition over both tiers, and the check whether a reader is in the same log.

Each leader epoch is one server's time as the owner. A new owner begins behind what it has of the partition:
the tiered records, and its own local ones if no other server was between. So if two logs have the same epoch
at an offset, they are the same up to there. A reader that comes back sends its position and the epoch before
it; one comparison tells whether this log is the one that it has read.

Epochs of removed records stay: the local log and the slices keep them through compaction, so an epoch spans
the holes behind its records. The log start cuts them off: below it nothing is known, and nothing compared.

The local log knows the epochs from the log start on. If its file was lost, it knows those of its own
segments, and the slices in the object store tell the others.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from stratalog.base.errors import LogTruncatedError
from stratalog.log.leader_epoch_cache import EpochEnd, LeaderEpochCache
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.slice_entry import joined_epochs
from stratalog.server.log_identity import UNKNOWN_EPOCH


class EpochHistory(NamedTuple):
    """The epochs of a partition at one moment. Making one is cheap."""

    local: LeaderEpochCache
    tiered: TieredPartition | None
    """The tiered part; None if the topic is not tiered or has no commit yet."""
    log_start_offset: int
    log_end_offset: int

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`, or of the last one before it where compaction left a hole.
        `UNKNOWN_EPOCH` outside of the log.
        """
        if not self.log_start_offset <= offset < self.log_end_offset:
            return UNKNOWN_EPOCH
        found = self.local.epoch_for_offset(offset)
        return self._tiered_epoch_at(offset) if found is None else found

    def require_same(self, offset: int, last_fetched_epoch: int) -> None:
        """Check that a reader at `offset`, whose last record had this epoch, has read this log. Raises
        LogTruncatedError if not.
        """
        if offset <= self.log_end_offset:
            found = self.epoch_at(offset - 1)
            if found in (UNKNOWN_EPOCH, last_fetched_epoch):
                return
        common = self._end_of(last_fetched_epoch)
        raise LogTruncatedError(
            "the log never had the records before this offset that you have read; go on from end_offset, and"
            " forget what you read above it",
            epoch=common.epoch,
            end_offset=min(common.end_offset, offset),
            offset=offset,
            last_fetched_epoch=last_fetched_epoch,
        )

    def _end_of(self, epoch: int) -> EpochEnd:
        """The end of `epoch`, or else of the highest one below that the log has; inside the log."""
        slices = () if self.tiered is None else self.tiered.slices
        entries = list(joined_epochs(live.entry for live in slices))
        latest_epoch = entries[-1].epoch if entries else UNKNOWN_EPOCH
        starts = [(entry.epoch, entry.start_offset) for entry in entries]
        starts += [(one.epoch, one.start_offset) for one in self.local.entries if one.epoch > latest_epoch]
        count = bisect_right(starts, epoch, key=lambda start: start[0])
        end_offset = starts[count][1] if count < len(starts) else self.log_end_offset
        known_epoch = starts[count - 1][0] if count else epoch
        return EpochEnd(known_epoch, min(max(end_offset, self.log_start_offset), self.log_end_offset))

    def _tiered_epoch_at(self, offset: int) -> int:
        if self.tiered is None or offset >= self.tiered.tiered_end_offset:
            return UNKNOWN_EPOCH
        # Each slice names the epoch that it begins in, unless it was written without batches.
        for live in self.tiered.slices.ending_at(offset):
            epochs = live.entry.leader_epochs
            known_count = bisect_right(epochs, offset, key=lambda epoch: epoch.start_offset)
            if known_count:
                return epochs[known_count - 1].epoch
        return UNKNOWN_EPOCH
