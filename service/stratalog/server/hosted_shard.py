"""A shard that this process owns: its metadata log, the epoch that was claimed, and whether it is still ours.

Once another owner has claimed the shard there is no way back within this process: every append, fetch, upload
and change is refused with FencedError until the server is started again, which claims the shard anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stratalog.base.errors import FencedError
from stratalog.remote.metadata_log import MetadataLog
from stratalog.remote.ownership import ClaimedShard

logger = logging.getLogger(__name__)


class HostedShard:
    """Thread-safe: the claim never changes, and the flag only from False to True."""

    def __init__(self, metadata: MetadataLog, claimed: ClaimedShard, on_fenced: Callable[[], None]) -> None:
        self.metadata = metadata
        self.claimed = claimed
        self._on_fenced = on_fenced
        self._is_fenced = False

    @property
    def is_fenced(self) -> bool:
        return self._is_fenced

    def leader_epoch(self) -> int:
        """The epoch to stamp into batches and to sign commits with. Raises FencedError."""
        if self._is_fenced:
            raise FencedError(
                "another server has taken over this store, go on there; a restart of this one takes it back",
                epoch=self.claimed.epoch,
                current_epoch=self.metadata.state().epoch,
            )
        return self.claimed.epoch

    def refresh(self) -> None:
        """Read the head, and notice a claim by somebody else. Raises StoreError where the store does not
        answer.
        """
        state = self.metadata.refresh()
        assert state.epoch >= self.claimed.epoch, "epochs only grow"
        if state.epoch > self.claimed.epoch:
            self._fence()

    def _fence(self) -> None:
        if not self._is_fenced:
            self._is_fenced = True
            logger.error(
                "another server has taken over the store: refusing everything, epoch=`%d`", self.claimed.epoch
            )
            self._on_fenced()
