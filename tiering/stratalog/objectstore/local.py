"""An object store in a local directory: the embedded default, with the promises of a real one.

    ROOT/<key>      an object: the file's content, nothing else
    ROOT/.aside/    files being written; never listed, never read
    ROOT/.lock      locked (flock) while names change

A write goes to a file aside, is fsynced there, and then gets its name: lock, compare, rename, fsync of the
directory, unlock. So an object appears whole or not at all after any crash, and a put that has returned
survives a power loss. The lock spans processes and is held only while a name changes, never while bytes are
written. Writes without a precondition take it too: a rename between another writer's compare and rename would
undo a finished write.

A large data object is written past the page cache: what is uploaded lies in it already, as the tail of a log,
and a copy would push out pages that are read. A data object needs no ETag, so only objects that
are put whole are hashed.

The ETag is a hash of the content, so there is no second file that a crash could separate from the object. A
crash leaves at most a file in `.aside`; the next writing process removes files older than a day. Directories
are made on demand, each fsynced into its parent, and stay when they become empty. Reading needs no lock and
no write permission; a missing root reads as an empty store.
"""

from __future__ import annotations

import errno
import posixpath
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreAccessDeniedError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.filesystem import AppendFile, FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.objectstore.content_digest import content_crc, content_etag, require_crc
from stratalog.objectstore.object_key import check_key, check_prefix, directory_of, is_prefix
from stratalog.objectstore.parts_body import part_windows
from stratalog.objectstore.protocol import (
    DEFAULT_PART_BYTES,
    Buffer,
    ObjectInfo,
    ObjectPlace,
    ObjectUpload,
    ReadStream,
    StoredObject,
    UnfinishedUpload,
)

LOCK_TIMEOUT_S = 30.0
"""A change of a name takes milliseconds: a process that holds the lock this long is stuck."""
_WINDOW_BYTES = 2 << 20
"""Written at a time. Objects that are larger go past the page cache: what is uploaded lies in it already, as
the tail of a log, and what a compaction writes is not read soon."""
_LOCK_POLL_S = 0.001
_LOCK_POLL_MAX_S = 0.020
# Names of files in `.aside`; other files do not belong to the store.
_ASIDE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STALE_ASIDE_MS = 24 * 3600 * 1000


class _FileStream:
    """One user at a time, as every `ReadStream`. An open file outlives its name, so deletions do no harm."""

    def __init__(self, file: AppendFile, key: str, position: int, end_position: int) -> None:
        self._file = file
        self._key = key
        self._position = position
        self._end_position = end_position
        self._is_closed = False

    def read(self, size: int) -> bytes:
        wanted_bytes = min(size, self._end_position - self._position)
        if wanted_bytes == 0:
            return b""
        with _os_errors(self._key):
            data = self._file.read_at(self._position, wanted_bytes)
        if len(data) < wanted_bytes:
            raise StoreCorruptError(
                "the object became shorter while it was read; restore it from a copy", key=self._key
            )
        self._position += wanted_bytes
        return data

    def etag(self) -> str:
        with _os_errors(self._key):
            return _etag_of(self._file)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._end_position = self._position
            with _os_errors(self._key):
                self._file.close()


class _FileUpload:
    """Parts in a file aside, which gets its name when it is complete. One user at a time, as every
    `ObjectUpload`; the next writing process removes it a day after a crash."""

    def __init__(
        self, file: AppendFile, key: str, give_name: Callable[[], None], remove: Callable[[], None]
    ) -> None:
        """`give_name` lets the file appear under the key, or removes it and raises; `remove` removes it."""
        self._file: AppendFile | None = file
        self._key = key
        self._give_name = give_name
        self._remove = remove
        self._part_count = self._crc = 0
        self._is_complete = False

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        file = self._require_file()
        if number <= self._part_count:
            # Sent again, and there already.
            return
        assert number == self._part_count + 1, "parts come in order"
        try:
            with _os_errors(self._key, is_write=True):
                for window, _ in part_windows(data, _WINDOW_BYTES):
                    # Right before, so that it finds the bytes in the processor's cache.
                    self._crc = content_crc(window, self._crc)
                    file.append(window)
        except StoreError:
            # Half a part is there.
            self.abort()
            raise
        self._part_count = number

    def complete(self, crc: int) -> None:
        if self._is_complete:
            return
        file = self._require_file()
        try:
            require_crc(self._crc, crc, self._key)
            with _os_errors(self._key, is_write=True):
                # Once only: a file whose fsync has failed may have lost bytes for good.
                file.sync()
                self._give_name()
        except (OSError, StoreError):
            self.abort()
            raise
        self._is_complete = True
        self._close()

    def abort(self) -> None:
        if self._file is not None:
            self._close()
            self._remove()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with _os_errors(self._key, is_write=True):
                file.close()

    def _require_file(self) -> AppendFile:
        if self._file is None:
            raise StoreUnavailableError(
                "the upload is over; begin another one, under another key", key=self._key
            )
        return self._file


