"""The cleaned part of each log: Kafka's `cleaner-offset-checkpoint`, one file in each log directory. The time
of each log's next clean for tombstones and markers that its last clean kept, see `kept_horizons`, is in the
directory's manifest (a `HorizonStore` here).

Everything below a partition's entry went through a clean, everything above did not. An entry that is too low
costs work. One that is too high is dangerous: records below it count as compacted and are not, so a clean
would drop a tombstone among them before the record that it deletes. So an entry is raised after the segments
were replaced, and lowered, durably, before anything of the log is cut off. When a log is opened, no entry is
above its end; if one is, it was made for another log, and is dropped.

A horizon describes the records below the offset that it was written with. It is written before that offset,
and forgotten when the offset is lowered. A wrong one costs a clean, or leaves tombstones until the next one.
A missing one is found from the log.

After a crash the file has its old contents or its new ones. A damaged one counts as empty. An entry in a
directory that does not hold the partition is ignored, and removed when the partition's log is opened: it
would be wrong once the partition came back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import CheckpointEntries, OffsetCheckpoint

CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"


class HorizonStore(Protocol):
    """The horizons of the logs in one directory. Thread-safe. Lock order: this module's locks before its."""

    def horizon_of(self, partition: TopicPartition) -> int | None:
        """The partition's horizon; None if it is unknown."""
        ...

    def set_horizon(self, partition: TopicPartition, horizon_ms: int | None) -> None:
        """Set the horizon of a partition that is in the directory. Durable when it returns. Raises OSError,
        with the former horizon in force."""
        ...


class _DirectoryCheckpoint:
    """One directory's entries. Thread-safe: `lock` guards changes, and is held while a file is written."""

    __slots__ = ("_horizons", "_offsets", "lock")

    def __init__(self, filesystem: FileSystem, directory: str, horizons: HorizonStore) -> None:
        """Read the file. Raises OSError."""
        file = OffsetCheckpoint(filesystem, f"{directory}/{CLEANER_OFFSET_FILE}")
        self._offsets = CheckpointEntries(file.read(), file.write)
        self._horizons = horizons
        self.lock = threading.Lock()

    @property
    def offsets(self) -> Mapping[TopicPartition, int]:
        return self._offsets.offsets

    def horizon_of(self, partition: TopicPartition) -> int | None:
        return self._horizons.horizon_of(partition)

    def knows(self, partition: TopicPartition) -> bool:
        """Whether it has anything of the partition. Takes no lock, which a write keeps while its disk
        hangs."""
        return self._offsets.knows(partition) or self.horizon_of(partition) is not None

    def put(self, partition: TopicPartition, offset: int | None, horizon_ms: int | None) -> None:
        """Set the partition's entries, or remove them if they are None; durable when this returns. The caller
        holds `lock`. Raises OSError; an offset that the file refused still counts in this process, and is
        written with the next one."""
        self._horizons.set_horizon(partition, horizon_ms)
        self._offsets.set(partition, offset)
        self._offsets.save_for(partition)

    def put_offset(self, partition: TopicPartition, offset: int | None) -> None:
        """Set the partition's offset and keep its horizon; remove both if it is None. Durable and raises as
        `put`."""
        self.put(partition, offset, None if offset is None else self.horizon_of(partition))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove the partitions' entries, by one write. Durable and raises as `put`."""
        forgotten = tuple(partitions)
        for partition in forgotten:
            self._horizons.set_horizon(partition, None)
            self._offsets.set(partition, None)
        self._offsets.save_for(*forgotten)

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Lower the partition's entry to `offset` at most. Durable and raises as `put`."""
        former_offset, horizon_ms = self.offsets.get(partition), self.horizon_of(partition)
        if former_offset is None or former_offset > offset:
            horizon_ms = None
        self.put(partition, None if former_offset is None else min(offset, former_offset), horizon_ms)


