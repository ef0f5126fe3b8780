"""The local disk, as something that is handed in.

Durability follows POSIX at its strictest: bytes are safe after `AppendFile.sync`, a name (creation, rename,
unlink) after `FileSystem.sync_directory` of the directory that holds it.
``stratalog.testing.FaultyFileSystem`` forgets all the rest when it crashes.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk that works and has no space for this, or none for this user. A name was not made, and not
changed, then; what a `sync` has left nobody knows."""
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of a process, or a system, that has too many files open: the operation was not begun."""


class AppendFile(Protocol):
    """A file that grows at its end. Reads are positional and thread-safe; changes need the caller's lock."""

    @property
    def path(self) -> str: ...

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end with as few system calls as possible; returns the bytes written.

        Raises OSError; the file may then end with a part of them (truncate to the size before).
        """
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes from `position`; short only at the end of the file."""
        ...

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        """Fill `buffer` with the bytes from `position` on; returns how many, fewer only at the end of the
        file. For whoever reads much: memory that is used again is still in the cache."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Be so long. Space beyond, also what was reserved there, is given back."""
        ...

    def reserve(self, size: int) -> bool:
        """Take the disk space for growing up to `size` bytes, which appends up to there will not lack. Size
        and contents stay. False where the system or the file system cannot. Raises OSError, of a full disk
        for one; some of the space may be reserved then."""
        ...

    def sync(self) -> None:
        """Contents and size survive a power loss when this returns. The name does not: sync the directory."""
        ...

    def close(self) -> None: ...


class FileLock(Protocol):
    """Held until released or until the process ends."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """Paths are absolute strings. Methods raise OSError as the operating system does. Thread-safe."""

    def open_append(self, path: str) -> AppendFile:
        """Open for appending and reading, creating an empty file where there is none."""
        ...

    def open_read(self, path: str) -> AppendFile:
        """Open an existing file for reading only. Raises FileNotFoundError."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def list_directory(self, path: str) -> list[str]:
        """Names, sorted, without the path."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def real_path(self, path: str) -> str:
        """The one path of what this path leads to: without links and dots. What is missing may be named."""
        ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Let the file count as written last at that time; durable with the file's next sync. For a file that
        takes the place of older ones."""
        ...

    def make_directories(self, path: str) -> None:
        """Create the directory and its parents where missing."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces a file of the target's name. A new name may need space in the directory."""
        ...

    def unlink(self, path: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Give the file `source` the second name `target`. Whatever is written under one name is there under
        the other: for files that nobody changes any more. Raises OSError where the two are on different
        devices, or the system does not allow it."""
        ...

    def link_count(self, path: str) -> int:
        """How many names the file has. Raises FileNotFoundError."""
        ...

    def copy_file(self, source: str, target: str) -> None:
        """Make the file `target` with what `source` holds now; not durable until it is synced. Raises
        FileExistsError."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all that is in it; nothing where it is missing."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def try_lock(self, path: str) -> FileLock | None:
        """Take an exclusive advisory lock on a (created) file; None where another holder has it."""
        ...

    def try_lock_shared(self, path: str) -> FileLock | None:
        """Take a shared advisory lock on a file that is there, and is not changed by it; None where another
        process holds it alone, in whichever way the system has to lock files. Raises FileNotFoundError."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes that an ordinary user may still write."""
        ...