class LocalObjectStore:
    """An object store in a local directory. Thread-safe, and between processes of one machine too: names
    change under `_lock` and the lock file."""

    def __init__(self, filesystem: FileSystem, clock: Clock, ids: IdGenerator, root: str) -> None:
        assert posixpath.isabs(root), "a relative root would mean another store after a change of directory"
        self._filesystem = filesystem
        self._clock = clock
        self._ids = ids
        self._root = posixpath.normpath(root)
        self._lock = threading.Lock()
        self._durable_directories: set[str] = set()

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        assert if_match is None or not if_absent, "a write has one precondition"
        self._put(key, lambda file: file.append([data]), if_match, if_absent)
        return content_etag([data])

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        self._put(key, lambda file: _append_parts(file, parts))

    def open_upload(self, key: str) -> ObjectUpload:
        path = self._path(key)
        with _os_errors(key, is_write=True):
            try:
                self._make_directory(posixpath.dirname(path))
                aside = self._path_aside()
                file = self._filesystem.open_append(aside)
                # It is large, or it would be put at once.
                file.bypass_cache()
            except OSError:
                self._forget_directories()
                raise

        def give_name() -> None:
            try:
                self._give_name(aside, key, path, None, False)
            except OSError:
                self._forget_directories()
                raise

        def remove() -> None:
            with suppress(OSError):
                self._filesystem.unlink(aside)

        return _FileUpload(file, key, give_name, remove)

    def place_of(self, key: str) -> ObjectPlace | None:
        """None: a copy would be read and written by this machine all the same."""
        check_key(key)
        return None

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        """False: no object has a place in it."""
        return False

    def get(self, key: str) -> StoredObject:
        path = self._path(key)
        with _os_errors(key):
            data = self._filesystem.read_file(path)
        return StoredObject(data, content_etag([data]), self._clock.now_ms())

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        found = self.get(key)
        return None if found.etag == etag else found

    def get_range(self, key: str, position: int, size: int) -> bytes:
        stream = self.open_range(key, position, size)
        try:
            return stream.read(size)
        finally:
            stream.close()

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        assert position >= 0, "an object begins at 0"
        assert size > 0, "a range has at least one byte"
        path = self._path(key)
        with _os_errors(key):
            file = self._filesystem.open_read(path)
            file_bytes = file.size()
        if position + size > file_bytes:
            file.close()
            raise StoreCorruptError(
                "the object ends before the requested range; restore it from a copy",
                key=key,
                size_bytes=file_bytes,
            )
        stream = _FileStream(file, key, position, position + size)
        if if_match is not None and stream.etag() != if_match:
            stream.close()
            raise PreconditionFailedError("the object has changed; read it again", key=key)
        return stream

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._walk(directory_of(prefix), prefix, start_after)

    def delete_many(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        with _os_errors("", is_write=True):
            if self._filesystem.exists(self._root):
                self._delete(paths)

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """None: files aside are removed by the next writing process."""
        check_prefix(prefix)
        return iter(())

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Does nothing: there are no unfinished uploads here."""

    def remarks(self) -> Sequence[str]:
        """None: a deleted object is gone."""
        return ()

    def close(self) -> None:
        """Does nothing: nothing is held between calls."""

    def _delete(self, paths: Sequence[str]) -> None:
        with self._exclusive():
            directories: set[str] = set()
            for path in paths:
                with suppress(FileNotFoundError, NotADirectoryError):
                    self._filesystem.unlink(path)
                    directories.add(posixpath.dirname(path))
            for directory in sorted(directories):
                self._filesystem.sync_directory(directory)

    def _put(
        self,
        key: str,
        fill: Callable[[AppendFile], object],
        if_match: str | None = None,
        if_absent: bool = False,
    ) -> None:
        path = self._path(key)
        with _os_errors(key, is_write=True):
            try:
                self._make_directory(posixpath.dirname(path))
                aside = self._write_aside(fill)
                self._give_name(aside, key, path, if_match, if_absent)
            except OSError:
                self._forget_directories()
                raise

    def _forget_directories(self) -> None:
        """A directory may have been removed: the next write checks all of them again."""
        with self._lock:
            self._durable_directories.clear()

    def _give_name(self, aside: str, key: str, path: str, if_match: str | None, if_absent: bool) -> None:
        try:
            with self._exclusive():
                self._check_precondition(key, path, if_match, if_absent)
                self._filesystem.rename(aside, path)
                # Still under the lock: no writer may build on an object whose name could vanish.
                self._filesystem.sync_directory(posixpath.dirname(path))
        except (OSError, StoreError):
            with suppress(OSError):
                self._filesystem.unlink(aside)
            raise

    def _check_precondition(self, key: str, path: str, if_match: str | None, if_absent: bool) -> None:
        if if_absent and self._filesystem.exists(path):
            raise PreconditionFailedError("the object exists already; read it", key=key)
        if if_match is None:
            return
        try:
            current = content_etag([self._filesystem.read_file(path)])
        except FileNotFoundError:
            current = None
        if current != if_match:
            raise PreconditionFailedError("the object has changed; read it again", key=key)

    def _write_aside(self, fill: Callable[[AppendFile], object]) -> str:
        """Write an object to a file aside; returns its path."""
        path = self._path_aside()
        try:
            file = self._filesystem.open_append(path)
            try:
                fill(file)
                file.sync()
            finally:
                file.close()
        except (OSError, StoreError):
            # The second is of the source of parts.
            with suppress(OSError):
                self._filesystem.unlink(path)
            raise
        return path

    def _path_aside(self) -> str:
        """The path of a new file aside, in a directory that is there."""
        directory = f"{self._root}/.aside"
        if directory not in self._durable_directories:
            self._make_directory(directory)
            self._remove_stale_asides(directory)
        return f"{directory}/{self._ids.uuid()}"

    def _remove_stale_asides(self, directory: str) -> None:
        newest_stale_ms = self._clock.now_ms() - _STALE_ASIDE_MS
        for name in filter(_ASIDE.fullmatch, self._filesystem.list_directory(directory)):
            with suppress(FileNotFoundError):
                if self._filesystem.modified_ms(f"{directory}/{name}") < newest_stale_ms:
                    self._filesystem.unlink(f"{directory}/{name}")

    def _make_directory(self, directory: str) -> None:
        if directory in self._durable_directories:
            return
        self._filesystem.make_directories(directory)
        # An existing directory may come from a process that died before its fsync, so all parents are synced,
        # up to the top. Directories that this user may not open were not made by this user.
        names = [directory]
        while names[-1] not in self._durable_directories and names[-1] != "/":
            names.append(posixpath.dirname(names[-1]))
        for parent in reversed(names[1:]):
            with suppress(PermissionError):
                self._filesystem.sync_directory(parent)
        with self._lock:
            self._durable_directories.update(names)

    @contextmanager
    def _exclusive(self) -> Generator[None]:
        """Hold the store's lock: first against this process's threads, then against other processes."""
        with self._lock:
            deadline_s = self._clock.monotonic_s() + LOCK_TIMEOUT_S
            poll_s = _LOCK_POLL_S
            while (lock := self._filesystem.try_lock(f"{self._root}/.lock")) is None:
                if self._clock.monotonic_s() >= deadline_s:
                    raise StoreUnavailableError(
                        "another process holds the store's lock; find and end it", store=self.url
                    )
                self._clock.sleep(poll_s)
                poll_s = min(2 * poll_s, _LOCK_POLL_MAX_S)
            try:
                yield
            finally:
                lock.release()

    def _walk(self, directory: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Depth first in byte order: a directory sorts by its name with the slash, so behind `.` and `-`."""
        for entry in self._entries(directory, prefix):
            key = directory + entry
            if key.endswith("/"):
                if key > start_after or start_after.startswith(key):
                    yield from self._walk(key, prefix, start_after)
            elif key > start_after and key.startswith(prefix):
                path = f"{self._root}/{key}"
                # An object that is deleted meanwhile is not listed.
                with suppress(ObjectNotFoundError):
                    with _os_errors(key):
                        size = self._filesystem.file_size(path)
                        modified_ms = self._filesystem.modified_ms(path)
                    yield ObjectInfo(key, size, modified_ms)

    def _entries(self, directory: str, prefix: str) -> Sequence[str]:
        """Entries of a directory that may match the prefix, in byte order; directories have a slash."""
        base = f"{self._root}/{directory}"
        with _os_errors(directory):
            try:
                names = self._filesystem.list_directory(base.rstrip("/"))
            except (FileNotFoundError, NotADirectoryError):
                return []
            mine = [name for name in names if (directory + name).startswith(prefix[: len(directory + name)])]
            entries = [f"{name}/" if self._filesystem.is_directory(base + name) else name for name in mine]
        return sorted(entry for entry in entries if is_prefix(directory + entry))

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"


def _etag_of(file: AppendFile) -> str:
    """The ETag of a file that is read window by window."""
    positions = range(0, file.size(), _WINDOW_BYTES)
    return content_etag(file.read_at(position, _WINDOW_BYTES) for position in positions)


def _append_parts(file: AppendFile, parts: Iterable[Buffer]) -> None:
    """Append the parts, a window at a time: parts of a spooled object are read in their turn."""
    windows = part_windows(parts, _WINDOW_BYTES)
    window, is_last = next(windows)
    if not is_last:
        file.bypass_cache()
    file.append(window)
    for window, _ in windows:
        file.append(window)


@contextmanager
def _os_errors(key: str, *, is_write: bool = False) -> Generator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        if not is_write:
            raise ObjectNotFoundError("no object has this key; check it", key=key) from error
        if isinstance(error, FileNotFoundError):
            raise StoreUnavailableError(
                "the store's directory cannot be made, or was removed while in use; check the path",
                key=key,
                path=error.filename,
            ) from error
        raise StoreNotUsableError(
            "a file is where the store needs a directory, or the other way round; choose another directory",
            key=key,
            path=error.filename,
        ) from error
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, "unknown")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreAccessDeniedError(
                "this user may not use the store's directory; correct its owner or mode",
                key=key,
                path=error.filename,
                reason=reason,
            ) from error
        raise StoreUnavailableError(
            "the store's directory is unavailable; repair the disk, or try again later",
            key=key,
            reason=reason,
        ) from error
