"""Takes partitions out of their log directories: deleted, set aside for an operator, or older copies.

The manifest decides: an `aside` entry replaces the entry of the partition, and then the directory gets its
other name. A start finishes the rename; see `manifest`. A full disk may have no room for the other name, even
if the spare space is released; then a deleted partition is removed where it is.

A deleted partition is removed after a delay, because readers may use it. Its entry stays until its directory
is gone, and a start removes what the entries name. A start has no readers: in a directory that is short of
space it removes deleted partitions at once, before logs are opened, which may need space.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from stratalog.base.disk_calls import DiskCalls
from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicPartition
from stratalog.log.disk_error import disk_error, disk_errors
from stratalog.log.retention.late_removal import LateRemovals, Removal
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.locked_directory import DELETE_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import AsideEntry, PartitionEntry, PartitionState
from stratalog.manager.directories.spare_space import SHORT_BYTES

logger = logging.getLogger(__name__)


class PutAwayOutcome(NamedTuple):
    """The partitions that were to be put away together."""

    paths: Mapping[TopicPartition, str]
    """The new paths of those that have files."""
    failures: Mapping[TopicPartition, DataDirectoryError]
    """The errors of those that stay as they were."""


class _Rename(NamedTuple):
    """A partition's directory that gets another name."""

    partition: TopicPartition
    entry: PartitionEntry
    """Its entry before that."""
    source: str
    target: str
    aside: AsideEntry

    @property
    def name(self) -> str:
        return posixpath.basename(self.target)


def _failure_at(path: str, failure: OSError | DataDirectoryError) -> DataDirectoryError:
    """The error of a partition at that path."""
    if isinstance(failure, DataDirectoryError):
        return failure
    error = disk_error(failure, path)
    error.__cause__ = failure
    return error


