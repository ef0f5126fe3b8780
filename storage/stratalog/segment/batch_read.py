"""Reading whole batches out of a log file, and holding them against all that is known of them.

A batch's checksum covers neither its base offset nor its length nor its leader epoch. So nothing is handed
out that contradicts its neighbours (the batch before it, the one behind it, the end of its segment), or the
leader epoch that the log had at its offset. What no comparison can show is in docs/operating.md, "Damage".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
from stratalog.record.header import HEADER_SIZE, LOG_OVERHEAD, parse_header
from stratalog.segment.batch_walk import whole_batches

_BASE_OFFSET = struct.Struct(">q")
# base_offset, batch_length
_BEGINNING = struct.Struct(">qi")
assert _BEGINNING.size == LOG_OVERHEAD
FIRST_READ_BYTES = 16 * 1024
"""So much is read at least, if it is there: most batches are not larger, and the first one comes at once."""


class EpochSpan(NamedTuple):
    """The batches below `end_offset` have this leader epoch; -1 where nobody knows it."""

    leader_epoch: int
    end_offset: int


class ReadBounds(NamedTuple):
    """What is known of the batches that are to be read."""

    first_offset: int
    """The batch before them ends there, or below."""
    end_offset: int
    """Only those that end at or below it are wanted."""
    limit_offset: int
    """No batch of the file ends above it."""
    epoch_at: Callable[[int], EpochSpan]
    """The leader epoch of the batch that begins at an offset, and how far it goes."""


class BatchRead(NamedTuple):
    """Whole batches, and the offset behind them; -1 where there is none. Where the next batch lies behind
    what is wanted, there is none up to the offset."""

    data: bytes
    next_offset: int


_NO_BATCHES = BatchRead(b"", -1)


def read_batches(
    file: AppendFile,
    position: int,
    whole_bytes: int,
    available_bytes: int,
    max_bytes: int,
    bounds: ReadBounds,
) -> BatchRead:
    """The batches from `position`, where one begins, that fit into `whole_bytes`; else the first one, if it
    is not larger than `max_bytes`. `available_bytes`: so many are behind `position`.

    Checksums are compared: what is damaged ends what is read. Raises CorruptRecordError where nothing sound
    lies before it, OSError.
    """
    data = file.read_at(position, min(max(whole_bytes, FIRST_READ_BYTES), available_bytes))
    if len(data) < HEADER_SIZE:
        if available_bytes:
            # Raises: a segment does not end inside of a header.
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
    batches = data[:whole_bytes]
    size_bytes, next_offset = whole_batches(batches, end_offset, bounds.first_offset, span.leader_epoch)
    if size_bytes == 0:
        header = parse_header(data)
        limit_offset = min(bounds.limit_offset, span.end_offset)
        if header.last_offset >= limit_offset or header.size_in_bytes > available_bytes:
            raise CorruptRecordError(
                "a stored batch ends behind its log or its leader epoch",
                path=file.path,
                position=position,
                base_offset=header.base_offset,
                size_bytes=header.size_in_bytes,
            )
        if base_offset < bounds.end_offset:
            return _NO_BATCHES
        # A hole may lie in front of it, if it is where it says.
        behind = header.size_in_bytes
        if behind < available_bytes and _follower_offset(file, position, data, behind) < header.next_offset:
            raise _begins_below(file, position + behind, header.next_offset)
        return BatchRead(b"", bounds.end_offset)
    if size_bytes < available_bytes:
        follower_offset = _follower_offset(file, position, data, size_bytes)
        if follower_offset < next_offset:
            # One of the two is wrong, and nobody knows which; what lies before them is not.
            expected_offset, follower_position = next_offset, position + size_bytes
            size_bytes, next_offset = _without_last(data, size_bytes)
            if size_bytes == 0:
                raise _begins_below(file, follower_position, expected_offset)
    return BatchRead(batches if size_bytes == len(batches) else batches[:size_bytes], next_offset)


def _begins_below(file: AppendFile, position: int, expected_offset: int) -> CorruptRecordError:
    return CorruptRecordError(
        "a stored batch begins below the end of the one before it",
        path=file.path,
        position=position,
        expected_offset=expected_offset,
    )


def _follower_offset(file: AppendFile, position: int, data: bytes, size_bytes: int) -> int:
    """Where what lies behind the `size_bytes` that were found begins; -1 where there is not even that."""
    head = data[size_bytes : size_bytes + _BASE_OFFSET.size]
    if len(head) < _BASE_OFFSET.size:
        head = file.read_at(position + size_bytes, _BASE_OFFSET.size)
    base_offset: int = -1 if len(head) < _BASE_OFFSET.size else _BASE_OFFSET.unpack(head)[0]
    return base_offset


def _without_last(data: bytes, size_bytes: int) -> tuple[int, int]:
    """The size of these batches without the last one, and the offset behind them, -1 where there is none."""
    position, next_offset = 0, -1
    while True:
        header = parse_header(data, position)
        if position + header.size_in_bytes >= size_bytes:
            return position, next_offset
        position, next_offset = position + header.size_in_bytes, header.next_offset
