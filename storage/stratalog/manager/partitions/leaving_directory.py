"""A partition's directory that loses its name, on a full disk too: of one that is deleted, or the older copy
of one that has moved.

As long as an older copy has the name, nothing but the mark of the newer copy (see `move_mark`) keeps a start
from taking it for the partition; and a move off a full disk has freed nothing.

A log directory may need space for the other name. A full disk that has none is given what is kept aside for
deletions, and then what the partition has. Which of its files goes last is for a start that finds the rest:

* of a deleted partition the one that says whose it is, so that the start knows what to remove; all others go
  at once;
* of an older copy a log, without which the directory would be a new one's. The file that says whose they are
  goes first, and then one after the other until there is space for the name: what a crash in between leaves
  is no partition to a start that does not see the newer copy, and it says so.
"""

from __future__ import annotations

from uuid import UUID

from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.data_directory import DELETE_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.partitions.partition_metadata import PARTITION_METADATA_FILE
from stratalog.segment.file_names import LOG_SUFFIX


class LeavingDirectory:
    """What a log directory has of a partition that is deleted, is set aside for another `reason`, or is in
    another log directory, durably (`is_older_copy`). Used by one thread at a time."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: LogDirectory,
        partition: TopicPartition,
        unique: UUID,
        reason: str = DELETE_REASON,
        *,
        is_older_copy: bool,
    ) -> None:
        """`unique`: of its next name, the same for every try. Raises DataDirectoryError where the directory
        is offline, as all else here."""
        self.path = directory.partition_path(partition)
        self.aside_path = directory.files.path_beside(partition, unique, reason)
        self._filesystem = filesystem
        self._directory = directory
        self._partition = partition
        self._unique = unique
        self._reason = reason
        self._is_older_copy = is_older_copy
        self._is_removed = False

    def rename(self) -> None:
        """Give it its next name, with the space that is kept aside if need be. Durable; may be done again.
        Raises OSError."""
        self._directory.spare.writing(self._rename)

    def _rename(self) -> None:
        if self._filesystem.exists(self.path):
            self._directory.files.move_aside(self._partition, self._unique, self._reason)
        else:
            # It was renamed by a former try.
            self._filesystem.sync_directory(self._directory.path)

    def put_away(self) -> str | None:
        """The same, also where there is no space, if it may be removed; returns where the rest of it is, None
        where all of it had to be removed. Raises OSError."""
        try:
            self.rename()
        except OSError as failure:
            if failure.errno not in NO_SPACE or self._reason != DELETE_REASON:
                raise
            self._make_room()
        return None if self._is_removed else self.aside_path

    def _make_room(self) -> None:
        """Unlink its files until it has its next name, or is gone."""
        for names in self._unlinked_together():
            for name in names:
                self._filesystem.unlink(f"{self.path}/{name}")
            # In this order also after a power loss; and some file systems free the space only then.
            self._filesystem.sync_directory(self.path)
            try:
                self._rename()
            except OSError as failure:
                if failure.errno not in NO_SPACE:
                    raise
            else:
                return
        if self._filesystem.exists(self.path):
            self._filesystem.remove_tree(self.path)
        self._is_removed = True
        self._filesystem.sync_directory(self._directory.path)

    def _unlinked_together(self) -> list[list[str]]:
        """Its files, but for the one that goes last, in their order."""
        if not self._filesystem.exists(self.path):
            return []
        names = sorted(self._filesystem.list_directory(self.path))
        if not self._is_older_copy:
            return [[name for name in names if name != PARTITION_METADATA_FILE]]
        names.sort(key=lambda name: (name != PARTITION_METADATA_FILE, name.endswith(LOG_SUFFIX)))
        return [[name] for name in names[:-1]]
