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
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.segment.batch_walk import WholeBatches, whole_batches

_BASE_OFFSET = struct.Struct(">q")


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
    data = file.read_at(position, max(whole_bytes, min(HEADER_SIZE, available_bytes)))
    span = _span(data, bounds)
    found = _whole(data[:whole_bytes], bounds, span)
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
        if whole_bytes < header.size_in_bytes <= max_bytes:
            data = file.read_at(position, header.size_in_bytes)
            found = _whole(data, bounds, span)
    if 0 < found.size_bytes == len(data) < available_bytes:
        # Else it was behind them in the data, and has been looked at.
        _require_follower(file, position + found.size_bytes, found.next_offset)
    return BatchRead(data if found.size_bytes == len(data) else data[: found.size_bytes], found.next_offset)


def _span(data: bytes, bounds: ReadBounds) -> EpochSpan:
    if len(data) < _BASE_OFFSET.size:
        return EpochSpan(-1, bounds.end_offset)
    (base_offset,) = _BASE_OFFSET.unpack_from(data)
    return bounds.epoch_at(base_offset)


def _whole(data: bytes, bounds: ReadBounds, span: EpochSpan) -> WholeBatches:
    end_offset = min(bounds.end_offset, span.end_offset)
    return whole_batches(data, end_offset, bounds.first_offset, span.leader_epoch)


def _require_follower(file: AppendFile, position: int, next_offset: int) -> None:
    """The batch at `position` begins at or above `next_offset`."""
    head = file.read_at(position, _BASE_OFFSET.size)
    if len(head) < _BASE_OFFSET.size or _BASE_OFFSET.unpack(head)[0] < next_offset:
        raise CorruptRecordError(
            "a stored batch begins below the end of the one before it",
            path=file.path,
            position=position,
            expected_offset=next_offset,
        )
