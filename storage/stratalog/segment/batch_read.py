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
from stratalog.record.header import BATCH_LENGTH_POSITION, HEADER_SIZE, LOG_OVERHEAD, parse_header
from stratalog.segment.batch_walk import WholeBatches, whole_batches

_BASE_OFFSET = struct.Struct(">q")
_BATCH_LENGTH = struct.Struct(">i")
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
    """Whole batches, and the offset behind them; -1 where there is none."""

    data: bytes
    next_offset: int


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

    Checksums are compared. Raises CorruptRecordError, OSError.
    """
    data = file.read_at(position, min(max(whole_bytes, FIRST_READ_BYTES), available_bytes))
    first_bytes = _bytes_of_first(data)
    if whole_bytes < first_bytes <= min(max_bytes, available_bytes):
        whole_bytes = first_bytes
        if whole_bytes > len(data):
            data = file.read_at(position, whole_bytes)
    span = _span(data, bounds)
    end_offset = min(bounds.end_offset, span.end_offset)
    found = whole_batches(data[:whole_bytes], end_offset, bounds.first_offset, span.leader_epoch)
    if found.size_bytes == 0 and available_bytes:
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
    if 0 < found.size_bytes < available_bytes:
        _require_follower(file, position, data, found)
    return BatchRead(data if found.size_bytes == len(data) else data[: found.size_bytes], found.next_offset)


def _span(data: bytes, bounds: ReadBounds) -> EpochSpan:
    if len(data) < _BASE_OFFSET.size:
        return EpochSpan(-1, bounds.end_offset)
    (base_offset,) = _BASE_OFFSET.unpack_from(data)
    return bounds.epoch_at(base_offset)


def _bytes_of_first(data: bytes) -> int:
    """How long the first batch says that it is; 0 where its header is not all there."""
    if len(data) < HEADER_SIZE:
        return 0
    fields: tuple[int] = _BATCH_LENGTH.unpack_from(data, BATCH_LENGTH_POSITION)
    return LOG_OVERHEAD + fields[0]


def _require_follower(file: AppendFile, position: int, data: bytes, found: WholeBatches) -> None:
    """What lies behind the batches that were found begins at or above their end."""
    head = data[found.size_bytes : found.size_bytes + _BASE_OFFSET.size]
    if len(head) < _BASE_OFFSET.size:
        head = file.read_at(position + found.size_bytes, _BASE_OFFSET.size)
    if len(head) < _BASE_OFFSET.size or _BASE_OFFSET.unpack(head)[0] < found.next_offset:
        raise CorruptRecordError(
            "a stored batch begins below the end of the one before it",
            path=file.path,
            position=position + found.size_bytes,
            expected_offset=found.next_offset,
        )
