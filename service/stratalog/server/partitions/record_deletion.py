"""Deletes the records at the start of partitions, in every tier.

The object store commits the new log starts first, one commit for all partitions of a shard; then the local
logs follow. A crash in between is harmless: a log that opens takes its start from the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from stratalog.base.disk_calls import DIRECT_DISK_CALLS, DiskCalls
from stratalog.base.errors import LogStoreError, OffsetOutOfRangeError, PreconditionFailedError
from stratalog.base.types import TopicPartition
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard


class RecordDeletion(NamedTuple):
    """A partition, and the offset below which its records are to be deleted."""

    partition: HostedPartition
    before_offset: int

    @staticmethod
    def of(partition: HostedPartition, before_offset: int) -> RecordDeletion:
        """A deletion that is possible. Raises OffsetOutOfRangeError."""
        high_watermark = partition.log.offsets.high_watermark
        if not 0 <= before_offset <= high_watermark:
            raise OffsetOutOfRangeError(
                "records can be deleted up to the high watermark only; name an offset from 0 to it",
                offset=before_offset,
                log_start_offset=partition.log_start_offset,
                log_end_offset=high_watermark,
            )
        return RecordDeletion(partition, before_offset)


def delete_records(
    deletions: Sequence[RecordDeletion], disk_calls: DiskCalls = DIRECT_DISK_CALLS
) -> list[int | LogStoreError]:
    """Move the log starts, and return the new ones in the same order; a failure in the place of a partition
    that failed. A start never moves back, and that of a log whose disk does not answer may move later. Takes
    disk and network for long.
    """
    tiered = [one for one in deletions if one.partition.is_tiered]
    refused = _commit_starts(tiered)
    committed = {one.partition.topic_partition for one in tiered} - refused.keys()
    results: list[int | LogStoreError] = []
    for deletion in deletions:
        refusal = refused.get(deletion.partition.topic_partition)
        if refusal is not None:
            results.append(refusal)
            continue
        try:
            is_committed = deletion.partition.topic_partition in committed
            follow = partial(_follow, deletion, is_committed=is_committed)
            results.append(
                disk_calls.run(deletion.partition.log_dir, follow, lock=deletion.partition.log.flush_lock)
            )
        except LogStoreError as failure:
            results.append(failure)
    return results


def _commit_starts(deletions: Sequence[RecordDeletion]) -> dict[TopicPartition, LogStoreError]:
    """Commit the log starts of tiered partitions; returns the failures."""
    refused: dict[TopicPartition, LogStoreError] = {}
    in_order = sorted(deletions, key=_shard_number)
    for _, group in groupby(in_order, key=_shard_number):
        of_shard = list(group)
        try:
            refused.update(_commit_in(of_shard[0].partition.shard, of_shard))
        except LogStoreError as failure:
            refused.update((one.partition.topic_partition, failure) for one in of_shard)
    return refused


def _commit_in(
    shard: HostedShard, deletions: Sequence[RecordDeletion]
) -> dict[TopicPartition, LogStoreError]:
    by_id = {one.partition.topic_id_partition: one for one in deletions}
    starts = {tip: one.before_offset for tip, one in by_id.items()}
    outcome = shard.metadata.advance_log_start(starts, epoch=shard.leader_epoch(), catalog_seq=None)
    return {
        by_id[refusal.partition].partition.topic_partition: PreconditionFailedError(
            "the log start did not move, try again: " + refusal.reason,
            before_offset=by_id[refusal.partition].before_offset,
        )
        for refusal in outcome.refused
    }


def _follow(deletion: RecordDeletion, *, is_committed: bool) -> int:
    """Move the start of the local log; returns the log start. `is_committed`: the shard has the new start.
    Raises LogStoreError."""
    partition, offset = deletion
    if not is_committed:
        partition.shard.leader_epoch()
    else:
        partition.log.follow_tiered_end(lambda: partition.tiered_end_offset)
        state = partition.shard.metadata.state().partition(partition.topic_id_partition)
        offset = min(state.log_start_offset, partition.log.offsets.high_watermark)
    partition.log.increment_log_start_offset(offset)
    partition.signal.notify()
    return partition.log_start_offset


def _shard_number(deletion: RecordDeletion) -> int:
    shard = deletion.partition.shard.metadata.layout.shard
    assert shard is not None, "the catalog has no partitions"
    return shard
