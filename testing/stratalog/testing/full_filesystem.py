"""A disk that is full below one directory: what needs space there is refused, everything else goes well.

What is removed below it makes room, as on a real disk. A new name has room in its directory's last block, as
that of a file that is made longer by its name; where `names_are_full`, that block is full, too, and no file
or directory gets a name that was not there. Everything counts as an operation of a
`FaultyFileSystem`, which may fail and crash besides::

    disk = FullFileSystem()
    work(disk)
    disk.fill("/data")
    with pytest.raises(DataDirectoryError):
        more_work(disk)
    disk.fill(None)                      # there is room again
"""

from __future__ import annotations

import errno
import os

from stratalog.testing.faulty_filesystem import Fate, FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem, Survival

_MAKES_A_NAME = frozenset({"open_append", "make_directories"})
_BLOCK_BYTES = 4096
_TAKES_SPACE = frozenset({"append", "reserve", "link", "copy_file"})


class FullFileSystem(FaultyFileSystem):
    """`FaultyFileSystem` of which a directory is full, once it is named. Thread-safe, but for `fill`."""

    def __init__(self, inner: MemoryFileSystem | None = None) -> None:
        super().__init__(inner)
        self._full: str | None = None
        self.room_bytes = 0
        """Bytes that were removed below the full directory since then; each write there takes a block."""
        self.names_are_full = False
        """Renames to a new name take a block as well."""

    def fill(self, path: str | None) -> None:
        """Nothing is free below the path from now on; None: there is room everywhere."""
        self._full, self.room_bytes = path, 0

    def next_fate(self, name: str, path: str) -> Fate | None:
        fate = super().next_fate(name, path)
        full = self._full
        # The last path of two is the one that something is made at.
        target = path.rpartition(" ")[2]
        if fate is not None or full is None or not target.startswith(f"{full}/"):
            return fate
        if name == "unlink":
            self.room_bytes += self.inner.file_size(path) + self.inner.spare_bytes(path)
        if name == "remove_tree":
            below = [data or b"" for one, data in self.inner.contents().items() if one.startswith(f"{path}/")]
            self.room_bytes += sum(map(len, below))
        is_new_name = name in _MAKES_A_NAME or (name == "rename" and self.names_are_full)
        if name not in _TAKES_SPACE and (not is_new_name or self.inner.exists(target)):
            return None
        if self.room_bytes > 0:
            if name in ("append", "rename"):
                self.room_bytes = max(0, self.room_bytes - _BLOCK_BYTES)
            return None
        return Fate(0.4, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target))

    def free_bytes(self, path: str) -> int:
        free_bytes = super().free_bytes(path)
        full = self._full
        return self.room_bytes if full is not None and f"{path}/".startswith(f"{full}/") else free_bytes

    def reopened(self, survival: Survival) -> FullFileSystem:
        """The disk after a power loss, as of a `FaultyFileSystem`; it is as full as this one."""
        return self._again(self.inner.after_crash(survival))

    def killed(self) -> FullFileSystem:
        """The disk that a new process finds."""
        self.inner.release_locks()
        return self._again(self.inner)

    def _again(self, inner: MemoryFileSystem) -> FullFileSystem:
        found = FullFileSystem(inner)
        found._full, found.room_bytes = self._full, self.room_bytes
        found.names_are_full = self.names_are_full
        return found
