"""Takes a shard over, and decides which local logs may continue.

The log directories keep the uuids of the claims that were made from them, see `claims`. A uuid is written and
fsynced before its claim is committed, so a server always knows its own claims; a uuid whose claim never
landed is harmless.

The claims in the shard's state tell since when the server has been the only owner: `trusted_epoch` is the
epoch of its first claim behind the last foreign one, 0 if there was no foreign one. A copied directory knows
only the claims before the copy, so it differs from the original.

A local log continues only if both hold:

* It was written to since then: its first or its last batch carries `trusted_epoch` or a later epoch (in a log
  that has been tiered all its life both do, or neither). Imported logs carry the epochs of a broker, and
  count as written under the epoch of the import.
* It reaches the tiered end.

Otherwise the whole local log of the partition is set aside, never deleted, and an empty one begins at the
tiered end. In the first case, its records beyond the tiered end were acknowledged at levels that do not
survive a change of owner; in the second, it has none there.

A log that was written to since then, and still has the batch of the end mark (the last tiered batch), matches
the tiered records. If it lacks that batch, or its headers are unreadable, it is damaged or comes from
elsewhere. It may be the only copy of acknowledged records, so nothing is changed and a human decides. Only
headers are compared: no checksum covers their offsets and epochs. Damaged records of a tiered batch do not
matter here, since the store has them.

A crash at any point is harmless: claims only accumulate, and setting aside is one rename. A process that dies
after it claimed the shard, before it compared all logs, leaves old logs; their epochs still mark them as old.
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
from stratalog.remote.metadata.shard.shard_state import ShardClaim
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition

FENCED_SUFFIX = "fenced"


class ClaimedShard(NamedTuple):
    """The epoch of this process, and the epoch since which it has been the only owner."""

    epoch: int
    trusted_epoch: int
    """Batches of this epoch and later ones were written while no other server owned the shard."""


class ReconciledLog(NamedTuple):
    """A log that may continue."""

    log: UnifiedLog
    set_aside_path: str | None
    """Directory of the log that it replaces; None if the log itself continues."""
    reason: str
    """Why that log was set aside; empty if it was not."""


def claim_shard(
    filesystem: FileSystem,
    ids: IdGenerator,
    metadata: MetadataLog,
    directories: Sequence[str],
    *,
    shard: int,
    owner: str,
    at_least: int = 0,
    endpoint: str = "",
) -> ClaimedShard:
    """Become the owner of the shard; the previous owner finds out at its next commit. The claim is folded at
    once, if the store lets it.

    `directories`: the working log directories of the server. `at_least` keeps the leader epochs of local logs
    growing if they know higher ones than the store: those of a broker, or of a head that was lost and
    restored. `endpoint`: HOST:PORT where clients reach the server; empty if it serves none. Raises
    StoreError, DataDirectoryError.
    """
    claim = ids.uuid()
    own_claims = Claims(filesystem, directories, shard).add(claim)
    epoch = metadata.claim(owner, claim, at_least, endpoint=endpoint)
    # If the head is lost, a rebuilt one still knows that the logs of this server are the newest ones.
    metadata.fold_at_once()
    earlier = [other for other in metadata.state().claims if other.epoch < epoch]
    return ClaimedShard(epoch, _trusted_epoch(epoch, earlier, own_claims))


def reconcile_log(
    log_manager: LogManager, log: UnifiedLog, metadata: MetadataLog, claimed: ClaimedShard
) -> ReconciledLog:
    """Compare a log with the bucket, after it was opened and before any append.

    The returned log begins at or below the tiered end, reaches it, and knows it. A log of a topic that is not
    tiered is returned as it is, except that it begins where the shard knows that it does: its tier may have
    been dropped. Raises DataDirectoryError, without a change, where the log is damaged.
    """
    tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)
    partition = metadata.state().partition(tip)
    if not log.local_log.config.remote_storage_enable:
        log.increment_log_start_offset(min(partition.log_start_offset, log.offsets.high_watermark))
        return ReconciledLog(log, None, "")
    import_epoch = log_manager.import_epoch(log.topic_partition)
    try:
        reason = _reason_to_stop(log, partition, claimed, -1 if import_epoch is None else import_epoch)
    except CorruptRecordError as damage:
        raise DataDirectoryError(
            "the local log is damaged, or is not the one that was tiered; restore it, or remove the segments"
            " that end at or below the tiered end; its records at or above that are nowhere else: to go on"
            " without them, move its directory away, keep it, and make an empty one in its place",
            path=log.local_log.directory,
            tiered_end_offset=partition.tiered_end_offset,
            log_end_offset=log.offsets.log_end_offset,
            reason=str(damage),
        ) from damage
    path: str | None = None
    if reason:
        name, topic_id, config = log.topic_partition, log.topic_id, log.local_log.config
        if _is_empty(log):
            # There is nothing to keep.
            log.truncation.truncate_fully_and_start_at(partition.tiered_end_offset)
        else:
            path = log_manager.set_aside(name, FENCED_SUFFIX)
            log = log_manager.open_log(name, topic_id, config, start_offset=partition.tiered_end_offset)
    log.update_tiered_end_offset(partition.tiered_end_offset)
    # Retention may have moved the log start while this log was away.
    log.increment_log_start_offset(min(partition.log_start_offset, log.offsets.high_watermark))
    return ReconciledLog(log, path, reason)


def _reason_to_stop(
    log: UnifiedLog, partition: TieredPartition, claimed: ClaimedShard, import_epoch: int
) -> str:
    """The reason why the log cannot continue; empty if it can. `import_epoch`: -1 if it was not imported.
    Raises CorruptRecordError if the log is damaged.
    """
    tiered_end_offset = partition.tiered_end_offset
    if _is_empty(log):
        if log.offsets.log_end_offset < tiered_end_offset:
            return "it is empty and ends before the tiered end"
        # Its records were deleted while the store was away. Their offsets are spent: none is given twice.
        is_ahead = log.offsets.log_end_offset > tiered_end_offset
        return "it is empty and has no epoch" if is_ahead and claimed.trusted_epoch > 0 else ""
    # Epochs are not negative: without a foreign owner they do not matter, and may be unreadable.
    if claimed.trusted_epoch > 0 and max(import_epoch, _newest_epoch(log)) < claimed.trusted_epoch:
        return "another data directory has owned the shard since"
    if log.offsets.log_end_offset < tiered_end_offset:
        return "it ends before the tiered end"
    _require_end_mark(log, partition)
    return ""


def _trusted_epoch(epoch: int, earlier: Sequence[ShardClaim], own_claims: Container[UUID]) -> int:
    """The first of the consecutive own epochs up to `epoch`; 0 if all epochs were own."""
    trusted_epoch = epoch
    for other in reversed(earlier):
        if other.uuid not in own_claims:
            return trusted_epoch
        trusted_epoch = other.epoch
    return 0


def _newest_epoch(log: UnifiedLog) -> int:
    """The higher leader epoch of the first and the last batch, so that one damaged field does not make a log
    look old. Raises CorruptRecordError.
    """
    edges = (
        log.reader.header_at(log.offsets.local_log_start_offset),
        log.reader.header_at(log.offsets.log_end_offset - 1),
    )
    epochs = [header.leader_epoch for header in edges if header is not None]
    if not epochs:
        raise CorruptRecordError(
            "the log has offsets and no batch", log_end_offset=log.offsets.log_end_offset
        )
    return max(epochs)


def _require_end_mark(log: UnifiedLog, partition: TieredPartition) -> None:
    """Raise CorruptRecordError if the log has another batch in the place of the last tiered one."""
    mark = partition.end_mark
    if mark is None or mark.base_offset < log.offsets.local_log_start_offset:
        return
    header = log.reader.header_at(mark.base_offset)
    found = None if header is None else (header.base_offset, header.leader_epoch, header.crc)
    if found != (mark.base_offset, mark.epoch, mark.crc):
        raise CorruptRecordError(
            "the local log has another batch in the place of the last tiered one",
            base_offset=mark.base_offset,
            tiered_crc=mark.crc,
            local_crc=None if header is None else header.crc,
        )


def _is_empty(log: UnifiedLog) -> bool:
    return log.offsets.local_log_start_offset == log.offsets.log_end_offset
