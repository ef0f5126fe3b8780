"""Finds log directories whose disks do not answer while their logs open.

A disk answers when an operation on it ends, with success or without. Threads that compute, or wait for the
object store, ask nothing of the disk, and it is healthy all the same. So at the first look that finds no
answer it is asked, beside the caller: a small file is written, fsynced and removed. Something waits for the
disk from then on, so further looks without an answer mean that it hangs::

    .probe          the file of that question; one that a crash has left is used again

The looks are counted, and not the time: a process that stood still has made none meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from stratalog.base.filesystem import FileSystem
from stratalog.base.scheduler import RunBeside
from stratalog.manager.directories.directory_set import DirectorySet

PROBE_FILE = ".probe"


class _Disk:
    """The last look at a disk. One thread looks; that of a question notes its end."""

    __slots__ = ("answer_count", "is_asked", "silent_count")

    def __init__(self, answer_count: int) -> None:
        self.answer_count = answer_count
        self.silent_count = 0
        self.is_asked = False


class SilentDisks:
    """Counts, by log directory, the looks in a row that found no answer. Belongs to one thread."""

    def __init__(self, directories: DirectorySet, run_beside: RunBeside) -> None:
        """`run_beside` runs questions on other threads, which a disk that hangs keeps."""
        self._directories = directories
        self._run_beside = run_beside
        self._disks: dict[str, _Disk] = {}

    def look(self, path: str) -> int:
        """Look at the disk of a log directory. Returns the number of looks in a row, this one included, that
        found no answer since the one before; the first look finds one."""
        answer_count = self._directories.answer_count(path)
        disk = self._disks.setdefault(path, _Disk(answer_count - 1))
        if disk.answer_count != answer_count:
            disk.answer_count, disk.silent_count = answer_count, 0
            return 0
        disk.silent_count += 1
        if not disk.is_asked:
            disk.is_asked = True
            self._run_beside(partial(_ask, self._directories.filesystem, path, disk))
        return disk.silent_count


def _ask(filesystem: FileSystem, directory: str, disk: _Disk) -> None:
    """Ask the disk; the file system counts its answers. A refusal is one."""
    path = f"{directory}/{PROBE_FILE}"
    try:
        with suppress(OSError):
            file = filesystem.open_append(path)
            try:
                file.append([b"?"])
                file.sync()
            finally:
                file.close()
                filesystem.unlink(path)
    finally:
        disk.is_asked = False
