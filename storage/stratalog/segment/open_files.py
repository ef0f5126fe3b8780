"""The open files of all logs: a bounded number, shared by all readers.

Thousands of partitions with many segments each would need more descriptors than a process has. So no object
keeps a file open. `use` lends it for one operation; if too many files are open, the one that was idle for
longest is closed. A lent file stays open until its last user returns it, even if its name changes meanwhile.

A file that is lent for writing has no other name. An import gives the sealed segments of a broker a second
name instead of a copy, and a cut or an append would change the broker's file too. So `use` first replaces
such a file by a copy. The copy is written as `.cleaned`, which a loader of the directory ignores, and takes
the name once it is durable. After a crash the name has the shared file or the copy, with the same bytes.

A file is opened under a lock of its log directory. So a disk holds up neither the users of files that are
open nor those that open files on another disk.
"""

from __future__ import annotations

import posixpath
import threading
from collections import OrderedDict
from types import TracebackType

from stratalog.base.filesystem import AppendFile, FileSystem
from stratalog.segment.file_names import CLEANED_SUFFIX

DEFAULT_MAX_OPEN = 512
_MAX_OPEN = 16 * 1024


def max_open_below(open_file_limit: int) -> int:
    """The number of files to keep open in a process with this limit: half of it, because sockets and files in
    use beyond the bound need the rest; and never more than are worth their memory."""
    return max(1, min(_MAX_OPEN, open_file_limit // 2))


class LentFile:
    """An open file and the number of its users. A context manager that returns the file at its end. Guarded
    by `OpenFiles.guard`."""

    __slots__ = ("_owner", "file", "is_forgotten", "is_writable", "user_count")

    def __init__(self, owner: OpenFiles, file: AppendFile, *, is_writable: bool) -> None:
        self._owner = owner
        self.file = file
        self.is_writable = is_writable
        self.is_forgotten = False
        self.user_count = 0

    def __enter__(self) -> AppendFile:
        return self.file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owner = self._owner
        with owner.guard:
            self.user_count -= 1
            if self.user_count == 0:
                owner.settle_idle(self)


class OpenFiles:
    """A bounded set of open files, by path. Thread-safe: `guard` guards the set, and is not held while the
    disk is asked. The lock in `_opening` of the path's log directory is held from the look at the path until
    its file is in the set, and taken before `guard`: `forget` waits for a file that is being opened there."""

    def __init__(self, filesystem: FileSystem, max_open: int = DEFAULT_MAX_OPEN) -> None:
        assert max_open > 0
        self.filesystem = filesystem
        self._max_open = max_open
        self.guard = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        """By log directory."""
        self._files: OrderedDict[str, LentFile] = OrderedDict()

    def use(self, path: str, *, for_writing: bool = False) -> LentFile:
        """Lend the file: `with files.use(path) as file`. For writing, a missing file is created, and a file
        that has a second name is first replaced by a copy of its own.

        Raises FileNotFoundError for reading, OSError.
        """
        lent = self.use_open(path, for_writing=for_writing)
        if lent is not None:
            return lent
        if for_writing:
            # Outside the guard, because it may copy a large file. A path has one writer at a time.
            self._own(path)
        with self._opening_in(_log_directory(path)):
            # Another thread may have opened it meanwhile.
            return self.use_open(path, for_writing=for_writing) or self._open(path, for_writing=for_writing)

    def use_open(self, path: str, *, for_writing: bool = False) -> LentFile | None:
        """Lend the file if it is open already, without a wait for the disk; else None."""
        with self.guard:
            lent = self._files.get(path)
            if lent is None or (for_writing and not lent.is_writable):
                return None
            lent.user_count += 1
            self._files.move_to_end(path)
            return lent

    def settle_idle(self, lent: LentFile) -> None:
        """Close a file that has lost its last user, if it was forgotten or too many are open. The caller
        holds `guard`."""
        if lent.is_forgotten:
            _close(lent)
        elif len(self._files) > self._max_open:
            self._forget(lent.file.path)

    def forget(self, path: str) -> None:
        """Close the file, or let its last user close it. Call this before its name changes or goes."""
        with self._opening_in(_log_directory(path)), self.guard:
            self._forget(path)

    def forget_below(self, *directories: str) -> None:
        """Forget all files in the directories of these partitions, which are in one log directory."""
        log_directories = {posixpath.dirname(directory) for directory in directories}
        assert len(log_directories) <= 1, "they are in one log directory"
        wanted = frozenset(directories)
        for log_directory in log_directories:
            with self._opening_in(log_directory), self.guard:
                for path in [path for path in self._files if posixpath.dirname(path) in wanted]:
                    self._forget(path)

    def close_in(self, log_directory: str) -> None:
        """Forget all files in a log directory."""
        with self._opening_in(log_directory), self.guard:
            for path in [path for path in self._files if _log_directory(path) == log_directory]:
                self._forget(path)

    def close(self) -> None:
        """Forget all files."""
        with self.guard:
            log_directories = {_log_directory(path) for path in self._files}
        for log_directory in sorted(log_directories):
            self.close_in(log_directory)

    def _opening_in(self, log_directory: str) -> threading.Lock:
        """The lock under which files in the log directory are opened."""
        # A look-up in a dictionary is one step, and a lock stays.
        lock = self._opening.get(log_directory)
        if lock is None:
            with self.guard:
                lock = self._opening.setdefault(log_directory, threading.Lock())
        return lock

    @property
    def open_count(self) -> int:
        return len(self._files)

    def check(self) -> None:
        """Invariants: the set has no forgotten file, and exceeds the bound only with files in use."""
        with self.guard:
            assert not any(lent.is_forgotten for lent in self._files.values())
            idle_count = sum(lent.user_count == 0 for lent in self._files.values())
            assert len(self._files) <= self._max_open or idle_count == 0

    def _own(self, path: str) -> None:
        """Replace `path` by a copy that has no other name. Does nothing if the file has no other name, or is
        missing.

        The copy and its name are durable when this returns. A reader that has the file open keeps the shared
        one. Raises OSError, with the shared file in place.
        """
        filesystem = self.filesystem
        try:
            if filesystem.link_count(path) == 1:
                return
        except FileNotFoundError:
            return
        copy_path = path + CLEANED_SUFFIX
        if filesystem.exists(copy_path):
            # A failed attempt left it, perhaps incomplete.
            filesystem.unlink(copy_path)
        filesystem.copy_file(path, copy_path)
        file = filesystem.open_append(copy_path)
        try:
            file.sync()
        finally:
            file.close()
        filesystem.rename(copy_path, path)
        filesystem.sync_directory(posixpath.dirname(path))

    def _open(self, path: str, *, for_writing: bool) -> LentFile:
        """Open the file, and lend it. The caller holds the lock in `_opening`."""
        with self.guard:
            self._forget(path)
        opened = self.filesystem.open_append(path) if for_writing else self.filesystem.open_read(path)
        lent = LentFile(self, opened, is_writable=for_writing)
        lent.user_count = 1
        with self.guard:
            self._files[path] = lent
            if len(self._files) > self._max_open:
                self._close_idle(keep=path)
        return lent

    def _close_idle(self, keep: str) -> None:
        """Close the files that were idle for longest, until the bound holds; files in use stay."""
        while len(self._files) > self._max_open:
            # No list: almost always the first file is idle.
            idle = (path for path, lent in self._files.items() if lent.user_count == 0 and path != keep)
            path = next(idle, None)
            if path is None:
                return
            self._forget(path)

    def _forget(self, path: str) -> None:
        lent = self._files.pop(path, None)
        if lent is not None:
            lent.is_forgotten = True
            if lent.user_count == 0:
                _close(lent)


def _log_directory(path: str) -> str:
    """The log directory of a file, which lies in the directory of a partition there."""
    return posixpath.dirname(posixpath.dirname(path))


def _close(lent: LentFile) -> None:
    try:
        lent.file.close()
    except OSError:
        # The descriptor is closed all the same. Data that must be durable was synced before, which reports
        # its own failure.
        pass
