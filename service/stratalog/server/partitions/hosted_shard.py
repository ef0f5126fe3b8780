"""A shard that this process owns: its metadata log, the claimed epoch, and whether the claim still holds.

Once another owner has claimed the shard, this process refuses every append, fetch, look-up of offsets, upload
and change with NotOwnerError, which names that owner. Only a restart claims the shard anew.

An owner that cannot read the head cannot notice a claim. If that lasts longer than a bound, it stops
acknowledging `disk`, because a new owner would set those records aside. The next answer of the store
ends that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreUnavailableError
from stratalog.remote.metadata.ownership.ownership import ClaimedShard
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardClaim

logger = logging.getLogger(__name__)


class HostedShard:
    """A shard that this server has claimed. Thread-safe: the claim never changes, the flag only from False to
    True, and of two looks at the head that run at once either may be remembered.
    """

    def __init__(
        self,
        clock: Clock,
        metadata: MetadataLog,
        claimed: ClaimedShard,
        on_fenced: Callable[[], None],
        max_silence_ms: int,
    ) -> None:
        """Created right after the claim. With `max_silence_ms` 0 no silence of the store is too long."""
        self._clock = clock
        self.metadata = metadata
        self.claimed = claimed
        self._on_fenced = on_fenced
        self._max_silence_ms = max_silence_ms
        self._is_fenced = False
        self._last_look_s = clock.monotonic_s()
        """Start of the last look that the store answered; the answer may be as old."""

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

    def ensure_heard(self) -> None:
        """Check that the head of the shard was read recently. Raises StoreUnavailableError (retriable) if the
        last look at the head is older than the bound.

        Commits do not count, because looks are more frequent and use the same store.
        """
        if self._max_silence_ms == 0:
            return
        silence_ms = round((self._clock.monotonic_s() - self._last_look_s) * 1000)
        if silence_ms > self._max_silence_ms:
            raise StoreUnavailableError(
                f"the store has not answered for {silence_ms // 1000} s, another owner may have taken over;"
                " appends at disk are refused until it answers",
                silence_ms=silence_ms,
                max_silence_ms=self._max_silence_ms,
            )

    def refresh(self) -> None:
        """Read the head and notice the claim of another owner. Raises StoreError if the store does not
        answer.
        """
        asked_s = self._clock.monotonic_s()
        state = self.metadata.refresh()
        self._last_look_s = max(self._last_look_s, asked_s)
        assert state.epoch >= self.claimed.epoch, "epochs only grow"
        if state.epoch > self.claimed.epoch:
            self._fence()

    def _fence(self) -> None:
        if not self._is_fenced:
            self._is_fenced = True
            takeover = self.takeover
            assert takeover is not None, "the flag is set"
            logger.error(
                "another server, %s at `%s`, has owned the store since epoch %d: refusing everything,"
                " epoch=`%d`",
                takeover.owner,
                takeover.endpoint,
                takeover.epoch,
                self.claimed.epoch,
            )
            self._on_fenced()
