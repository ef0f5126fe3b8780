"""What an append must be before the log takes it, and how it gets its offsets.

Validation looks at bytes only and needs no lock, so many appends are validated at once. Afterwards, under the
log's lock, `ValidatedAppend.stamp` gives the batches their offsets, without a copy of them: of each batch a
new prefix is made, the rest is handed on as it lies in the caller's memory.

    base_offset int64 | batch_length int32 | leader_epoch int32 | the rest, unchanged: CRC-32C and what it
    covers

Under `message.timestamp.type=LogAppendTime` the timestamp type and the highest timestamp change as well;
these are under the checksum, so then the whole header is new.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from stratalog.base.errors import (
    CorruptRecordError,
    InvalidRequestError,
    RecordTooLargeError,
    UnsupportedOperationError,
)
from stratalog.base.filesystem import Buffer
from stratalog.log.log_config import LogConfig
from stratalog.record.batch import batches, verify
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
)
from stratalog.segment.log_segment import AppendedBatch

_PREFIX = struct.Struct(">qii")
assert _PREFIX.size == MAGIC_POSITION


class ValidatedAppend(NamedTuple):
    """A request whose batches are what they say. `positions` are those of the batches in `buffer`."""

    buffer: Buffer
    size_bytes: int
    positions: tuple[int, ...]
    headers: tuple[BatchHeader, ...]
    offset_count: int
    """How many offsets it takes."""
    max_timestamp_ms: int

    @staticmethod
    def of(buffer: Buffer, located: Sequence[tuple[int, BatchHeader]]) -> ValidatedAppend:
        """Sums up what the log asks for once per request."""
        positions, headers = zip(*located, strict=True)
        return ValidatedAppend(
            buffer,
            len(buffer),
            positions,
            headers,
            sum(header.last_offset_delta + 1 for header in headers),
            max(header.max_timestamp for header in headers),
        )

    def verbatim(self) -> tuple[list[Buffer], list[AppendedBatch]]:
        """As `stamp`, for batches that have their offsets already."""
        appended = [
            AppendedBatch(header.size_in_bytes, header.last_offset, header.max_timestamp)
            for header in self.headers
        ]
        return [self.buffer], appended

    def stamp(
        self, base_offset: int, leader_epoch: int, append_time_ms: int | None
    ) -> tuple[list[Buffer], list[AppendedBatch]]:
        """The bytes to write, with offsets from `base_offset` on, and the notes that the segment takes.

        `append_time_ms`: the time that replaces the producer's; None keeps the latter.
        """
        view = memoryview(self.buffer)
        parts: list[Buffer] = []
        appended: list[AppendedBatch] = []
        for position, header in zip(self.positions, self.headers, strict=True):
            batch = view[position : position + header.size_in_bytes]
            if append_time_ms is None:
                max_timestamp_ms = header.max_timestamp
                parts.append(_PREFIX.pack(base_offset, header.batch_length, leader_epoch))
                parts.append(batch[MAGIC_POSITION:])
            else:
                max_timestamp_ms = append_time_ms
                parts.append(
                    _header_at(header, base_offset, leader_epoch, append_time_ms, batch[HEADER_SIZE:])
                )
                parts.append(batch[HEADER_SIZE:])
            last_offset = base_offset + header.last_offset_delta
            appended.append(AppendedBatch(header.size_in_bytes, last_offset, max_timestamp_ms))
            base_offset = last_offset + 1
        return parts, appended


def _header_at(
    header: BatchHeader, base_offset: int, leader_epoch: int, append_time_ms: int, records: memoryview
) -> bytes:
    """The header of a batch whose records all have the time of the append."""
    changed = header._replace(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=header.attributes | TIMESTAMP_TYPE_BIT,
        max_timestamp=append_time_ms,
    )
    crc = crc32c(records, crc32c(changed.pack()[ATTRIBUTES_POSITION:]))
    return changed._replace(crc=crc).pack()


def validate_append(buffer: Buffer, config: LogConfig) -> ValidatedAppend:
    """Prove a producer's request: framing, checksums, records, limits, and what this version can keep.

    Raises CorruptRecordError, RecordTooLargeError, UnsupportedOperationError, InvalidRequestError.
    """
    located = tuple(batches(buffer))
    if not located:
        raise InvalidRequestError("an append needs at least one record batch")
    if len(buffer) > config.segment_bytes:
        # A request becomes visible as a whole, so it must fit one segment.
        raise RecordTooLargeError(
            "the request is larger than segment.bytes; send less at once",
            size_bytes=len(buffer),
            max_bytes=config.segment_bytes,
        )
    for position, header in located:
        _validate_header(header, config)
        summary = verify(buffer, position, header)
        if not summary.is_dense:
            raise CorruptRecordError("a producer's batch must have every offset from its first to its last")
        if config.is_compacted and summary.null_key_count:
            raise InvalidRequestError(
                "the topic is compacted, so every record needs a key", null_key_count=summary.null_key_count
            )
    return ValidatedAppend.of(buffer, located)


def _validate_header(header: BatchHeader, config: LogConfig) -> None:
    if header.size_in_bytes > config.max_message_bytes:
        raise RecordTooLargeError(
            "a batch is larger than max.message.bytes; send smaller batches or raise the topic's limit",
            size_bytes=header.size_in_bytes,
            max_bytes=config.max_message_bytes,
        )
    if header.is_control:
        raise UnsupportedOperationError("control batches are written by the log itself; send records only")
    if header.is_transactional or header.has_producer_id:
        raise UnsupportedOperationError(
            "idempotent and transactional producers are not supported yet; send no producer id",
            producer_id=header.producer_id,
        )
    if header.attributes & TIMESTAMP_TYPE_BIT:
        raise InvalidRequestError("only the log sets append times; send batches with create time")
    if header.attributes & DELETE_HORIZON_BIT:
        raise InvalidRequestError("only compaction sets delete horizons; send batches without one")
    if header.max_timestamp < NO_TIMESTAMP:
        raise InvalidRequestError(
            "timestamps are milliseconds since 1970, or -1 for none", max_timestamp=header.max_timestamp
        )


def validate_replica(buffer: Buffer, next_offset: int) -> ValidatedAppend:
    """Prove batches that already have their offsets: framing, checksums, ascending offsets from `next_offset`
    on.

    Raises CorruptRecordError.
    """
    located = tuple(batches(buffer))
    if not located:
        raise InvalidRequestError("an append needs at least one record batch")
    for position, header in located:
        verify(buffer, position, header)
        if header.base_offset < next_offset:
            raise CorruptRecordError(
                "a batch's offsets are not above those of the batch before it",
                base_offset=header.base_offset,
                next_offset=next_offset,
            )
        next_offset = header.next_offset
    return ValidatedAppend.of(buffer, located)
