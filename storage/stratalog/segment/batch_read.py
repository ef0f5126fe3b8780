"""Reads whole batches from a log file and compares them with everything that is known about them.

A batch's checksum covers neither its base offset nor its length nor its leader epoch. So a read returns no
batch that contradicts the batch before it, the batch after it, the end of its segment, or the leader epoch
that the log had at its offset. docs/operating.md, "Damage", lists the damage that no comparison can show.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.record.header import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, parse_header
from stratalog.segment.batch_walk import RESTORE_FILE, fetchable_batches

_BASE_OFFSET = struct.Struct(">q")
# base_offset, batch_length
_BEGINNING = struct.Struct(">qi")
assert _BEGINNING.size == LOG_OVERHEAD
FIRST_READ_BYTES = 16 * 1024
"""The smallest read, if the file has so much. Most batches are not larger, so one read gets the first
batch."""


class EpochSpan(NamedTuple):
    """The batches below `end_offset` have this leader epoch; -1 if it is unknown."""

    leader_epoch: int
    end_offset: int


class ReadBounds(NamedTuple):
    """Bounds that the log knows for the batches of a read."""

    first_offset: int
    """The batch before them ends at or below this offset."""
    end_offset: int
    """The reader wants only batches that end at or below this offset."""
    limit_offset: int
    """No batch of the file ends above this offset."""
    epoch_at: Callable[[int], EpochSpan]
    """Returns the leader epoch of the batch that begins at an offset, and the end of that epoch."""


class BatchRead(NamedTuple):
    """Whole batches, and the offset after the last one, -1 if there is none. If the next batch begins at or
    above the wanted end, `data` is empty, and the file has no batch between the start of the read and
    `next_offset`."""

    data: Buffer
    """A view of more bytes if most of them are batches."""
    next_offset: int
    lacks_room: bool = False
    """The reader wants the batch behind the last one, too, and that was too large for the rest of the room.
    False if that is not known."""


class ReadableFile(Protocol):
    """The part of an `AppendFile` that a read uses."""

    @property
    def path(self) -> str: ...

    def read_at(self, position: int, size: int) -> Buffer: ...


class CachedFile:
    """Reads of a file that do not wait for its disk, up to a size. Thread-safe, as the file's reads."""

    def __init__(self, file: AppendFile, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes

    @property
    def path(self) -> str:
        return self._file.path

    def read_at(self, position: int, size: int) -> Buffer:
        """Those bytes. Raises BlockingIOError for more than `max_bytes`, and if the system does not have all
        of them in memory; OSError."""
        data = self._file.read_cached(position, size) if size <= self._max_bytes else None
        if data is None:
            raise BlockingIOError
        return data


_NO_BATCHES = BatchRead(b"", -1)


def read_batches(
    file: ReadableFile,
    position: int,
    whole_bytes: int,
    available_bytes: int,
    max_bytes: int,
    bounds: ReadBounds,
) -> BatchRead:
    """Read the batches that fit into `whole_bytes` from `position`, where a batch begins. If not even the
    first one fits, read that one alone, provided that it is not larger than `max_bytes`. The segment has
    `available_bytes` from `position` on.

    Compares checksums and ends before the first damaged batch. Raises CorruptRecordError if there is no sound
    batch before the damage; OSError.
    """
    data = file.read_at(position, min(max(whole_bytes, FIRST_READ_BYTES), available_bytes))
    if len(data) < HEADER_SIZE:
        if available_bytes:
            # This raises: a segment never ends inside a header.
            parse_header(data)
        return _NO_BATCHES
    base_offset, batch_length = _BEGINNING.unpack_from(data)
    first_bytes = LOG_OVERHEAD + batch_length
    if whole_bytes < first_bytes <= min(max_bytes, available_bytes):
        whole_bytes = first_bytes
        if whole_bytes > len(data):
            data = file.read_at(position, whole_bytes)
    span = bounds.epoch_at(base_offset)
    end_offset = min(bounds.end_offset, span.end_offset)
    batches = data if whole_bytes >= len(data) else memoryview(data)[:whole_bytes]
    size_bytes, next_offset = fetchable_batches(batches, end_offset, bounds.first_offset, span.leader_epoch)
    if size_bytes == 0:
        header = parse_header(data)
        limit_offset = min(bounds.limit_offset, span.end_offset)
        if header.last_offset >= limit_offset or header.size_in_bytes > available_bytes:
            raise _ends_beyond(file, position, header)
        if base_offset < bounds.end_offset:
            return _NO_BATCHES
        # A hole may lie before this batch, if its base offset is right: compare it with the next batch.
        behind = header.size_in_bytes
        if behind < available_bytes and _follower_offset(file, position, data, behind) < header.next_offset:
            raise _begins_below(file, position + behind, header.next_offset)
        return BatchRead(b"", bounds.end_offset)
    lacks_room = False
    if size_bytes < available_bytes:
        follower_offset = _follower_offset(file, position, data, size_bytes)
        lacks_room = 0 <= follower_offset < end_offset and _ends_above(data, size_bytes, whole_bytes)
        if follower_offset < next_offset:
            # One of the two batches is wrong, and nothing shows which; the batches before them are sound.
            expected_offset, follower_position = next_offset, position + size_bytes
            size_bytes, next_offset = _without_last(data, size_bytes)
            if size_bytes == 0:
                raise _begins_below(file, follower_position, expected_offset)
    return BatchRead(_beginning(data, size_bytes), next_offset, lacks_room)


def _ends_above(data: Buffer, position: int, end_position: int) -> bool:
    """Whether the batch at `position` ends above `end_position`. False if its length is not in the data."""
    if len(data) < position + LOG_OVERHEAD:
        return False
    _, batch_length = _BEGINNING.unpack_from(data, position)
    end: int = position + LOG_OVERHEAD + batch_length
    return end > end_position


def _beginning(data: Buffer, size_bytes: int) -> Buffer:
    """The first bytes. A view holds all bytes, so a small part is a copy."""
    if size_bytes == len(data):
        return data
    view = memoryview(data)[:size_bytes]
    return view if 2 * size_bytes >= len(data) else bytes(view)


def _ends_beyond(file: ReadableFile, position: int, header: BatchHeader) -> CorruptRecordError:
    return CorruptRecordError(
        f"a stored batch ends beyond its log or its leader epoch; {RESTORE_FILE}",
        path=file.path,
        position=position,
        base_offset=header.base_offset,
        size_bytes=header.size_in_bytes,
    )


def _begins_below(file: ReadableFile, position: int, expected_offset: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"a stored batch begins below the end of the one before it; {RESTORE_FILE}",
        path=file.path,
        position=position,
        expected_offset=expected_offset,
    )


def _follower_offset(file: ReadableFile, position: int, data: Buffer, size_bytes: int) -> int:
    """The base offset at `position + size_bytes`, where the next batch begins; -1 if the file ends before
    it."""
    head = data[size_bytes : size_bytes + _BASE_OFFSET.size]
    if len(head) < _BASE_OFFSET.size:
        head = file.read_at(position + size_bytes, _BASE_OFFSET.size)
    base_offset: int = -1 if len(head) < _BASE_OFFSET.size else _BASE_OFFSET.unpack(head)[0]
    return base_offset


def _without_last(data: Buffer, size_bytes: int) -> tuple[int, int]:
    """The size of these batches without the last one, and the offset after them, -1 if none is left."""
    position, next_offset = 0, -1
    while True:
        header = parse_header(data, position)
        if position + header.size_in_bytes >= size_bytes:
            return position, next_offset
        position, next_offset = position + header.size_in_bytes, header.next_offset
