"""Taking a shard over, and deciding what the local logs are still worth.

The log directories keep the uuids of the claims that were made from them, see `claims`. A uuid is written
and fsynced before its claim is committed, so that a claim of one's own is always known; one that never landed
does no harm.

The claims in the shard's state tell since when nobody else has owned it: `trusted_epoch` is that of the
first own claim behind the last foreign one, 0 where there was no foreign one. A directory that was copied
knows only the claims from before, so it is told from the one that went on.

A local log goes on only where both hold:

* it was written to since then: its first or its last batch carries `trusted_epoch` or a later epoch (of a log
  that has been tiered all its life both do, or neither). Those that were imported carry the epochs of a
  broker, and count as written under the epoch of the import;
* it reaches the tiered end.

Otherwise the whole local log of the partition is set aside, never deleted, and an empty one begins at the
tiered end. What the one held beyond the tiered end was acknowledged at levels that do not outlive a change of
owner; the other held nothing there.

A log that was written to since then, and still has the batch of the end mark (the last that was tiered), has
it as it was tiered. Where it does not, or where its headers cannot be read, it was damaged, or came from
somewhere else: what it holds was acknowledged here and nobody else has it, so nothing is touched, and a human
decides. Only headers are looked at: no checksum covers the offsets and the epoch in them, and a damage of the
records of a tiered batch decides nothing, since the store has them.

A crash at any point is harmless: claims only accumulate, and setting aside is one rename. A process that
dies when it has claimed the shard and has not looked at all logs leaves some from before; their epochs
still say so.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.remote.metadata.ownership.claims import Claims
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.partition_state import PartitionState
from stratalog.remote.metadata.shard.shard_state import ShardClaim

FENCED_SUFFIX = "fenced"


class ClaimedShard(NamedTuple):
    """The epoch that this process owns, and since which one it has been the only owner."""

    epoch: int
    trusted_epoch: int
    """What this directory holds of this epoch and later ones was written while nobody else owned the shard.
    """

    @property
    def is_continued(self) -> bool:
        """The previous claim was made from the same directory, or there was none."""
        return self.trusted_epoch < self.epoch


class ReconciledLog(NamedTuple):
    """A log that is fit to go on."""

    log: UnifiedLog
    set_aside_path: str | None
    """Where its predecessor lies, for the operator; None where the log itself goes on."""
    reason: str
    """Why it was set aside; empty where it was not."""


def claim_shard(
    filesystem: FileSystem,
    ids: IdGenerator,
    metadata: MetadataLog,
    directories: Sequence[str],
    *,
    shard: int,
    owner: str,
    at_least: int = 0,
) -> ClaimedShard:
    """Become the owner of the shard; whoever was it finds out at its next commit. `directories`: the log
    directories of the server, those that work.

    `at_least` keeps the leader epochs of local logs growing, where these know higher ones than the store:
    those of a broker, or those of a head that was lost and came back older. Raises StoreError,
    DataDirectoryError.
    """
    claim = ids.uuid()
    own_claims = Claims(filesystem, directories, shard).add(claim)
    epoch = metadata.claim(owner, claim, at_least)
    earlier = [other for other in metadata.state().claims if other.epoch < epoch]
    return ClaimedShard(epoch, _trusted_epoch(epoch, earlier, own_claims))


def reconcile_log(
    log_manager: LogManager, log: UnifiedLog, metadata: MetadataLog, claimed: ClaimedShard
) -> ReconciledLog:
    """Compare a log that was just opened with the bucket; nothing has been appended to it since.

    The log that is returned begins at or below the tiered end, reaches it, and knows it. A log of a topic
    that is not tiered is returned as it is. Raises DataDirectoryError, without a change, where the log is
    damaged.
    """
    if not log.config.remote_storage_enable:
        return ReconciledLog(log, None, "")
    tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)
    partition = metadata.state().partition(tip)
    import_epoch = log_manager.import_epoch(log.topic_partition)
    try:
        reason = _why_not(log, partition, claimed, -1 if import_epoch is None else import_epoch)
    except CorruptRecordError as damage:
        raise DataDirectoryError(
            "the local log is damaged, or is not the one that was tiered; restore it, or remove the segments"
            " that end at or below the tiered end, or, to go on from there, move the directory away and make"
            " an empty one in its place",
            path=log.directory,
            tiered_end_offset=partition.tiered_end_offset,
            log_end_offset=log.log_end_offset,
            reason=str(damage),
        ) from damage
    path: str | None = None
    if reason:
        name, topic_id, config = log.topic_partition, log.topic_id, log.config
        if _is_empty(log):
            # Nothing would be kept for anybody.
            log.truncate_fully_and_start_at(partition.tiered_end_offset)
        else:
            path = log_manager.set_aside(name, FENCED_SUFFIX)
            log = log_manager.open_log(name, topic_id, config, start_offset=partition.tiered_end_offset)
    log.update_tiered_end_offset(partition.tiered_end_offset)
    # The global start may lie above the local one where retention moved it while this log was away.
    log.increment_log_start_offset(min(partition.log_start_offset, log.high_watermark))
    return ReconciledLog(log, path, reason)


def _why_not(log: UnifiedLog, partition: PartitionState, claimed: ClaimedShard, import_epoch: int) -> str:
    """Why the log cannot go on; empty where it can. `import_epoch`: -1 where it was not imported. Raises
    CorruptRecordError where nobody can tell.
    """
    tiered_end_offset = partition.tiered_end_offset
    if _is_empty(log):
        return "" if log.log_end_offset == tiered_end_offset else "it is empty and ends elsewhere"
    # Epochs are not negative: without a foreign owner they say nothing, and need not be readable.
    if claimed.trusted_epoch > 0 and max(import_epoch, _newest_epoch(log)) < claimed.trusted_epoch:
        return "another data directory has owned the shard since"
    if log.log_end_offset < tiered_end_offset:
        return "it ends before the tiered end"
    _require_end_mark(log, partition)
    return ""


def _trusted_epoch(epoch: int, earlier: Sequence[ShardClaim], own_claims: Container[UUID]) -> int:
    """The first of the unbroken row of own epochs that ends with `epoch`; 0 where all have been own."""
    trusted_epoch = epoch
    for other in reversed(earlier):
        if other.uuid not in own_claims:
            return trusted_epoch
        trusted_epoch = other.epoch
    return 0


def _newest_epoch(log: UnifiedLog) -> int:
    """The higher one of the leader epochs of the first and the last batch: one damaged field must not make a
    log look old. Raises CorruptRecordError.
    """
    edges = (log.header_at(log.local_log_start_offset), log.header_at(log.log_end_offset - 1))
    epochs = [header.leader_epoch for header in edges if header is not None]
    if not epochs:
        raise CorruptRecordError("the log has offsets and no batch", log_end_offset=log.log_end_offset)
    return max(epochs)


def _require_end_mark(log: UnifiedLog, partition: PartitionState) -> None:
    """Raises CorruptRecordError where the log has another batch in place of the last that was tiered."""
    mark = partition.end_mark
    if mark is None or mark.base_offset < log.local_log_start_offset:
        return
    header = log.header_at(mark.base_offset)
    found = None if header is None else (header.base_offset, header.leader_epoch, header.crc)
    if found != (mark.base_offset, mark.epoch, mark.crc):
        raise CorruptRecordError(
            "the last tiered batch is another one in the local log",
            base_offset=mark.base_offset,
            tiered_crc=mark.crc,
            local_crc=None if header is None else header.crc,
        )


def _is_empty(log: UnifiedLog) -> bool:
    return log.local_log_start_offset == log.log_end_offset
