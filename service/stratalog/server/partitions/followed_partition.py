"""A partition of another server's shard, read from the object store alone.

Its log ends at the tiered end: the high watermark is what has been committed in the store. Everything below
is read there, so the local log start is the tiered end, too, and the local log stays empty. Records appear
when a look at the head finds the upload that brought them.

A transaction that is open at the tiered end bounds readers of committed records, as its marker is not in the
store yet.
"""

from __future__ import annotations

from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.server.fetch.fetch_cursor import Watermarks
from stratalog.server.log_identity import LogIdentity
from stratalog.server.partitions.epoch_history import EpochHistory
from stratalog.server.partitions.hosted_partition import HostedPartition


class FollowedPartition(HostedPartition):
    """A partition that this server only reads. Thread-safe: each answer is made of one state of the
    metadata."""

    @property
    def identity(self) -> LogIdentity:
        """With the leader epoch of the owner, which changes when the shard is claimed anew."""
        return self._identity._replace(leader_epoch=self.shard.claimed.epoch)

    @property
    def log_start_offset(self) -> int:
        return self.watermarks().log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        return self.watermarks().local_log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.watermarks().high_watermark

    @property
    def compacted_upto(self) -> int:
        state = self.tier_state()
        return 0 if state is None else state.compacted_upto

    def watermarks(self) -> Watermarks:
        state = self.tier_state()
        if state is None:
            return Watermarks(0, 0, 0, 0)
        end_offset = state.tiered_end_offset
        undecided = (transaction.first_offset for transaction in state.open_transactions)
        return Watermarks(
            log_start_offset=state.log_start_offset,
            local_log_start_offset=end_offset,
            high_watermark=end_offset,
            last_stable_offset=min(undecided, default=end_offset),
        )

    def epoch_history(self) -> EpochHistory:
        marks, state = self.watermarks(), self.tier_state()
        return EpochHistory(self.log.state.epochs, state, marks.log_start_offset, marks.high_watermark)

    def epoch_at(self, offset: int) -> int:
        return self.epoch_history().epoch_at(offset)

    def read_local(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData:
        return self.read_tiered(offset, max_bytes, isolation)

    def read_recent(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        return None

    def read_cached(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        return None

    def read_tiered(self, offset: int, max_bytes: int, isolation: Isolation) -> FetchData:
        return self._reader.read(self.topic_id_partition, offset, max_bytes, isolation)
