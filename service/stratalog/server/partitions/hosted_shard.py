"""A shard that this process owns: its metadata log, the claimed epoch, and whether the claim still holds.

Once another owner has claimed the shard, this process refuses every append, fetch, look-up of offsets, upload
and change with NotOwnerError, which names that owner. Only a restart claims the shard anew.

An owner that cannot read the head cannot notice a claim: see `StoreContact`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreError
from stratalog.remote.metadata.ownership.ownership import ClaimedShard
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardClaim
from stratalog.server.partitions.store_contact import ContactFaults, StoreContact

logger = logging.getLogger(__name__)


class HostedShard:
    """A shard that this server has claimed. Thread-safe: the claim never changes, the flag only from False to
    True, and the contact is thread-safe.
    """

    def __init__(
        self,
        clock: Clock,
        metadata: MetadataLog,
        claimed: ClaimedShard,
        on_fenced: Callable[[], None],
        max_silence_ms: int,
        faults: ContactFaults | None = None,
    ) -> None:
        """Created right after the claim. With `max_silence_ms` 0 no silence of the store is too long. The
        shards of a server share `faults`."""
        self._clock = clock
        self.metadata = metadata
        self._claimed = claimed
        self._on_fenced = on_fenced
        self.contact = StoreContact(clock, metadata, max_silence_ms, faults or ContactFaults.none())
        self._is_fenced = False

    @property
    def claimed(self) -> ClaimedShard:
        """The claim by which this server serves the shard."""
        return self._claimed

    @property
    def is_followed(self) -> bool:
        """Another server owns the shard, and this one only reads it."""
        return False

    @property
    def is_fenced(self) -> bool:
        return self._is_fenced

    @property
    def owner(self) -> ShardClaim:
        """The newest claim that a look has found: ours, or that of the server to use."""
        return self.metadata.state().claims[-1]

    @property
    def takeover(self) -> ShardClaim | None:
        """The claim that ended ours; None if no look has found one."""
        if not self._is_fenced:
            return None
        return next(claim for claim in self.metadata.state().claims if claim.epoch > self.claimed.epoch)

    def leader_epoch(self) -> int:
        """The epoch to stamp into batches and to sign commits with. Raises NotOwnerError."""
        if self._is_fenced:
            raise self.owner.not_owner()
        return self.claimed.epoch

    def refresh(self) -> None:
        """Read the head, notice the claim of another owner, and log what has changed in the contact with the
        store. Raises StoreError if the head cannot be read.
        """
        asked_s, asked_ms = self._clock.monotonic_s(), self._clock.now_ms()
        try:
            state = self.metadata.refresh(dated=self.contact.is_comparison_due)
            self.contact.note_answer(asked_s, asked_ms)
        except StoreError as error:
            self.contact.note_failure(asked_s, error)
            raise
        finally:
            self.contact.log_changes()
        assert state.epoch >= self.claimed.epoch, "epochs only grow"
        if state.epoch > self.claimed.epoch:
            self._fence()

    def _fence(self) -> None:
        if not self._is_fenced:
            self._is_fenced = True
            takeover = self.takeover
            assert takeover is not None, "the flag is set"
            logger.error(
                "shard %d: another server, %s at `%s`, has owned it since epoch %d: refusing everything of"
                " the shard; its local logs stay as they are, and a restart of this server takes it back,"
                " epoch=`%d`",
                self.metadata.shard,
                takeover.owner,
                takeover.endpoint,
                takeover.epoch,
                self.claimed.epoch,
            )
            self._on_fenced()
