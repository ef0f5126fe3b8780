"""Measures the log directories, and frees those that are short of space by dropping what may be dropped.

Only topics with `remote.copy.backlog.policy=drop` lose anything. First their segments go that the object
store has: nothing is lost with them. If that is not enough, their oldest segments go that it does not have,
of the partition with the largest backlog first, because that one fills the disk. The active segment stays.

Those records are lost for ever. The log begins behind the tiered end then, and the next contact with the
store puts the loss on record as a gap (see `local_beginnings`). Nothing else has to be remembered, so a crash
at any moment leaves either the segments or the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stratalog.base.errors import LogStoreError
from stratalog.log.log_config import BacklogPolicy
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.background.upload_tracker import pending_upload_bytes
from stratalog.server.partitions.free_space import FreeSpace
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry

logger = logging.getLogger(__name__)


class DiskPressure:
    """Drops local segments while a log directory is short of space. Thread-safe: its parts are."""

    def __init__(self, registry: PartitionRegistry, space: FreeSpace) -> None:
        self._registry = registry
        self._space = space

    def run(self) -> PassOutcome:
        """Measure, and drop until each directory has enough space or nothing is left to drop. A partition
        that fails does not stop the others."""
        self._space.look()
        partitions = [
            one
            for one in self._registry.partitions()
            if one.is_tiered
            and one.log.local_log.config.remote_copy_backlog_policy is BacklogPolicy.DROP
            and self._space.shortage_bytes(one.log) > 0
            and one.offline() is None
        ]
        # Several partitions share the shortage of their directory.
        left_bytes = {
            self._space.directory_of(one.log): self._space.shortage_bytes(one.log) for one in partitions
        }
        failures: list[str] = []
        freed_bytes = lost_bytes = 0
        for is_loss in (False, True):
            for partition in _by_backlog(partitions):
                directory = self._space.directory_of(partition.log)
                try:
                    freed = _drop(partition, left_bytes[directory], is_loss=is_loss)
                except (LogStoreError, OSError) as error:
                    failures.append(f"{partition.topic_partition} could not be dropped: {error}")
                    continue
                left_bytes[directory] -= freed
                freed_bytes += freed
                lost_bytes += freed if is_loss else 0
        return PassOutcome({"freed-bytes": freed_bytes, "lost-bytes": lost_bytes}, failures=tuple(failures))


def _by_backlog(partitions: Sequence[HostedPartition]) -> list[HostedPartition]:
    return sorted(partitions, key=lambda one: (-pending_upload_bytes(one), one.topic_partition))


def _drop(partition: HostedPartition, wanted_bytes: int, *, is_loss: bool) -> int:
    """Drop the oldest segments, about `wanted_bytes` of them, and return their size: those that the object
    store has, or with `is_loss` the others. Raises CorruptRecordError, DataDirectoryError."""
    log = partition.log
    if wanted_bytes <= 0:
        return 0
    before_offset = log.local_log.segments.start_offset
    freed_bytes = log.retention.drop_for_space(wanted_bytes, may_lose=is_loss)
    after_offset = log.local_log.segments.start_offset
    if is_loss and after_offset > max(before_offset, partition.tiered_end_offset):
        logger.error(
            "%s: segments that never reached the object store were dropped, because the disk has too little"
            " space and remote.copy.backlog.policy is drop; their records are lost,"
            " base_offset=`%d` end_offset=`%d` size_bytes=`%d`",
            partition.topic_partition,
            max(before_offset, partition.tiered_end_offset),
            after_offset,
            freed_bytes,
        )
    if freed_bytes:
        partition.signal.notify()
    return freed_bytes
