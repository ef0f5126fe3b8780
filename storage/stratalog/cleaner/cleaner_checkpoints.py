"""Up to where each log is compacted: Kafka's `cleaner-offset-checkpoint`, one file in each log directory.

What lies below a partition's entry went through a clean, what lies above did not. An entry that is too low
costs work. One that is too high is dangerous, because records below it are taken for compacted which are not:
a tombstone among them would go before the record that it deletes. So an entry is raised after the segments
were replaced, and lowered, durably, before anything of the log is cut off.

A crash leaves a file as it was or as it shall be. A damaged file counts as empty. An entry in a directory
that does not hold the partition is ignored, and goes when the partition's log is opened: it would be wrong
there once the partition came back.
"""

from __future__ import annotations

import threading

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import OffsetCheckpoint

CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"


class _DirectoryCheckpoint:
    """One directory's file and what it shall hold. Thread-safe: `lock` guards changes, and is held while the
    file is written."""

    __slots__ = ("_file", "_is_unsaved", "lock", "offsets")

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        """Raises OSError where the file cannot be read."""
        self._file = OffsetCheckpoint(filesystem, f"{directory}/{CLEANER_OFFSET_FILE}")
        self.offsets = self._file.read()
        self._is_unsaved = False
        self.lock = threading.Lock()

    def put(self, partition: TopicPartition, offset: int | None) -> None:
        """The entry, or none, durable when it returns. Guarded by `lock`. Raises OSError; the entry counts in
        this process all the same, and is written with the next one."""
        if self.offsets.get(partition) == offset and not self._is_unsaved:
            return
        self._is_unsaved = True
        if offset is None:
            self.offsets.pop(partition, None)
        else:
            self.offsets[partition] = offset
        self._file.write(self.offsets)
        self._is_unsaved = False


class CleanerCheckpoints:
    """Thread-safe. One partition is changed by one caller at a time: who has it in `CleaningState`."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._guard = threading.Lock()
        # Replaced as a whole, under the guard, so that readers need no lock.
        self._directories: dict[str, _DirectoryCheckpoint] = {}

    def add_directory(self, directory: str) -> None:
        """Read the file of a directory that holds partitions. Raises OSError."""
        added = _DirectoryCheckpoint(self._filesystem, directory)
        with self._guard:
            self._directories = self._directories | {directory: added}

    def drop_directory(self, directory: str) -> None:
        """Nothing is read of it or written to it any more."""
        with self._guard:
            self._directories = {name: kept for name, kept in self._directories.items() if name != directory}

    def has_directory(self, directory: str) -> bool:
        return directory in self._directories

    def offset_of(self, partition: TopicPartition, directory: str) -> int | None:
        """The partition's entry; None where it has none, or the directory is not there any more."""
        found = self._directories.get(directory)
        return None if found is None else found.offsets.get(partition)

    def put(self, partition: TopicPartition, directory: str, offset: int) -> None:
        """Durable when it returns; nothing where the directory is not there any more. Raises OSError."""
        found = self._directories.get(directory)
        if found is not None:
            with found.lock:
                found.put(partition, offset)

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """No entry of the partition is above `offset` when it returns, for good. Raises OSError."""
        for found in self._directories.values():
            with found.lock:
                if partition in found.offsets:
                    found.put(partition, min(offset, found.offsets[partition]))

    def settle(self, partition: TopicPartition, directory: str, end_offset: int) -> None:
        """The partition's log is in `directory` and ends there: no entry is above, and none in another
        directory, when it returns, for good. Raises OSError."""
        for name, found in self._directories.items():
            with found.lock:
                if partition in found.offsets:
                    offset = min(end_offset, found.offsets[partition]) if name == directory else None
                    found.put(partition, offset)

    def forget(self, partition: TopicPartition) -> None:
        """No directory has an entry of the partition when it returns, for good. Raises OSError."""
        for found in self._directories.values():
            with found.lock:
                found.put(partition, None)

    def move(self, partition: TopicPartition, source: str, target: str) -> None:
        """The partition is in `target` now. Durable when it returns. Raises OSError."""
        assert source != target
        offset = self.offset_of(partition, source)
        # The new entry first: a crash in between leaves one too many, which means nothing where it is.
        for directory, entry in ((target, offset), (source, None)):
            found = self._directories.get(directory)
            if found is not None:
                with found.lock:
                    found.put(partition, entry)

    def entries(self) -> dict[str, dict[TopicPartition, int]]:
        """All entries by directory."""
        return {name: dict(found.offsets) for name, found in self._directories.items()}
