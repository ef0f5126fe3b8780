"""The operating system's files behind the `FileSystem` seam.

An open file is one descriptor in append mode: writes always land at the end, and reads are positional, so
that any number of readers share the descriptor with the one writer. Small parts of an append are joined and
written by one `write`; large parts go to `writev` without a copy.

Only what POSIX promises survives a power loss: `sync` for contents and size, `sync_directory` for names.
`fdatasync` is enough for the former, because it also writes the metadata that is needed to read the data
back.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import resource
import shutil
import stat
import sys
from collections.abc import Callable, Sequence

from stratalog.base.direct_appends import DirectAppends, begin_direct
from stratalog.base.filesystem import AppendFile, Buffer, FileLock

logger = logging.getLogger(__name__)

# The size of the pieces in which a whole file is read.
_PIECE_BYTES = 64 * 1024
# POSIX guarantees 16, Linux and the BSDs give 1024.
_MAX_PARTS = min(1024, os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 16)
# Below this many bytes one copy into one buffer costs less than a vector of many small pieces.
_JOIN_BELOW_BYTES = 64 * 1024
_COPY_BYTES = 1024 * 1024
_CLONE_BYTES = 1024 * 1024 * 1024
# Linux can copy inside the kernel, and shares the blocks where the file system can.
_copy_file_range: Callable[[int, int, int], int] | None = getattr(os, "copy_file_range", None)
# Darwin's fsync stops at the drive's cache; this is its command for "on the platter".
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)

# From linux/falloc.h. Python's own `posix_fallocate` makes the file longer, and writes zeros where the file
# system cannot reserve.
_KEEP_SIZE = 1

# Linux: a read fails where it would wait for the disk. It could still wait for the journal, to note the time
# of the read, so files are opened without that.
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
_NO_READ_TIMES: int = getattr(os, "O_NOATIME", 0)


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    # `fallocate64` always has offsets of 64 bits; in a C library without it, those of `fallocate` have 64.
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


_fallocate = _find_fallocate()


def open_file_limit() -> int:
    """The number of files that this process may have open at once, sockets included."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def raise_open_file_limit() -> None:
    """Raise the process's soft limit of open files, which is for programs with `select`, to the hard one. If
    the system refuses, the limit stays.
    """
    limit, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == allowed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    except (OSError, ValueError) as failure:
        # Darwin reports no bound and has one.
        logger.warning("the limit of open files stays at %d: %s", limit, failure)


