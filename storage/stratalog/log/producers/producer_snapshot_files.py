"""The producer snapshots of one log, as files of its directory.

There is one for the base offset of each segment, taken when it was rolled, and one for the end of a log that
was closed. A snapshot stays true as long as the log below its offset does not change, so:

* a snapshot above the end of a truncated log must be gone, durably, before the log grows again;
* a snapshot below the end that is missing, or comes back after a crash, does no harm.

A write is atomic and durable, or, if the caller may not wait for the disk, `sync` makes it durable later. A
crash before that leaves a damaged file, as may a copied directory or a bad disk; the checksum shows it.

A start knows only after it has followed the whole log if the log can be served. Until then it holds changes
back: questions are answered as if the changes were made, and the directory stays as it was.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence

from stratalog.base.atomic_file import TEMPORARY_SUFFIX, replace_file
from stratalog.base.errors import CorruptRecordError
from stratalog.base.file_contents import write_file
from stratalog.base.filesystem import FileSystem
from stratalog.log.producers.producer_snapshot import (
    ProducerSnapshot,
    parse_snapshot_name,
    snapshot_path,
)
from stratalog.segment.file_names import DELETED_SUFFIX

_UNFINISHED_SUFFIXES = (TEMPORARY_SUFFIX, DELETED_SUFFIX)


class ProducerSnapshotFiles:
    """The producer snapshots in a log's directory. Guarded by UnifiedLog: one caller at a time, so that none
    is written while the log is truncated."""

    def __init__(self, filesystem: FileSystem, directory: str, names: Sequence[str] | None = None) -> None:
        """Find the existing files. `names`: the names in the directory, if the caller has just listed them.
        Raises OSError."""
        self._filesystem = filesystem
        self._directory = directory
        if names is None:
            names = filesystem.list_directory(directory)
        self._offsets = sorted(offset for offset in map(parse_snapshot_name, names) if offset is not None)
        self._unfinished = [name for name in names if _is_unfinished(name)]
        self._unsynced: list[int] = []
        # Changes that are held back, by offset: a snapshot to write, or None for a file to remove. None:
        # changes are made at once.
        self._held: dict[int, ProducerSnapshot | None] | None = None

    def hold(self) -> None:
        """Change no file until `release`."""
        assert self._held is None
        self._held = {}

    def release(self) -> None:
        """Make the changes that were held back: removals durably; `sync` makes the snapshots durable later.
        Raises OSError."""
        assert self._held is not None
        held, self._held = self._held, None
        removed = [offset for offset, snapshot in held.items() if snapshot is None]
        for offset in removed:
            self._unlink(offset)
        if removed:
            self._filesystem.sync_directory(self._directory)
        for snapshot in held.values():
            if snapshot is not None:
                self.write(snapshot, durable=False)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets with a snapshot, ascending."""
        return tuple(self._offsets)

    @property
    def latest(self) -> int | None:
        return self._offsets[-1] if self._offsets else None

    def write(self, snapshot: ProducerSnapshot, *, durable: bool = True) -> None:
        """Write a snapshot. Durable when it returns, or else after `sync`. Raises OSError."""
        path, data = snapshot_path(self._directory, snapshot.end_offset), snapshot.to_bytes()
        if self._held is not None:
            assert not durable, "what is held back is on no disk"
            self._held[snapshot.end_offset] = snapshot
        elif durable:
            replace_file(self._filesystem, path, data)
        else:
            write_file(self._filesystem, path, [data], durable=False)
            self._unsynced.append(snapshot.end_offset)
        if snapshot.end_offset not in self._offsets:
            insort(self._offsets, snapshot.end_offset)

    def take_unsynced(self) -> tuple[int, ...]:
        """The offsets of snapshots that are not durable yet. They count as synced from now on, unless they
        are `put_back`."""
        unsynced = tuple(self._unsynced)
        self._unsynced.clear()
        return unsynced

    def put_back(self, offsets: Sequence[int]) -> None:
        """Note that these were not synced. Snapshots that were removed meanwhile need no sync."""
        self._unsynced[:0] = [offset for offset in offsets if offset in self._offsets]

    def sync(self, offsets: Sequence[int]) -> None:
        """Make the contents durable, not the names. Needs no lock, but none of them may be removed meanwhile.
        Raises OSError."""
        for offset in offsets:
            file = self._filesystem.open_append(snapshot_path(self._directory, offset))
            try:
                file.sync()
            finally:
                file.close()

    def newest_at_or_below(self, offset: int) -> ProducerSnapshot | None:
        """The newest snapshot at or below `offset` that can be read. Removes damaged ones on the way.

        Raises OSError.
        """
        while count := bisect_right(self._offsets, offset):
            end_offset = self._offsets[count - 1]
            held = self._held.get(end_offset) if self._held is not None else None
            if held is not None:
                return held
            try:
                data = self._filesystem.read_file(snapshot_path(self._directory, end_offset))
                return ProducerSnapshot.from_bytes(end_offset, data)
            except (CorruptRecordError, FileNotFoundError):
                self._remove([end_offset])
        return None

    def remove_outside(self, start_offset: int, end_offset: int) -> None:
        """Remove the snapshots outside of [start_offset, end_offset]; durable when it returns, or with
        `release`. Raises OSError.
        """
        removed = self._remove(
            [offset for offset in self._offsets if not start_offset <= offset <= end_offset]
        )
        if removed and self._held is None:
            self._filesystem.sync_directory(self._directory)

    def relocate(self, directory: str) -> None:
        """Use the durable files in that directory. Those that could not be read may be missing."""
        assert self._held is None
        self._directory = directory
        self._unsynced.clear()

    def remove_at(self, offset: int) -> None:
        """Remove the snapshot at `offset`, if there is one. Raises OSError."""
        self._remove([offset] if offset in self._offsets else [])

    def remove_before(self, offset: int) -> None:
        """Remove all snapshots below `offset`. Raises OSError."""
        self._remove(self._offsets[: bisect_right(self._offsets, offset - 1)])

    def remove_stray(self, segment_base_offsets: Collection[int]) -> None:
        """Remove the snapshots that belong to no segment, except the one at the end of a closed log. Raises
        OSError.
        """
        strays = [offset for offset in self._offsets if offset not in segment_base_offsets]
        if strays and strays[-1] > max(segment_base_offsets, default=-1):
            del strays[-1]
        self._remove(strays)

    def remove_unfinished(self) -> None:
        """Remove the files of writes and removals that a crash has cut off. Called before the first write.
        Raises OSError."""
        while self._unfinished:
            self._filesystem.unlink(f"{self._directory}/{self._unfinished[-1]}")
            self._unfinished.pop()

    def _remove(self, offsets: list[int]) -> bool:
        for offset in offsets:
            if self._held is None:
                self._unlink(offset)
            else:
                self._held[offset] = None
            self._offsets.remove(offset)
        self._unsynced = [offset for offset in self._unsynced if offset in self._offsets]
        return bool(offsets)

    def _unlink(self, offset: int) -> None:
        path = snapshot_path(self._directory, offset)
        if self._filesystem.exists(path):
            self._filesystem.unlink(path)


def _is_unfinished(name: str) -> bool:
    """Whether a crash has cut off a write or a removal: Kafka renames a snapshot before it removes it."""
    if not name.endswith(_UNFINISHED_SUFFIXES):
        return False
    return parse_snapshot_name(name.rpartition(".")[0]) is not None
