"""Drops the tier of partitions: their data in the object store goes, and their local logs stay.

The order keeps every record that is on the disk:

1. No uploader has the partition, nor waits for the outcome of a commit of its.
2. What the local log has below the tiered end is read once: of records that it has damaged, the object store
   has the only sound copy, and so the tier stays.
3. The local log counts nothing of its own as tiered any more, so nothing deletes a segment because the object
   store has it.
4. The log start moves to the beginning of the local log, then the tiered end back to the log start.
5. The local log follows the log start.

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

from stratalog.base.errors import CorruptRecordError, PreconditionFailedError, StoreError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.read.log_proof import LogProof
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.tier.upload_turns import UploadTurns

UPLOAD_UNDER_WAY = "upload_under_way"
"""An uploader has the partition."""
LOCAL_DAMAGE = "local_damage"
"""The local log has damaged records that the object store has."""
LOCAL_PROOF = "local_proof_under_way"
"""The local log is read for damage; the next call goes on."""
PROVEN_BYTES = 1024 * 1024 * 1024
"""Bytes of local logs that one call reads, so that it ends soon."""
_SETTLED = -1


class LeavingLogs(NamedTuple):
    """The logs whose tiers are to be dropped."""

    catalog_seq: int
    """The number of the catalog that says so, just read."""
    logs: Sequence[UnifiedLog]


class RefusedDrop(NamedTuple):
    """A partition whose tier stays for now, with the reason."""

    topic_partition: TopicPartition
    reason: str
    damage: CorruptRecordError | None = None
    """The damage, if the reason is `LOCAL_DAMAGE`."""


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


class _Proof(NamedTuple):
    """How far a log has been read for damage."""

    log: UnifiedLog
    proof: LogProof


class TierDrop:
    """Drops the tiers of a shard's partitions. Thread-safe: `_lock` admits one call at a time; logs, metadata
    and turns have locks of their own."""

    def __init__(
        self, metadata: MetadataLog, turns: UploadTurns, *, proven_bytes: int = PROVEN_BYTES
    ) -> None:
        """`turns`: those of the shard's uploaders. `proven_bytes`: see `PROVEN_BYTES`."""
        self._metadata = metadata
        self._turns = turns
        self._proven_bytes = proven_bytes
        self._lock = threading.Lock()
        self._left: dict[TopicIdPartition, _Left] = {}
        self._proofs: dict[TopicIdPartition, _Proof] = {}

    @property
    def has_left(self) -> bool:
        """Whether logs count nothing as tiered."""
        return bool(self._left)

    def run(self, leaving: Callable[[], LeavingLogs], *, leader_epoch: Callable[[], int]) -> DropReport:
        """Drop the tiers of the partitions that are `leaving`, and let the logs of earlier calls that are not
        among them take up what is left of theirs. `leaving` reads the catalog; it is asked first, before the
        commits, and between them.

        Raises NotOwnerError, PreconditionFailedError (a topic is to stay after all, or a newer configuration
        was used before: try again), StoreError, DataDirectoryError. The next call goes on where this one
        stopped.
        """
        with self._lock:
            by_tip = _by_tip(leaving())
            self._rejoin(by_tip)
            self._proofs = {tip: one for tip, one in self._proofs.items() if by_tip.get(tip) is one.log}
            state = self._metadata.state()
            wanted = [tip for tip in by_tip if state.partition(tip).row.pieces]
            if not wanted:
                return DropReport()
            taken = self._turns.take(wanted, self)
            try:
                unproven = self._prove({tip: by_tip[tip] for tip in taken})
                sound = {tip: by_tip[tip] for tip in taken if tip not in unproven}
                report = self._drop(sound, leaving, leader_epoch()) if sound else DropReport()
            finally:
                self._turns.release(taken, self)
            busy = [
                RefusedDrop(by_tip[tip].topic_partition, UPLOAD_UNDER_WAY)
                for tip in wanted
                if tip not in taken
            ]
            return report._replace(refused=(*report.refused, *unproven.values(), *busy))

    def _prove(self, logs: dict[TopicIdPartition, UnifiedLog]) -> dict[TopicIdPartition, RefusedDrop]:
        """Read on in what these logs have below their tiered ends; returns those that are not proven to be
        sound. A sound record is read once, however many calls a drop takes. Raises DataDirectoryError."""
        state, remaining_bytes = self._metadata.state(), self._proven_bytes
        unproven: dict[TopicIdPartition, RefusedDrop] = {}
        for tip, log in logs.items():
            proof = self._proofs.setdefault(tip, _Proof(log, LogProof(log.reader, log.offsets))).proof
            end_offset = state.partition(tip).tiered_end_offset
            try:
                remaining_bytes -= proof.prove(end_offset, remaining_bytes)
            except CorruptRecordError as damage:
                unproven[tip] = RefusedDrop(log.topic_partition, LOCAL_DAMAGE, damage)
            else:
                if not proof.reaches(end_offset):
                    unproven[tip] = RefusedDrop(log.topic_partition, LOCAL_PROOF)
        return unproven

    def _drop(
        self, logs: dict[TopicIdPartition, UnifiedLog], leaving: Callable[[], LeavingLogs], epoch: int
    ) -> DropReport:
        def confirm() -> int:
            """The number of the catalog that says so now. Raises PreconditionFailedError, StoreError."""
            now = leaving()
            # A topic without slices may have become one without tiers meanwhile.
            state = self._metadata.state()
            missing = logs.keys() - _by_tip(now).keys()
            staying = {tip for tip in missing if state.partition(tip).row.pieces}
            if staying:
                raise PreconditionFailedError(
                    "the data in the object store is to stay, or the disk has failed; the other partitions"
                    " follow with the next turn",
                    **logs[min(staying)].topic_partition.error_fields,
                )
            return now.catalog_seq

        catalog_seq = confirm()
        starts: dict[TopicIdPartition, int] = {}
        for tip, log in logs.items():
            former = self._left.get(tip)
            self._left[tip] = _Left(log, _SETTLED if former is None else former.seq)
            starts[tip] = log.leave_tier()
        try:
            outcome = self._metadata.drop_tier(starts, epoch=epoch, catalog_seq=catalog_seq, confirm=confirm)
        except PreconditionFailedError:
            # Refused before it was sent: the outcome of all commits is known, but that of an earlier call's.
            raise
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


def _by_tip(leaving: LeavingLogs) -> dict[TopicIdPartition, UnifiedLog]:
    return {_tip_of(log): log for log in leaving.logs}