def _sync_descriptor(descriptor: int) -> None:
    if sys.platform == "darwin" and _FULL_FSYNC is not None:
        fcntl.fcntl(descriptor, _FULL_FSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def _reserve(descriptor: int, size: int) -> bool:
    """Allocate blocks up to `size` without making the file longer; False if the system cannot."""
    if _fallocate is None:
        return False
    while _fallocate(descriptor, _KEEP_SIZE, 0, size) != 0:
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


def _clone(source: int, target: int) -> bool:
    """Copy one open file into another, empty one inside the kernel. False if the system did not copy all of
    it; both files are then positioned at the rest.
    """
    if _copy_file_range is None:
        return False
    copied_bytes = 0
    while True:
        try:
            count = _copy_file_range(source, target, _CLONE_BYTES)
        except OSError as failure:
            if failure.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        if count == 0:
            # Some file systems return this for every file.
            return copied_bytes == os.fstat(source).st_size
        copied_bytes += count


def _status(path: str) -> os.stat_result | None:
    """The status of the path; None if it is missing. Raises OSError if the system cannot tell."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _open(path: str, flags: int) -> tuple[int, bool]:
    """A descriptor, and whether its reads leave the time of the last read as it is."""
    flags |= os.O_CLOEXEC
    if _NO_READ_TIMES:
        try:
            return os.open(path, flags | _NO_READ_TIMES, 0o644), True
        except PermissionError:
            # The file belongs to another user, or this one may not open it at all.
            pass
    return os.open(path, flags, 0o644), False


class PosixAppendFile:
    """One open descriptor. Reads are thread-safe; changes need the caller's lock. Not usable once closed."""

    __slots__ = ("_descriptor", "_direct", "_may_read_cached", "_path")

    def __init__(self, path: str, flags: int) -> None:
        self._path = path
        self._descriptor, leaves_times = _open(path, flags)
        self._may_read_cached = leaves_times and _NO_WAIT != 0
        self._direct: DirectAppends | None = None

    @property
    def path(self) -> str:
        return self._path

    def append(self, parts: Sequence[Buffer]) -> int:
        total = sum(map(len, parts))
        if self._direct is not None:
            parts = self._direct.append(parts)
            if self._direct.is_ended:
                self._direct = None
        elif total <= _JOIN_BELOW_BYTES:
            joined = b"".join(parts)
            written = os.write(self._descriptor, joined)
            if written == total:
                return total
            parts = (memoryview(joined)[written:],)
        for first in range(0, len(parts), _MAX_PARTS):
            self._write_all(parts[first : first + _MAX_PARTS])
        return total

    def _write_all(self, parts: Sequence[Buffer]) -> None:
        """Write all parts. `writev` may stop early (a signal, a nearly full disk): repeat it with the rest
        until it writes nothing.
        """
        pending = [memoryview(part).cast("B") for part in parts if len(part)]
        while pending:
            written = os.writev(self._descriptor, pending)
            if written == 0:
                raise OSError(f"the operating system wrote nothing to {self._path}")
            whole_count = 0
            while whole_count < len(pending) and written >= len(pending[whole_count]):
                written -= len(pending[whole_count])
                whole_count += 1
            del pending[:whole_count]
            if written:
                pending[0] = pending[0][written:]

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        # One call returns less than asked for at the end of the file, and above 2 GiB on Linux.
        pieces = [data]
        missing = size - len(data)
        while missing > 0:
            piece = os.pread(self._descriptor, missing, position + size - missing)
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        return data if len(pieces) == 1 else b"".join(pieces)

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        read_bytes = os.preadv(self._descriptor, (buffer,), position)
        if read_bytes in (0, len(buffer)):
            return read_bytes
        # As for `read_at`.
        with memoryview(buffer) as view:
            while read_bytes < len(view):
                count = os.preadv(self._descriptor, (view[read_bytes:],), position + read_bytes)
                if count == 0:
                    break
                read_bytes += count
        return read_bytes

    def read_cached(self, position: int, size: int) -> Buffer | None:
        if not self._may_read_cached:
            return None
        buffer = bytearray(size)
        try:
            read_bytes = os.preadv(self._descriptor, (buffer,), position, _NO_WAIT)
        except BlockingIOError:
            return None
        except OSError as failure:
            if failure.errno != errno.EOPNOTSUPP:
                raise
            self._may_read_cached = False
            return None
        return buffer if read_bytes == size else None

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def reserve(self, size: int) -> bool:
        return _reserve(self._descriptor, size)

    def bypass_cache(self) -> None:
        self._direct = self._direct or begin_direct(self._path, self.size())

    def sync(self) -> None:
        _sync_descriptor(self._descriptor)

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()
        os.close(self._descriptor)


class PosixFileLock:
    """An advisory lock that ends with its descriptor, hence with the process. One thread releases it once."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        # The file stays: unlinking it would let a second process lock a new one while a third waits on the
        # old.
        os.close(self._descriptor)


class PosixFileSystem:
    """The machine's own file system. Thread-safe: it keeps no state of its own."""

    def open_append(self, path: str) -> AppendFile:
        return PosixAppendFile(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def open_read(self, path: str) -> AppendFile:
        return PosixAppendFile(path, os.O_RDONLY)

    def read_file(self, path: str) -> bytes:
        # Without a file object, which takes twice as long: a start reads a few small files for each segment.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces: list[bytes] = []
            while piece := os.read(descriptor, _PIECE_BYTES):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        # Python reports a failing disk as a missing path.
        return _status(path) is not None

    def is_directory(self, path: str) -> bool:
        status = _status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def link_count(self, path: str) -> int:
        return os.stat(path).st_nlink

    def copy_file(self, source: str, target: str) -> None:
        with open(source, "rb") as source_file, open(target, "xb") as target_file:
            if not _clone(source_file.fileno(), target_file.fileno()):
                shutil.copyfileobj(source_file, target_file, _COPY_BYTES)

    def remove_tree(self, path: str) -> None:
        failures: list[BaseException] = []
        # Remove the rest even if one entry cannot be removed.
        if sys.version_info >= (3, 12):
            shutil.rmtree(path, onexc=lambda _function, _path, failure: failures.append(failure))
        else:
            shutil.rmtree(path, onerror=lambda _function, _path, found: failures.append(found[1]))
        for failure in failures:
            # A missing entry is fine: another process may remove the tree too.
            if not isinstance(failure, FileNotFoundError):
                raise failure

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def try_lock(self, path: str) -> FileLock | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # `flock` belongs to the open file, so it also keeps a second opener in this very process out.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return PosixFileLock(descriptor)

    def try_lock_shared(self, path: str) -> FileLock | None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # On Linux `flock` and POSIX locks, which Java takes, do not exclude each other, so both are
            # taken.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return PosixFileLock(descriptor)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize
