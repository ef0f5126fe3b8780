"""A file system in memory that knows what would be left of it after a power loss.

Every file keeps two contents: what readers see, and what was there at the last `sync`. Every directory keeps
its names and, besides, the names of the last `sync_directory` with the list of the changes since.
`after_crash` builds a new file system from the durable halves and as much of the rest as a `Survival` says,
because a real disk may have written any of it on its own account:

* bytes that were not synced: none of them, all of them, a torn half, or the size without the bytes (zeros,
  noise);
* names that were not synced: the changes of a directory survive from the first to some last one, in their
  order, as journaling file systems replay them: none, half or all. Different directories owe each other no
  order.

Files owe each other nothing either: with `Kept.EACH` every file has another one of these fates, and every
directory another last change, drawn by the seed.

A sync of a file says nothing about its name, and a synced name nothing about the contents.
"""

from __future__ import annotations

import enum
import errno
import os
import posixpath
import random
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.filesystem import AppendFile, Buffer, FileLock


class Kept(enum.Enum):
    """How much of what was not synced a crash leaves."""

    NONE = "none"
    HALF = "half"
    ALL = "all"
    ZEROS = "zeros"
    NOISE = "noise"
    EACH = "each"


class Survival(NamedTuple):
    """The fate of unsynced contents and of unsynced names. ZEROS and NOISE are for contents only."""

    contents: Kept
    names: Kept
    seed: int = 0
    """The seed of the fates that are drawn for EACH."""


_FATES = (Kept.NONE, Kept.HALF, Kept.ALL, Kept.ZEROS, Kept.NOISE)


class _File:
    """A file's two contents. Guarded by the file system's lock."""

    def __init__(self, now_ms: int) -> None:
        self.data = bytearray()
        self.synced = b""
        # Bytes below this are the same in `data` and `synced`: files only change at their end.
        self.stable_bytes = 0
        self.modified_ms = now_ms
        # Reserved space belongs to the file, not to its contents; a crash leaves it.
        self.reserved_bytes = 0

    def truncate(self, size: int) -> None:
        self.reserved_bytes = min(self.reserved_bytes, size)
        if size > len(self.data):
            self.data.extend(bytes(size - len(self.data)))
        del self.data[size:]
        self.stable_bytes = min(self.stable_bytes, size)

    def sync(self) -> None:
        self.synced = bytes(self.data)
        self.stable_bytes = len(self.synced)

    def survivor(self, kept: Kept) -> bytes:
        stable, loose = bytes(self.data[: self.stable_bytes]), bytes(self.data[self.stable_bytes :])
        if kept is Kept.NONE:
            return self.synced
        if kept is Kept.ALL:
            return stable + loose
        if kept is Kept.HALF:
            return stable + loose[: (len(loose) + 1) // 2]
        if kept is Kept.ZEROS:
            return stable + bytes(len(loose))
        assert kept is Kept.NOISE
        return stable + random.Random(len(loose)).randbytes(len(loose))


class _Directory:
    """A directory's names, now and as of its last sync. Guarded by the file system's lock."""

    def __init__(self) -> None:
        self.entries: dict[str, _File | _Directory] = {}
        self.synced: dict[str, _File | _Directory] = {}
        self.changes: list[Callable[[dict[str, _File | _Directory]], None]] = []

    def change(self, change: Callable[[dict[str, _File | _Directory]], None]) -> None:
        change(self.entries)
        self.changes.append(change)

    def sync(self) -> None:
        self.synced = dict(self.entries)
        self.changes.clear()

    def survivor(self, kept: Kept, draw: random.Random) -> dict[str, _File | _Directory]:
        count = {Kept.NONE: 0, Kept.HALF: (len(self.changes) + 1) // 2}.get(kept, len(self.changes))
        if kept is Kept.EACH:
            count = draw.randint(0, len(self.changes))
        entries = dict(self.synced)
        for change in self.changes[:count]:
            change(entries)
        return entries


class MemoryFileSystem:
    """`FileSystem` in memory, with `after_crash`. Thread-safe."""

    def __init__(
        self, *, now_ms: Callable[[], int] = lambda: 0, free_bytes: int = 1 << 40, can_reserve: bool = True
    ) -> None:
        self.lock = threading.RLock()
        self.can_reserve = can_reserve
        self.has_cache = True
        """Whether `AppendFile.read_cached` has the bytes of files."""
        self.now_ms = now_ms
        self._free_bytes = free_bytes
        self._root = _Directory()
        self._locked: set[str] = set()

    def after_crash(self, survival: Survival) -> MemoryFileSystem:
        """The disk that a machine finds after a power loss at this moment. All of it is durable; no locks are
        held."""
        with self.lock:
            found = MemoryFileSystem(
                now_ms=self.now_ms, free_bytes=self._free_bytes, can_reserve=self.can_reserve
            )
            found._root = self._survivor(self._root, survival, random.Random(survival.seed))
            return found

    def contents(self) -> dict[str, bytes | None]:
        """Every path with what is in the file, None for a directory."""

        def collect(directory: _Directory, prefix: str) -> None:
            for name, node in directory.entries.items():
                path = f"{prefix}/{name}"
                found[path] = bytes(node.data) if isinstance(node, _File) else None
                if isinstance(node, _Directory):
                    collect(node, path)

        with self.lock:
            found: dict[str, bytes | None] = {}
            collect(self._root, "")
            return found

    def used_bytes(self) -> int:
        """The contents of all files together, without what is reserved beyond them."""

        def size(directory: _Directory) -> int:
            return sum(
                len(node.data) if isinstance(node, _File) else size(node)
                for node in directory.entries.values()
            )

        with self.lock:
            return size(self._root)

    def spare_bytes(self, path: str) -> int:
        """The space that is reserved for the file beyond its contents."""
        with self.lock:
            file = self._file(path)
            return max(0, file.reserved_bytes - len(file.data))

    def release_locks(self) -> None:
        """End the process: release its locks. Contents and names stay, durable or not."""
        with self.lock:
            self._locked.clear()

    def _survivor(self, directory: _Directory, survival: Survival, draw: random.Random) -> _Directory:
        found = _Directory()
        for name, node in directory.survivor(survival.names, draw).items():
            if isinstance(node, _Directory):
                found.entries[name] = self._survivor(node, survival, draw)
                continue
            file = _File(node.modified_ms)
            file.data += node.survivor(
                draw.choice(_FATES) if survival.contents is Kept.EACH else survival.contents
            )
            file.reserved_bytes = node.reserved_bytes
            file.sync()
            found.entries[name] = file
        found.sync()
        return found

    def open_append(self, path: str) -> AppendFile:
        with self.lock:
            directory, name = self._parent(path)
            if name not in directory.entries:
                file = _File(self.now_ms())
                directory.change(lambda entries: entries.__setitem__(name, file))
            return _MemoryAppendFile(self, path, self._file(path), is_writable=True)

    def open_read(self, path: str) -> AppendFile:
        with self.lock:
            return _MemoryAppendFile(self, path, self._file(path), is_writable=False)

    def read_file(self, path: str) -> bytes:
        with self.lock:
            return bytes(self._file(path).data)

    def list_directory(self, path: str) -> list[str]:
        with self.lock:
            return sorted(self._directory(path).entries)

    def exists(self, path: str) -> bool:
        with self.lock:
            return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        with self.lock:
            return isinstance(self._find(path), _Directory)

    def real_path(self, path: str) -> str:
        return posixpath.normpath(path)

    def file_size(self, path: str) -> int:
        with self.lock:
            return len(self._file(path).data)

    def modified_ms(self, path: str) -> int:
        with self.lock:
            node = self._find(path)
            if node is None:
                raise _os_error(errno.ENOENT, path)
            return node.modified_ms if isinstance(node, _File) else 0

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with self.lock:
            self._file(path).modified_ms = modified_ms

    def make_directories(self, path: str) -> None:
        with self.lock:
            directory = self._root
            for name in _names(path):
                if name not in directory.entries:
                    _set_entry(directory, name, _Directory())
                child = directory.entries[name]
                if not isinstance(child, _Directory):
                    raise _os_error(errno.EEXIST, path)
                directory = child

    def rename(self, source: str, target: str) -> None:
        with self.lock:
            source_directory, source_name = self._parent(source)
            target_directory, target_name = self._parent(target)
            node = self._find(source)
            replaced = self._find(target)
            if node is None:
                raise _os_error(errno.ENOENT, source)
            if isinstance(replaced, _Directory) and (isinstance(node, _File) or replaced.entries):
                raise _os_error(errno.EISDIR if isinstance(node, _File) else errno.ENOTEMPTY, target)
            if isinstance(node, _Directory) and isinstance(replaced, _File):
                raise _os_error(errno.ENOTDIR, target)
            if source_directory is target_directory:
                # One change: a crash shows the old name or the new one, never both and never neither.
                def move(entries: dict[str, _File | _Directory]) -> None:
                    entries.pop(source_name, None)
                    entries[target_name] = node

                source_directory.change(move)
                return
            _set_entry(target_directory, target_name, node)
            source_directory.change(lambda entries: _discard(entries, source_name))

    def unlink(self, path: str) -> None:
        with self.lock:
            self._file(path)
            directory, name = self._parent(path)
            directory.change(lambda entries: _discard(entries, name))

    def link(self, source: str, target: str) -> None:
        with self.lock:
            file = self._file(source)
            directory, name = self._parent(target)
            if name in directory.entries:
                raise _os_error(errno.EEXIST, target)
            _set_entry(directory, name, file)

    def link_count(self, path: str) -> int:
        with self.lock:
            return _name_count(self._root, self._file(path))

    def copy_file(self, source: str, target: str) -> None:
        with self.lock:
            data = self.read_file(source)
            if self.exists(target):
                raise _os_error(errno.EEXIST, target)
            self.open_append(target).append([data])

    def remove_tree(self, path: str) -> None:
        with self.lock:
            if self._find(path) is not None:
                directory, name = self._parent(path)
                directory.change(lambda entries: _discard(entries, name))

    def sync_directory(self, path: str) -> None:
        with self.lock:
            self._directory(path).sync()

    def try_lock(self, path: str) -> FileLock | None:
        with self.lock:
            if path in self._locked:
                return None
            self.open_append(path)
            self._locked.add(path)
            return _MemoryFileLock(self._locked, path)

    def try_lock_shared(self, path: str) -> FileLock | None:
        with self.lock:
            self._file(path)
            return None if path in self._locked else _MemorySharedLock()

    def free_bytes(self, path: str) -> int:
        with self.lock:
            self._directory(path)
            return self._free_bytes

    def _find(self, path: str) -> _File | _Directory | None:
        node: _File | _Directory = self._root
        for name in _names(path):
            if not isinstance(node, _Directory) or name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def _file(self, path: str) -> _File:
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if isinstance(node, _Directory):
            raise _os_error(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if isinstance(node, _File):
            raise _os_error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        return self._directory(posixpath.dirname(path)), posixpath.basename(path)


class _MemoryAppendFile:
    """An open file; it stays usable after its name is gone. Guarded by the file system's lock."""

    def __init__(self, filesystem: MemoryFileSystem, path: str, file: _File, *, is_writable: bool) -> None:
        self._filesystem = filesystem
        self._path = path
        self._file = file
        self._is_writable = is_writable
        self._is_closed = False

    @property
    def path(self) -> str:
        return self._path

    def append(self, parts: Sequence[Buffer]) -> int:
        with self._filesystem.lock:
            file = self._opened(for_writing=True)
            data = b"".join(parts)
            file.data += data
            file.modified_ms = self._filesystem.now_ms()
            return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        with self._filesystem.lock:
            return bytes(self._opened().data[position : position + size])

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        data = self.read_at(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_cached(self, position: int, size: int) -> Buffer | None:
        data = self.read_at(position, size)
        return data if self._filesystem.has_cache and len(data) == size else None

    def size(self) -> int:
        with self._filesystem.lock:
            return len(self._opened().data)

    def truncate(self, size: int) -> None:
        with self._filesystem.lock:
            self._opened(for_writing=True).truncate(size)

    def reserve(self, size: int) -> bool:
        with self._filesystem.lock:
            file = self._opened(for_writing=True)
            if not self._filesystem.can_reserve:
                return False
            if size - len(file.data) > self._filesystem.free_bytes("/"):
                raise _os_error(errno.ENOSPC, self._path)
            file.reserved_bytes = max(file.reserved_bytes, size)
            return True

    def bypass_cache(self) -> None:
        """Does nothing: there is no cache."""

    def sync(self) -> None:
        with self._filesystem.lock:
            self._opened().sync()

    def close(self) -> None:
        with self._filesystem.lock:
            self._opened()
            self._is_closed = True

    def _opened(self, *, for_writing: bool = False) -> _File:
        if self._is_closed or (for_writing and not self._is_writable):
            raise _os_error(errno.EBADF, self._path)
        return self._file


class _MemoryFileLock:
    """A lock on a file in memory. Guarded by its only holder."""

    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


class _MemorySharedLock:
    """A lock without effect: a memory has only one process."""

    def release(self) -> None:
        pass


def _set_entry(directory: _Directory, name: str, node: _File | _Directory) -> None:
    directory.change(lambda entries: entries.__setitem__(name, node))


def _discard(entries: dict[str, _File | _Directory], name: str) -> None:
    entries.pop(name, None)


def _name_count(directory: _Directory, file: _File) -> int:
    count = 0
    for node in directory.entries.values():
        if isinstance(node, _Directory):
            count += _name_count(node, file)
        elif node is file:
            count += 1
    return count


def _names(path: str) -> list[str]:
    assert path.startswith("/"), f"paths are absolute: {path}"
    return [name for name in path.split("/") if name]


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