class CleanerCheckpoints:
    """The checkpoints of all log directories. Thread-safe. A partition is changed by one caller at a time:
    the one that holds it in `CleaningState`."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._guard = threading.Lock()
        # Replaced as a whole, under the guard, so that readers need no lock.
        self._directories: dict[str, _DirectoryCheckpoint] = {}

    def add_directory(self, directory: str, horizons: HorizonStore) -> None:
        """Read the file of a directory that holds partitions. Raises OSError."""
        added = _DirectoryCheckpoint(self._filesystem, directory, horizons)
        with self._guard:
            self._directories = self._directories | {directory: added}

    def drop_directory(self, directory: str) -> None:
        """Stop reading and writing the entries of this directory."""
        with self._guard:
            self._directories = {name: kept for name, kept in self._directories.items() if name != directory}

    def has_directory(self, directory: str) -> bool:
        return directory in self._directories

    def offset_of(self, partition: TopicPartition, directory: str) -> int | None:
        """The partition's entry; None if it has none, or the directory was dropped."""
        found = self._directories.get(directory)
        return None if found is None else found.offsets.get(partition)

    def horizon_of(self, partition: TopicPartition, directory: str) -> int | None:
        """The time from which a clean has something to drop below the partition's entry; NO_HORIZON if it
        never has. None if it is unknown, or the directory was dropped."""
        found = self._directories.get(directory)
        return None if found is None else found.horizon_of(partition)

    def put(
        self, partition: TopicPartition, directory: str, offset: int, horizon_ms: int | None = None
    ) -> None:
        """Set the entry, durable when this returns. Does nothing if the directory was dropped. Raises
        OSError."""
        found = self._directories.get(directory)
        if found is not None:
            with found.lock:
                found.put(partition, offset, horizon_ms)

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Lower the partition's entries in all directories to `offset` at most; durable when this returns.
        Raises OSError."""
        self._in_each([partition], lambda _, found, _known: found.lower(partition, offset))

    def settle(self, partition: TopicPartition, directory: str, end_offset: int) -> int | None:
        """Match the entries with a partition's log that is in `directory` and ends at `end_offset`: remove
        entries above that, and those in other directories. Durable when this returns. Raises OSError.

        An entry above the end belongs to another log, such as a newer copy that this one replaced. It says
        nothing about this log. It is removed and returned.
        """
        above_offset: int | None = None

        def settle(name: str, found: _DirectoryCheckpoint, _: Collection[TopicPartition]) -> None:
            nonlocal above_offset
            offset = found.offsets.get(partition) if name == directory else None
            if offset is not None and offset > end_offset:
                above_offset, offset = offset, None
            found.put_offset(partition, offset)

        self._in_each([partition], settle)
        return above_offset

    def forget(self, *partitions: TopicPartition) -> None:
        """Remove the partitions' entries in all directories, by one write of each; durable when this returns.
        Raises OSError."""
        self._in_each(partitions, lambda _, found, known: found.forget(known))

    def move(self, partition: TopicPartition, source: str, target: str) -> None:
        """Move the partition's offset from `source` to `target`, which has the horizon by then; durable when
        this returns. Raises OSError."""
        assert source != target
        # The new entry first: a crash in between leaves the old one too, which is ignored in that directory.
        for directory, offset in ((target, self.offset_of(partition, source)), (source, None)):
            found = self._directories.get(directory)
            if found is not None:
                with found.lock:
                    found.put_offset(partition, offset)

    def _in_each(
        self,
        partitions: Collection[TopicPartition],
        change: Callable[[str, _DirectoryCheckpoint, Collection[TopicPartition]], None],
    ) -> None:
        """Change the entries of the partitions in every directory that knows one of them, even if one cannot
        be written. `change` gets those that the directory knows. Raises the first error at the end."""
        failures: list[OSError] = []
        for name, found in self._directories.items():
            known = [partition for partition in partitions if found.knows(partition)]
            if not known:
                continue
            with found.lock:
                try:
                    change(name, found, known)
                except OSError as failure:
                    failures.append(failure)
        if failures:
            raise failures[0]
