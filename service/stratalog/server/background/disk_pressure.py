"""Measures the log directories, and frees those that are short of space.

What costs nothing goes first. The cache of tiered data gives back what is missing, and writes nothing while
its directory is short of space. Files that wait to be removed, so that readers can finish, are removed at
once.
Then local segments go that the object store has, of all tiered topics: a read of them takes longer. They stay
where the store may have lost them (`StoreContact.may_have_lost_data`).

Only if that is not enough, and only of topics with `remote.copy.backlog.policy=drop`, their oldest segments
go that the store does not have, of the partition with the largest backlog first, because that one fills the
disk. The active segment stays, and so does all that the store takes: a partition loses records only if its
last try to upload has failed, or if its uploads are paused or switched off. Uploads from a directory that is
nearly short do not wait for a full object, so what can be uploaded goes within seconds. No more is lost than
is missing after all else: the directory is measured again, and space that a file system has not given back
yet counts as free.

A directory whose disk does not answer is left out, and nothing is dropped there later.

Those records are lost for ever. The log begins behind the tiered end then, and the next contact with the
store puts the loss on record as a gap (see `local_beginnings`). Nothing else has to be remembered, so a crash
at any moment leaves either the segments or the loss.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from stratalog.base.disk_calls import DiskCalls, WorkSteps
from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.log.log_config import BacklogPolicy
from stratalog.log.retention.late_removal import LateRemovals
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.background.upload_candidate import may_upload
from stratalog.server.background.upload_tracker import pending_upload_bytes
from stratalog.server.partitions.free_space import FreeSpace
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry

logger = logging.getLogger(__name__)


class YieldCache(NamedTuple):
    """How the cache of tiered data gives space back."""

    directory: str
    """Its log directory."""
    run: Callable[[int], int]
    """Gives back so many bytes, and returns how many it had; with 0 the cache may grow again."""


class DiskPressure:
    """Frees space while a log directory is short of it. Thread-safe: its parts are."""

    def __init__(
        self,
        registry: PartitionRegistry,
        space: FreeSpace,
        removals: LateRemovals,
        tiers: Iterable[ShardTier],
        yield_cache: YieldCache,
        disk_calls: DiskCalls,
    ) -> None:
        """`removals`: of the logs, and of the partitions that were deleted. `disk_calls` waits for the
        disks."""
        self._yield_cache = yield_cache
        self._disk_calls = disk_calls
        self._registry = registry
        self._space = space
        self._removals = removals
        self._uploads = {tier.shard: tier.uploads for tier in tiers}

    @property
    def space(self) -> FreeSpace:
        """The space of the log directories."""
        return self._space

    def run(self) -> PassOutcome:
        """Measure, and free until each directory has enough space or nothing is left to drop. A partition
        that fails does not stop the others."""
        self._space.look()
        shortages = self._space.shortages
        cached = self._yielded(shortages)
        if not shortages:
            return PassOutcome({"freed-bytes": 0, "lost-bytes": 0})
        failures: list[str] = []
        left = self._left(shortages, cached) if cached else shortages
        removed = self._remove_waiting(left)
        left = self._left(left, removed)
        tiered = self._drop(left, failures, is_loss=False)
        if any(tiered.values()):
            self._remove_waiting(tiered)
        left = self._left(left, tiered)
        lost = self._drop(left, failures, is_loss=True)
        if any(lost.values()):
            self._remove_waiting(lost)
            self._space.look()
        freed_bytes = sum(sum(freed.values()) for freed in (cached, removed, tiered, lost))
        done = {"freed-bytes": freed_bytes, "lost-bytes": sum(lost.values())}
        return PassOutcome(done, failures=tuple(failures))

    def _yielded(self, shortages: Mapping[str, int]) -> Mapping[str, int]:
        """Let the cache give space back; returns how much it had, by log directory."""
        directory, run = self._yield_cache
        # With 0 it may grow again, which a directory that is short has no room for.
        wanted_bytes = max(shortages[directory], 1) if directory in shortages else 0
        try:
            freed_bytes = self._disk_calls.run(directory, partial(run, wanted_bytes))
        except DataDirectoryError:
            freed_bytes = 0
        return {directory: freed_bytes} if freed_bytes else {}

    def _remove_waiting(self, paths: Iterable[str]) -> Mapping[str, int]:
        """Remove at once the files that wait for it; returns their size by log directory."""
        steps = {path: WorkSteps() for path in paths}
        answers = self._disk_calls.run_each(
            {path: partial(self._removals.hurry, path, one.note) for path, one in steps.items()},
            lambda path: steps[path].count,
        )
        return {path: answers.results.get(path, 0) for path in steps}

    def _left(self, shortages: Mapping[str, int], freed: Mapping[str, int]) -> Mapping[str, int]:
        """Measure again; returns what is still missing in each directory. A file system may give space back
        some time after the removal, so what was freed counts, too."""
        self._space.look()
        measured = self._space.shortages
        return {
            path: max(0, min(size_bytes - freed.get(path, 0), measured.get(path, 0)))
            for path, size_bytes in shortages.items()
        }

    def _drop(self, shortages: Mapping[str, int], failures: list[str], *, is_loss: bool) -> Mapping[str, int]:
        """Drop segments in directories that are short of space; returns what was dropped by log directory.
        Notes the failures."""
        dropped = dict.fromkeys(shortages, 0)
        candidates = [one for one in self._registry.partitions() if self._may_drop(one, is_loss=is_loss)]
        for partition in _by_backlog(candidates):
            # Several partitions share the shortage of their directory.
            path = partition.log_dir
            wanted_bytes = shortages.get(path, 0) - dropped.get(path, 0)
            if wanted_bytes <= 0 or partition.offline() is not None:
                continue
            try:
                dropped[path] += self._drop_of(partition, wanted_bytes, is_loss=is_loss)
            except (LogStoreError, OSError) as error:
                failures.append(f"{partition.topic_partition} could not be dropped: {error}")
        return dropped

    def _drop_of(self, partition: HostedPartition, wanted_bytes: int, *, is_loss: bool) -> int:
        """Drop the oldest segments of a partition, about `wanted_bytes` of them, and return their size: those
        that the object store has, or with `is_loss` the others. Raises CorruptRecordError,
        DataDirectoryError."""
        is_left = threading.Event()
        drop = partial(_drop, partition, wanted_bytes, is_loss=is_loss, is_left=is_left)
        try:
            return self._disk_calls.run(partition.log_dir, drop, lock=partition.log.flush_lock)
        except DataDirectoryError:
            # By the time its disk answers, the directory may have enough space.
            is_left.set()
            raise

    def _may_drop(self, partition: HostedPartition, *, is_loss: bool) -> bool:
        if not partition.is_tiered or partition.shard.is_fenced:
            return False
        if not is_loss:
            return not partition.shard.contact.may_have_lost_data
        return self._may_lose(partition)

    def _may_lose(self, partition: HostedPartition) -> bool:
        if partition.log.local_log.config.remote_copy_backlog_policy is not BacklogPolicy.DROP:
            return False
        failure = self._uploads[partition.shard].failure_of(partition.topic_id_partition)
        return failure is not None or not may_upload(partition)


def _by_backlog(partitions: Sequence[HostedPartition]) -> list[HostedPartition]:
    return sorted(partitions, key=lambda one: (-pending_upload_bytes(one), one.topic_partition))


def _drop(partition: HostedPartition, wanted_bytes: int, *, is_loss: bool, is_left: threading.Event) -> int:
    """`DiskPressure._drop_of`; drops nothing once it `is_left`."""
    log = partition.log
    before_offset = log.local_log.segments.start_offset
    freed_bytes = log.retention.drop_for_space(
        wanted_bytes, may_lose=is_loss, is_wanted=lambda: not is_left.is_set()
    )
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
