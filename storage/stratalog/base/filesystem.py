"""The seam for the local disk.

Durability follows POSIX at its strictest: bytes are safe after `AppendFile.sync`, a name (creation, rename,
unlink) after `FileSystem.sync_directory` of the directory that holds it.
``stratalog.testing.FaultyFileSystem`` forgets everything else when it crashes.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a working disk without space, or without space for this user. The failed operation has created or
changed no name; after such an error of `sync` the contents are unknown."""
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of too many open files in the process or the system. The operation did not begin."""


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
        """Fill `buffer` with the bytes from `position` on; returns their number, smaller only at the end of
        the file. Memory that is used again is still in the cache, which makes many reads faster.
        """
        ...

    def read_cached(self, position: int, size: int) -> Buffer | None:
        """Those bytes if the system has all of them in memory, without a wait for the disk. None if the file
        has less, the bytes are not in memory, or the system cannot tell. Nothing else uses the buffer.
        """
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut or extend the file to this size. Gives back space beyond it, reserved space included."""
        ...

    def reserve(self, size: int) -> bool:
        """Reserve disk space for growing up to `size` bytes. Size and contents stay. Returns False if the
        system or the file system cannot. Raises OSError, for a full disk for example; a part of the space may
        be reserved then.
        """
        ...

    def bypass_cache(self) -> None:
        """Let further appends go past the page cache where the system can, because the file is not read soon.
        Call it before the file gets another name. Worth it for appends of a mebibyte and more. Size and
        contents are as ever, and `sync` stays necessary.
        """
        ...

    def sync(self) -> None:
        """Contents and size survive a power loss when this returns. The name does not: sync the directory."""
        ...

    def close(self) -> None: ...


class FileLock(Protocol):
    """A lock that is held until `release` or the end of the process."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """A disk. Paths are absolute strings. Methods raise OSError as the operating system does. Thread-safe."""

    def open_append(self, path: str) -> AppendFile:
        """Open a file for appending and reading; creates an empty one if it is missing."""
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
        """The path without links and dots. Its last parts may be missing."""
        ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the time of the file's last write; durable with its next sync. For a file that replaces older
        ones.
        """
        ...

    def make_directories(self, path: str) -> None:
        """Create the directory and its missing parents."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces a file of the target's name. A new name may need space in the directory."""
        ...

    def unlink(self, path: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Give the file `source` the second name `target`, for a file that no longer changes. Raises OSError
        if the names are on different devices, or the system does not allow it.
        """
        ...

    def link_count(self, path: str) -> int:
        """The number of the file's names. Raises FileNotFoundError."""
        ...

    def copy_file(self, source: str, target: str) -> None:
        """Copy `source` to the new file `target`; not durable until it is synced. Raises FileExistsError."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its contents; does nothing if it is missing."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def try_lock(self, path: str) -> FileLock | None:
        """Take an exclusive advisory lock on a file, which is created; None if another holder has it."""
        ...

    def try_lock_shared(self, path: str) -> FileLock | None:
        """Take a shared advisory lock on an existing file, which stays unchanged; None if another process
        holds it exclusively, in any of the system's ways to lock files. Raises FileNotFoundError.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes that an ordinary user may still write."""
        ...
