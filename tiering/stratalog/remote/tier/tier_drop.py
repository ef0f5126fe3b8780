"""Drops the tier of partitions: their data in the object store goes, and their local logs stay.

The order keeps every record that is on the disk:

1. No uploader has the partition, nor waits for the outcome of a commit of its.
2. The local log counts nothing of its own as tiered any more, so nothing deletes a segment because the object
   store has it.
3. The log start moves to the beginning of the local log, then the tiered end back to the log start.
4. The local log follows the log start.

Nothing is remembered beyond this process. A crash leaves a partition whose tier is whole, or shorter, and the
next pass goes on there.

If the topic is tiered again before that, a local log takes up what is left of the tier. A commit whose
outcome is unknown may land late and drop that, until another commit has landed: so long the log goes on
without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.errors import StoreError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.tier.upload_turns import UploadTurns

UPLOAD_UNDER_WAY = "upload_under_way"
"""An uploader has the partition."""
_SETTLED = -1


class RefusedDrop(NamedTuple):
    """A partition whose tier stays for now, with the reason."""

    topic_partition: TopicPartition
    reason: str


class DropReport(NamedTuple):
    """The result of one call."""

    dropped: tuple[TopicPartition, ...] = ()
    """The partitions that have no tier any more."""
    refused: tuple[RefusedDrop, ...] = ()


class _Left(NamedTuple):
    """A log that counts nothing as tiered."""

    log: UnifiedLog
    seq: int
    """A commit of ours may replace this one, and its outcome is not known; `_SETTLED` if there is none."""


class TierDrop:
    """Drops the tiers of a shard's partitions. Thread-safe: `_lock` admits one call at a time; logs, metadata
    and turns have locks of their own."""

    def __init__(self, metadata: MetadataLog, turns: UploadTurns) -> None:
        """`turns`: those of the shard's uploaders."""
        self._metadata = metadata
        self._turns = turns
        self._lock = threading.Lock()
        self._left: dict[TopicIdPartition, _Left] = {}

    @property
    def has_left(self) -> bool:
        """Whether logs count nothing as tiered."""
        return bool(self._left)

    def run(
        self, logs: Sequence[UnifiedLog], *, leader_epoch: Callable[[], int], catalog_seq: int
    ) -> DropReport:
        """Drop the tiers of these partitions, and let the logs of earlier calls that are not among them take
        up what is left of theirs. `catalog_seq` is the number of the catalog that says so, or an older one.

        Raises NotOwnerError, PreconditionFailedError (a newer configuration was used before: read the catalog
        and try again), StoreError, DataDirectoryError. The next call goes on where this one stopped.
        """
        with self._lock:
            by_tip = {_tip_of(log): log for log in logs}
            self._rejoin(by_tip)
            state = self._metadata.state()
            wanted = [tip for tip in by_tip if state.partition(tip).row.pieces]
            if not wanted:
                return DropReport()
            taken = self._turns.take(wanted, self)
            try:
                report = self._drop({tip: by_tip[tip] for tip in taken}, leader_epoch(), catalog_seq)
            finally:
                self._turns.release(taken, self)
            busy = [
                RefusedDrop(by_tip[tip].topic_partition, UPLOAD_UNDER_WAY)
                for tip in wanted
                if tip not in taken
            ]
            return report._replace(refused=(*report.refused, *busy))

    def _drop(self, logs: dict[TopicIdPartition, UnifiedLog], epoch: int, catalog_seq: int) -> DropReport:
        starts: dict[TopicIdPartition, int] = {}
        for tip, log in logs.items():
            self._left[tip] = _Left(log, _SETTLED)
            starts[tip] = log.leave_tier()
        if not starts:
            return DropReport()
        try:
            outcome = self._metadata.drop_tier(starts, epoch=epoch, catalog_seq=catalog_seq)
        except StoreError:
            seq = self._metadata.state().seq
            self._left.update((tip, _Left(log, seq)) for tip, log in logs.items())
            raise
        # Of a lost head, a rebuilt one would not know that what comes next begins there.
        self._metadata.fold_at_once()
        state = self._metadata.state()
        refused = {refusal.partition: refusal.reason for refusal in outcome.refused}
        dropped: list[TopicPartition] = []
        for tip, log in logs.items():
            partition = state.partition(tip)
            log.increment_log_start_offset(min(partition.log_start_offset, log.offsets.high_watermark))
            if tip not in refused:
                dropped.append(log.topic_partition)
        return DropReport(
            tuple(dropped),
            tuple(RefusedDrop(logs[tip].topic_partition, reason) for tip, reason in refused.items()),
        )

    def _rejoin(self, leaving: dict[TopicIdPartition, UnifiedLog]) -> None:
        """Let the logs whose tiers stay follow the shard again."""
        state = self._metadata.state()
        for tip, (log, seq) in [*self._left.items()]:
            if tip in leaving and leaving[tip] is log:
                continue
            if not log.availability.is_closed:
                if state.seq <= seq:
                    # The commit may still land. Any other one takes its place.
                    continue
                log.rejoin_tier(state.partition(tip).tiered_end_offset)
            del self._left[tip]


def _tip_of(log: UnifiedLog) -> TopicIdPartition:
    return TopicIdPartition(log.topic_id, log.topic_partition.partition)