class PutAway:
    """Takes partitions out of their log directories. Thread-safe, but for `put_away`, which is guarded by
    DirectorySet.guard."""

    def __init__(
        self,
        removals: LateRemovals,
        ids: IdGenerator,
        directories: DirectorySet,
        delay_ms: Callable[[], int],
        forget_files_below: Callable[..., None],
    ) -> None:
        """`delay_ms` returns the delay before a deleted partition is removed. `forget_files_below` closes
        open files below paths of partitions in one log directory."""
        self._removals = removals
        self._ids = ids
        self._directories = directories
        self._forget_files_below = forget_files_below
        self._delay_ms = delay_ms
        # Guarded by DirectorySet.guard.
        self._is_closed = False

    def close(self) -> None:
        """Leave directories that have a partition's name to the next process."""
        with self._directories.guard:
            self._is_closed = True

    @property
    def _filesystem(self) -> FileSystem:
        return self._directories.filesystem

    def put_away(self, directory: LogDirectory, partition: TopicPartition, reason: str) -> str | None:
        """Take the partition out of that directory; returns the new path of its files, None if it has none.
        Raises DataDirectoryError, with the partition as it was."""
        outcome = self.put_away_all(directory, [partition], reason)
        for failure in outcome.failures.values():
            raise failure from failure.__cause__
        return outcome.paths.get(partition)

    def put_away_all(
        self, directory: LogDirectory, partitions: Collection[TopicPartition], reason: str
    ) -> PutAwayOutcome:
        """Take these partitions out of that directory, by one write of its manifest. Those that fail stay as
        they were. Raises DataDirectoryError if the directory is offline."""
        paths = {partition: directory.partition_path(partition) for partition in partitions}
        # An open file would keep its space.
        self._forget_files_below(*paths.values())
        outcome = self._put_aside(directory, paths, reason)
        gone = [partition for partition in partitions if partition not in outcome.failures]
        for partition in gone:
            directory.note_gone(partition)
        # A reader may have opened a file again after the log let go of it.
        self._forget_files_below(*paths.values())
        if gone:
            self.forgetting(gone, lambda: directory.checkpoints.forget(*gone))
        return outcome

    def _put_aside(
        self, directory: LogDirectory, paths: Mapping[TopicPartition, str], reason: str
    ) -> PutAwayOutcome:
        """Put the directories of partitions, at these paths, aside. Raises DataDirectoryError if the log
        directory is offline."""
        manifest = directory.manifest
        listed = {one: entry for one in paths if (entry := manifest.entry(one)) is not None}
        refusals: dict[TopicPartition, OSError] = {}
        renames: dict[TopicPartition, _Rename] = {}
        for partition, entry in listed.items():
            try:
                if self._filesystem.exists(paths[partition]):
                    renames[partition] = self._rename_of(directory, partition, entry, reason)
            except OSError as refusal:
                refusals[partition] = refusal
        absent = [one for one in listed if one not in renames and one not in refusals]
        try:
            directory.spare.writing(
                lambda: manifest.update(
                    partitions=dict.fromkeys([*absent, *renames]),
                    aside={one.name: one.aside for one in renames.values()},
                )
            )
        except OSError as refusal:
            refusals |= dict.fromkeys([*absent, *renames], refusal)
        else:
            refusals |= self._rename_all(directory, renames)
        failures = dict[TopicPartition, DataDirectoryError]()
        moved = {partition: rename.target for partition, rename in renames.items()}
        for partition, refused in refusals.items():
            try:
                if partition not in renames:
                    raise refused
                if self._is_removed_instead(directory, renames[partition], reason, refused):
                    del moved[partition]
            except (OSError, DataDirectoryError) as failure:
                moved.pop(partition, None)
                failures[partition] = _failure_at(paths[partition], failure)
        return PutAwayOutcome(moved, failures)

    def _rename_of(
        self, directory: LogDirectory, partition: TopicPartition, entry: PartitionEntry, reason: str
    ) -> _Rename:
        """The rename that puts the partition aside."""
        return _Rename(
            partition,
            entry,
            directory.partition_path(partition),
            directory.files.path_beside(partition, self._ids.uuid(), reason),
            AsideEntry(
                partition,
                entry.topic_id,
                entry.log_start_offset,
                directory.checkpoints.recovery_point(partition),
                entry.import_epoch,
            ),
        )

    @staticmethod
    def _rename_all(
        directory: LogDirectory, renames: Mapping[TopicPartition, _Rename]
    ) -> dict[TopicPartition, OSError]:
        """Rename directories, and make that durable; returns the refusals of the disk. Raises
        DataDirectoryError if the log directory is offline."""
        spare, files = directory.spare, directory.files
        refusals: dict[TopicPartition, OSError] = {}
        for partition, one in renames.items():
            try:
                spare.writing(partial(files.rename_unsynced, one.source, one.target))
            except OSError as refusal:
                refusals[partition] = refusal
        if renames:
            try:
                spare.writing(files.sync)
            except OSError as refusal:
                refusals = dict.fromkeys(renames, refusal) | refusals
        return refusals

    def _is_removed_instead(
        self, directory: LogDirectory, rename: _Rename, reason: str, refusal: OSError
    ) -> bool:
        """Settle a rename that the disk has refused: remove a deleted partition that a full disk gives no
        other name, or list the partition again and raise the refusal. Returns False if it has its other name
        after all. Raises OSError, DataDirectoryError."""
        is_full_deletion = reason == DELETE_REASON and refusal.errno in NO_SPACE
        if is_full_deletion and self._is_removed(directory, rename.source):
            directory.manifest.update(partitions={rename.partition: None}, aside={rename.name: None})
            return True
        if self._filesystem.exists(rename.source):
            manifest = directory.manifest
            directory.spare.writing(
                lambda: manifest.update(
                    partitions={rename.partition: rename.entry}, aside={rename.name: None}
                )
            )
            raise refusal
        return False

    def _is_removed(self, directory: LogDirectory, path: str) -> bool:
        """Remove a deleted partition that gets no other name; returns False if the disk refuses. After a
        crash a start deletes the rest, by the catalog or by the manifest of the newer copy."""
        try:
            if not self._filesystem.exists(path):
                # It got its name after all.
                return False
            self._filesystem.remove_tree(path)
            self._filesystem.sync_directory(directory.path)
        except OSError:
            return False
        return True

    def put_away_older(self, source: LogDirectory, partition: TopicPartition, *, has_readers: bool) -> None:
        """Put away and later remove the partition's older copy in that directory. A failure is tried again
        every minute."""
        remove = self.remove_later if has_readers else self.remove_unread
        move_number = source.move_number(partition)

        def put_away() -> None:
            with self._directories.guard:
                # The partition may have moved back since, or be on its way.
                if self._is_closed or source.move_number(partition) != move_number:
                    return
                path = self.put_away(source, partition, DELETE_REASON)
            if path is not None:
                remove(path)

        try:
            put_away()
        except DataDirectoryError:
            self._later(f"put away the older copy of {partition} in {source.path}", put_away, 0, source)

    def discard_copy(self, target: LogDirectory, partition: TopicPartition, topic_id: UUID) -> None:
        """Remove the copy of a move that was given up, unless another topic has the name by now. Raises
        DataDirectoryError."""
        self._discard(
            target,
            partition,
            lambda entry: (entry.topic_id, entry.state) == (topic_id, PartitionState.INCOMING),
        )

    def _discard(
        self, target: LogDirectory, partition: TopicPartition, is_copy: Callable[[PartitionEntry], bool]
    ) -> None:
        """Remove the partition's copy if the entry that the manifest has by now is that of the copy. Raises
        DataDirectoryError."""
        path = target.partition_path(partition)
        manifest = target.manifest
        # Not under the guard, because the disk may hang: it is one step for all that name the partition here.
        with disk_errors(path), manifest.lock:
            entry = manifest.entry(partition)
            if entry is None or not is_copy(entry):
                return
            self._forget_files_below(path)
            outcome = self._put_aside(target, {partition: path}, DELETE_REASON)
        for failure in outcome.failures.values():
            raise failure from failure.__cause__
        self.forgetting([partition], lambda: target.checkpoints.forget_unlisted(partition))
        for moved_to in outcome.paths.values():
            self._remove_now(moved_to)

    def withdraw_copy(
        self,
        target: LogDirectory,
        partition: TopicPartition,
        noted: PartitionEntry,
        disk_calls: DiskCalls | None = None,
    ) -> None:
        """Remove the entry `noted` of a move that does not begin, and the copy of a former process. What
        fails, or does not answer, is tried again every minute, unless another move has noted an entry since,
        be it an equal one. `disk_calls` waits for the disk instead of that of the directories."""

        def withdraw() -> None:
            self._discard(target, partition, lambda entry: entry is noted)

        try:
            (disk_calls or self._directories.disk_calls).run(target.path, withdraw)
        except DataDirectoryError:
            self._later(f"withdraw the move of {partition} to {target.path}", withdraw, 0, target)

    def forgetting(self, partitions: Sequence[TopicPartition], forget: Callable[[], None]) -> None:
        """Take the partitions, which were put away, out of a checkpoint; log a refusal of the disk."""
        try:
            forget()
        except (OSError, DataDirectoryError) as failure:
            others = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
            logger.warning(
                "a checkpoint still has an entry of %s%s, which was put away; no other partition gets the"
                " name in that directory before it could be written: %s",
                partitions[0],
                others,
                failure,
            )

    def remove_later(self, path: str) -> None:
        """Remove the directory of a deleted partition after the delay, again and again until it is gone or
        its disk has failed. Then the next start removes it."""
        self._remove(path, self._delay_ms())

    def remove_unread(self, path: str) -> None:
        """Remove the directory of a deleted partition without readers: at once if space is short."""
        if not self._is_short(path):
            self.remove_later(path)
        else:
            self._remove_now(path)

    def _remove_now(self, path: str) -> None:
        try:
            self._remove_tree(path)
        except (OSError, DataDirectoryError):
            # It is tried again, with a warning.
            self._remove(path, 0)

    def remove_leftovers(self) -> None:
        """Remove deleted partitions that a former process has left. Called before a log is opened."""
        for directory in self._directories.online():
            try:
                leftovers = directory.files.leftovers()
            except (OSError, DataDirectoryError):
                # The directory is offline then, or the next start finds them.
                continue
            for path in leftovers:
                self.remove_unread(path)

    def _remove(self, path: str, delay_ms: int) -> None:
        self._later(f"remove {path}", partial(self._remove_tree, path), delay_ms, self._directory_of(path))

    def _remove_tree(self, path: str) -> None:
        """Remove the directory of a deleted partition, and then its entry. Raises DataDirectoryError if the
        log directory is offline, OSError."""
        directory = self._directory_of(path)
        self._filesystem.remove_tree(path)
        # Before the entry goes: without it no start removes the directory.
        self._filesystem.sync_directory(directory.path)
        directory.manifest.forget_aside(posixpath.basename(path))

    def _later(self, name: str, work: Callable[[], None], delay_ms: int, directory: LogDirectory) -> None:
        self._removals.add(
            directory.path, name, [Removal(work)], delay_ms, is_over=lambda: not directory.is_online
        )

    def _directory_of(self, path: str) -> LogDirectory:
        return self._directories.at(path.rpartition("/")[0])

    def _is_short(self, path: str) -> bool:
        """Whether there may be too little space for opening the logs."""
        try:
            return self._filesystem.free_bytes(self._directory_of(path).path) < SHORT_BYTES
        except OSError:
            return False
