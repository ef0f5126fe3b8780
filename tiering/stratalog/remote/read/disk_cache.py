"""Ranges of objects on the local disk: bounded, least recently used first, kept over a restart.

Everything in the directory may be lost or damaged at any moment, so nothing is flushed and nothing has to
happen in an order. A file is written under its final name; what a crash has left of it fails its checksum,
as every damaged or foreign file does, and is deleted when it is read. A start reads the names and the sizes.
The order of use does not survive a restart; that of writing does.

An error of the disk is a miss. While the disk is short of space, the cache gives space back and writes
nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from stratalog.base.filesystem import FileSystem
from stratalog.base.scheduler import RunBeside
from stratalog.remote.loading_cache import CacheStats
from stratalog.remote.read.range_cache import DiskExtent
from stratalog.remote.read.range_file import HEADER, FileRange, decode_file, encode_header
from stratalog.remote.read.range_map import RangeMap

_BLOCK_BYTES = 4096
"""The space of a file is a multiple of this."""
_MAX_WRITE_COUNT = 16
"""Ranges that wait to be written; one more is not kept."""


class DiskCache:
    """Ranges of objects in files. Thread-safe: `_lock` guards everything; files are read and written outside
    it. No method raises OSError."""

    def __init__(
        self, filesystem: FileSystem, directory: str, capacity_bytes: int, run_beside: RunBeside
    ) -> None:
        """`run_beside` runs the writes. Until `open`, the cache is empty and keeps nothing."""
        assert capacity_bytes >= 0
        self._filesystem = filesystem
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._run_beside = run_beside
        self._lock = threading.Lock()
        self._ranges: RangeMap[FileRange] = RangeMap()
        self._order: OrderedDict[FileRange, None] = OrderedDict()
        self._size_bytes = 0
        self._writing: set[FileRange] = set()
        self._is_open = False
        self._is_short_of_space = False
        self._hit_count = self._miss_count = 0
        self._damaged_count = 0

    @property
    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(
                len(self._order), self._size_bytes, self._capacity_bytes, self._hit_count, self._miss_count
            )

    @property
    def damaged_count(self) -> int:
        """Files that were damaged or could not be read."""
        return self._damaged_count

    def open(self) -> None:
        """Find the files of the last process, and delete what is no file of the cache. Takes the disk for as
        long as it takes to list them."""
        if not self._capacity_bytes:
            self._try_remove_all()
            return
        try:
            self._filesystem.make_directories(self._directory)
            found = [self._found(name) for name in self._filesystem.list_directory(self._directory)]
        except OSError:
            # The disk has failed, or is read-only: the cache stays empty.
            return
        with self._lock:
            for _, one in sorted(entry for entry in found if entry is not None):
                if self._ranges.within(*one):
                    self._unlink([one])
                else:
                    self._add(one)
            gone = self._evict(self._capacity_bytes)
            self._is_open = True
        self._unlink(gone)

    def keys(self, prefix: str) -> set[str]:
        """The objects with ranges here whose keys begin with `prefix`."""
        with self._lock:
            return {one.key for one in self._order if one.key.startswith(prefix)}

    def has_room(self, sizes_bytes: Iterable[int]) -> bool:
        """Whether ranges of these sizes can be written and nothing has to go for them."""
        wanted_bytes = sum(_blocks_bytes(HEADER.size_bytes + size) for size in sizes_bytes)
        with self._lock:
            return self._may_write and self._size_bytes + wanted_bytes <= self._capacity_bytes

    def extent(self, key: str, position: int) -> DiskExtent | None:
        """The range that has the byte at `position`."""
        with self._lock:
            one = self._ranges.find(key, position)
            self._miss_count += one is None
            return None if one is None else DiskExtent(one.start, one.end)

    def start_behind(self, key: str, position: int) -> int | None:
        """The start of the first range behind `position`."""
        with self._lock:
            return self._ranges.start_behind(key, position)

    def read(self, key: str, start: int) -> bytes | None:
        """The range that begins at `start`, with a verified checksum; None if it is gone, or was damaged and
        is deleted now."""
        with self._lock:
            one = self._ranges.find(key, start)
        if one is None or one.start != start:
            return None
        try:
            data = decode_file(one, self._filesystem.read_file(self._path(one)))
        except OSError:
            data = None
        with self._lock:
            if data is None:
                self._miss_count += 1
                self._damaged_count += 1
                gone = self._discard([one])
            else:
                self._hit_count += 1
                if one in self._order:
                    self._order.move_to_end(one)
                return data
        self._unlink(gone)
        return None

    def offer(self, key: str, start: int, data: bytes) -> None:
        """Write a range soon, unless the disk is short of space or writes fall behind."""
        one = FileRange(key, start, start + len(data))
        with self._lock:
            fits = _cost_bytes(one) <= self._capacity_bytes and len(self._writing) < _MAX_WRITE_COUNT
            if not fits or not self._may_write or one in self._writing or self._ranges.within(*one):
                return
            self._writing.add(one)
        self._run_beside(lambda: self._write(one, data))

    def forget(self, key: str, start: int, end: int) -> None:
        """Delete what has a byte of [start, end)."""
        with self._lock:
            gone = self._discard(self._ranges.within(key, start, end))
        self._unlink(gone)

    def clear(self) -> int:
        """Delete everything; returns the size that it had."""
        with self._lock:
            size_bytes = self._size_bytes
            gone = self._evict(0)
        self._unlink(gone)
        return size_bytes

    def yield_space(self, wanted_bytes: int) -> int:
        """Give `wanted_bytes` back, as far as the cache has them, and write nothing until this is called with
        0 again; returns the bytes given back."""
        with self._lock:
            if not self._capacity_bytes:
                return 0
            before_bytes = self._size_bytes
            gone = self._evict(max(0, before_bytes - wanted_bytes))
            freed_bytes = before_bytes - self._size_bytes
            self._is_short_of_space = wanted_bytes > 0
        self._unlink(gone)
        return freed_bytes

    @property
    def _may_write(self) -> bool:
        return self._is_open and not self._is_short_of_space

    def check(self) -> None:
        with self._lock:
            self._ranges.check()
            assert set(self._ranges) == set(self._order)
            assert self._size_bytes == sum(map(_cost_bytes, self._order)) <= self._capacity_bytes

    def _found(self, name: str) -> tuple[int, FileRange] | None:
        """The time of writing and the range of a file; None after the deletion of any other file."""
        one = FileRange.of_file_name(name)
        path = f"{self._directory}/{name}"
        try:
            if one is not None and self._filesystem.file_size(path) == one.file_bytes:
                return self._filesystem.modified_ms(path), one
            if self._filesystem.is_directory(path):
                self._filesystem.remove_tree(path)
            else:
                self._filesystem.unlink(path)
        except OSError:
            # It does no harm: no range refers to it.
            return None
        return None

    def _write(self, one: FileRange, data: bytes) -> None:
        is_written = False
        try:
            with self._lock:
                gone = self._evict(self._capacity_bytes - _cost_bytes(one))
            self._unlink(gone)
            file = self._filesystem.open_append(self._path(one))
            try:
                # A former process, or an eviction that is under way, may have left a file of this name.
                file.truncate(0)
                file.append([encode_header(one, data), data])
            finally:
                file.close()
            is_written = True
        except OSError:
            # A full or failed disk keeps nothing.
            is_written = False
        finally:
            with self._lock:
                self._writing.discard(one)
                is_kept = is_written and self._may_write and not self._ranges.within(*one)
                gone = self._evict(self._capacity_bytes - _cost_bytes(one)) if is_kept else [one]
                if is_kept:
                    self._add(one)
        self._unlink(gone)

    def _add(self, one: FileRange) -> None:
        self._ranges.add(one)
        self._order[one] = None
        self._size_bytes += _cost_bytes(one)

    def _evict(self, left_bytes: int) -> list[FileRange]:
        """Take the least recently used ranges out until so many bytes are left; the caller deletes their
        files."""
        gone: list[FileRange] = []
        while self._size_bytes > left_bytes and self._order:
            gone += self._discard([next(iter(self._order))])
        return gone

    def _discard(self, ranges: Iterable[FileRange]) -> list[FileRange]:
        gone = [one for one in ranges if one in self._order]
        for one in gone:
            self._ranges.remove(one)
            del self._order[one]
            self._size_bytes -= _cost_bytes(one)
        return gone

    def _unlink(self, ranges: Iterable[FileRange]) -> None:
        for one in ranges:
            try:
                self._filesystem.unlink(self._path(one))
            except OSError:
                # It is gone already, or the next start finds it.
                continue

    def _try_remove_all(self) -> None:
        try:
            self._filesystem.remove_tree(self._directory)
        except OSError:
            # Files of a cache that is switched off do no harm.
            return

    def _path(self, one: FileRange) -> str:
        return f"{self._directory}/{one.file_name}"


def _cost_bytes(one: FileRange) -> int:
    return _blocks_bytes(one.file_bytes)


def _blocks_bytes(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
