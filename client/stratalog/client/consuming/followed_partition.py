"""The position of a reader in one partition, and the end of its range there.

The end of a range is an offset that was looked up in the log of one server. A successor may have lost the
tail of that log, and have other records below the end. Leader epochs tell them apart: a batch has the epoch
of the server that appended it, and epochs only grow along a log. So all records that were there at the
look-up have its epoch or an older one, and the first batch of a newer epoch is behind the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.base.errors import CorruptRecordError
from stratalog.client.consuming.fetch_decoding import ReceivedPartition
from stratalog.client.messages import OffsetAnswer
from stratalog.record.batch import batches


@dataclass(slots=True)
class FollowedPartition:
    """The position in a partition. Belongs to its follower's event loop."""

    next_offset: int
    end_offset: int | None = None
    """The end of the range, exclusive; None: there is none."""
    end_epoch: int = 0
    """The leader epoch of the server when the end was looked up. 0: the end is an offset, whatever the
    epoch."""
    leader_epoch: int = 0
    """The leader epoch of the last server that the end was compared with. 0: the next one, whichever it
    is."""
    last_epoch: int = -1
    """The leader epoch before the position; -1 if none is known."""

    @property
    def is_done(self) -> bool:
        return self.end_offset is not None and self.next_offset >= self.end_offset

    def end_with(self, latest: OffsetAnswer) -> None:
        """End where the log ends, if not before."""
        self.end_offset = latest.offset if self.end_offset is None else min(self.end_offset, latest.offset)
        self.end_epoch = self.end_epoch or latest.leader_epoch
        self.leader_epoch = latest.leader_epoch

    def end_before_newer(self, answer: ReceivedPartition) -> None:
        """End before the first batch of the answer that was appended after the end was looked up."""
        if self.end_offset is None or not self.end_epoch or 0 <= answer.last_epoch <= self.end_epoch:
            return
        try:
            for _, header in batches(answer.batches):
                if header.leader_epoch > self.end_epoch:
                    # The batch may begin before the position.
                    self.end_offset = min(self.end_offset, max(header.base_offset, self.next_offset))
                    return
        except CorruptRecordError:
            # The reader meets it, behind the records before it.
            return

    def pass_epoch(self, answer: ReceivedPartition, last_epoch: int) -> None:
        """Note the epoch before a new position in the answer: at its end the server says which, because no
        batch may be left of it; before that it is the one of the last batch, or -1 without any."""
        if self.next_offset == answer.next_fetch_offset and answer.last_epoch >= 0:
            last_epoch = answer.last_epoch
        if last_epoch >= 0:
            self.last_epoch = last_epoch
