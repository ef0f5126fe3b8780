"""Up to where each log is compacted: Kafka's `cleaner-offset-checkpoint`, one file in each log directory.
And beside it, in the same form, when it is due again for what its last clean has kept for a while only:
`cleaner-horizon-checkpoint`, see `kept_horizons`.

What lies below a partition's entry went through a clean, what lies above did not. An entry that is too low
costs work. One that is too high is dangerous, because records below it are taken for compacted which are not:
a tombstone among them would go before the record that it deletes. So an entry is raised after the segments
were replaced, and lowered, durably, before anything of the log is cut off. So when a log is opened none is
above its end, and one that is there all the same was not made for this log: it is dropped.

A horizon says what is below the offset that it was written with. It is written before that, and forgotten
when that is lowered. One that is wrong costs a clean, or lets tombstones wait for the next one; one that is
missing is found out from the log.

A crash leaves a file as it was or as it shall be. A damaged file counts as empty. An entry in a directory
that does not hold the partition is ignored, and goes when the partition's log is opened: it would be wrong
there once the partition came back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import CheckpointEntries, OffsetCheckpoint

CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
CLEANER_HORIZON_FILE = "cleaner-horizon-checkpoint"


class _DirectoryCheckpoint:
    """One directory's files. Thread-safe: `lock` guards changes, and is held while a file is written."""

    __slots__ = ("_horizons", "_offsets", "lock")

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        """Raises OSError where a file cannot be read."""
        offset_file = OffsetCheckpoint(filesystem, f"{directory}/{CLEANER_OFFSET_FILE}")
        horizon_file = OffsetCheckpoint(filesystem, f"{directory}/{CLEANER_HORIZON_FILE}")
        self._offsets = CheckpointEntries(offset_file.read(), offset_file.write)
        self._horizons = CheckpointEntries(horizon_file.read(), horizon_file.write)
        self.lock = threading.Lock()

    @property
    def offsets(self) -> Mapping[TopicPartition, int]:
        return self._offsets.offsets

    @property
    def horizons(self) -> Mapping[TopicPartition, int]:
        return self._horizons.offsets

    def put(self, partition: TopicPartition, offset: int | None, horizon_ms: int | None) -> None:
        """The entries, or none, durable when it returns. Guarded by `lock`. Raises OSError; the entries count
        in this process all the same, and are written with the next ones."""
        self._horizons.set(partition, horizon_ms)
        self._offsets.set(partition, offset)
        self._horizons.save_for(partition)
        self._offsets.save_for(partition)

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """The entry is not above `offset`. As `put`."""
        former_offset, horizon_ms = self.offsets.get(partition), self.horizons.get(partition)
        if former_offset is None or former_offset > offset:
            horizon_ms = None
        self.put(partition, None if former_offset is None else min(offset, former_offset), horizon_ms)


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

    def horizon_of(self, partition: TopicPartition, directory: str) -> int | None:
        """From when on a clean has something to drop below the partition's entry, NO_HORIZON where it has
        nothing; None where nobody knows, or the directory is not there any more."""
        found = self._directories.get(directory)
        return None if found is None else found.horizons.get(partition)

    def put(
        self, partition: TopicPartition, directory: str, offset: int, horizon_ms: int | None = None
    ) -> None:
        """Durable when it returns; nothing where the directory is not there any more. Raises OSError."""
        found = self._directories.get(directory)
        if found is not None:
            with found.lock:
                found.put(partition, offset, horizon_ms)

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """No entry of the partition is above `offset` when it returns, for good. Raises OSError."""
        self._in_each(lambda _, found: found.lower(partition, offset))

    def settle(self, partition: TopicPartition, directory: str, end_offset: int) -> int | None:
        """The partition's log is in `directory` and ends there: no entry is above, and none in another
        directory, when it returns, for good. Raises OSError.

        One that is above is of another log than the one that was found, an older copy of it, say, and tells
        nothing of this one. It goes, and is returned.
        """
        above_offset: int | None = None

        def settle(name: str, found: _DirectoryCheckpoint) -> None:
            nonlocal above_offset
            offset = found.offsets.get(partition) if name == directory else None
            if offset is not None and offset > end_offset:
                above_offset, offset = offset, None
            found.put(partition, offset, None if offset is None else found.horizons.get(partition))

        self._in_each(settle)
        return above_offset

    def forget(self, partition: TopicPartition) -> None:
        """No directory has an entry of the partition when it returns, for good. Raises OSError."""
        self._in_each(lambda _, found: found.put(partition, None, None))

    def move(self, partition: TopicPartition, source: str, target: str) -> None:
        """The partition is in `target` now. Durable when it returns. Raises OSError."""
        assert source != target
        entries = self.offset_of(partition, source), self.horizon_of(partition, source)
        # The new entry first: a crash in between leaves one too many, which means nothing where it is.
        for directory, entry in ((target, entries), (source, (None, None))):
            found = self._directories.get(directory)
            if found is not None:
                with found.lock:
                    found.put(partition, *entry)

    def _in_each(self, change: Callable[[str, _DirectoryCheckpoint], None]) -> None:
        """Change every directory's. One that cannot be written keeps no other from it: the first error is
        raised in the end."""
        failures: list[OSError] = []
        for name, found in self._directories.items():
            with found.lock:
                try:
                    change(name, found)
                except OSError as failure:
                    failures.append(failure)
        if failures:
            raise failures[0]
