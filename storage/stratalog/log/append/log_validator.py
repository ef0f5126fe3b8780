"""Validates what is appended, before the log takes it.

Validation looks at bytes only and needs no lock, so many appends are validated at once. If the topic has its
own codec (`compression.type`), batches in another codec are compressed anew here, and so are lz4 frames that
Kafka's readers refuse; their records stay as they are, byte for byte. A highest timestamp that differs from
that of the records is corrected, as in Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from stratalog.base.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidRequestError,
    RecordTooLargeError,
    UnsupportedOperationError,
)
from stratalog.base.filesystem import Buffer
from stratalog.log.append.append_rules import (
    require_every_offset,
    require_header_of_producer,
    require_keys,
    require_one_producer_batch,
    require_size,
)
from stratalog.log.append.timestamp_bounds import ANY_TIME, TimestampBounds
from stratalog.log.append.unpacking import BATCH_WORK_BYTES, UNLIMITED, Unpacking, UnpackingRoom
from stratalog.log.append.validated_append import ValidatedAppend, with_crc
from stratalog.log.log_config import LogConfig
from stratalog.log.producers.producer_append import AppendOrigin
from stratalog.record.batch import batches, records_payload, require_crc, verify_frames
from stratalog.record.builder import rebuild_batch
from stratalog.record.codecs.compression import MAX_SENT_BYTES, Codec
from stratalog.record.codecs.lz4_frame import is_lz4_of_kafka
from stratalog.record.header import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    parse_header,
)
from stratalog.record.native.batch_kernels import accept_append, scan_batches
from stratalog.record.records_summary import RecordsSummary

_REQUEST_TOO_LARGE = (
    "the batches of the request decompress to more than a hundred times its size, or to more than 1 GiB; send"
    " fewer batches in a request"
)

# Of Kafka's formats before this one: offset, size of what follows, checksum, magic.
_OLD_MESSAGE = struct.Struct(">qiIB")
# Checksum, magic, attributes, and the sizes of key and value.
_OLD_MIN_BYTES = 4 + 1 + 1 + 4 + 4


def validate_append(
    buffer: Buffer, config: LogConfig, now_ms: int, unpacking: Unpacking = UNLIMITED
) -> ValidatedAppend:
    """Check a producer's request, and bring its batches into the codec of the topic.

    `now_ms`: the time to which the timestamps of records are compared. `unpacking`: the memory of
    decompressed batches, and the work with them. Duplicates are not detected here. Raises InvalidRecordError,
    RecordTooLargeError, InvalidTimestampError, UnsupportedOperationError, InvalidRequestError,
    OverloadedError; what `unpacking` raises.
    """
    bounds = TimestampBounds.at(now_ms, config)
    accepted = _accepted(buffer, config, bounds)
    if accepted is not None:
        return accepted
    try:
        return _validated(buffer, config, bounds, unpacking)
    except CorruptRecordError as failure:
        # The parsers do not know that a client sent these bytes.
        raise InvalidRecordError(failure.message, **failure.fields) from failure


def _accepted(buffer: Buffer, config: LogConfig, bounds: TimestampBounds | None) -> ValidatedAppend | None:
    """The request if it obeys all rules as it is and is not compressed: one call finds that out without the
    interpreter's lock. None where a rule may be broken, or a batch needs another form."""
    if len(buffer) > min(MAX_SENT_BYTES, config.segment_bytes):
        return None
    if config.compression_type.codec_for(Codec.NONE) is not Codec.NONE:
        return None
    earliest_ms, latest_ms = bounds or ANY_TIME
    found = accept_append(buffer, config.max_message_bytes, earliest_ms, latest_ms, config.is_compacted)
    if found is None:
        return None
    offset_count, max_timestamp_ms, has_producer = found
    return ValidatedAppend.accepted(buffer, offset_count, max_timestamp_ms, has_producer=has_producer)


def _validated(
    buffer: Buffer, config: LogConfig, bounds: TimestampBounds | None, unpacking: Unpacking
) -> ValidatedAppend:
    located = _located(buffer, unpacking)
    require_one_producer_batch([header for _, header in located])
    room = UnpackingRoom(len(buffer), config, unpacking)
    try:
        rebuilt = _rebuilt(buffer, located, config, bounds, room)
    finally:
        room.close()
    if rebuilt:
        buffer = _with_batches(buffer, located, rebuilt)
        located = tuple(batches(buffer))
    return ValidatedAppend.of(buffer, located, AppendOrigin.CLIENT)


def _rebuilt(
    buffer: Buffer,
    located: Sequence[tuple[int, BatchHeader]],
    config: LogConfig,
    bounds: TimestampBounds | None,
    room: UnpackingRoom,
) -> dict[int, bytes]:
    """Check the batches; those that need another form, in that form, by their positions."""
    view = memoryview(buffer)
    rebuilt: dict[int, bytes] = {}
    stored_bytes = 0
    for index, (position, sent) in enumerate(located):
        require_header_of_producer(sent, config, index)
        payload, summary = proven_records(buffer, position, sent, index, room)
        room.take(len(payload))
        require_every_offset(sent, summary, index)
        header = _redated(sent, summary)
        if config.is_compacted:
            require_keys(payload, header, summary, index)
        if bounds is not None:
            bounds.require_inside(payload, header, summary, index)
        section = view[position + HEADER_SIZE : position + header.size_in_bytes]
        if _needs_other_form(section, header.codec, config):
            codec = config.compression_type.codec_for(header.codec)
            room.work_to_compress(codec, len(payload), config.compression_level(codec))
            rebuilt[position] = _recompressed(payload, header, config, index)
        elif header is not sent:
            rebuilt[position] = with_crc(header, section).pack() + section
        # Frees the memory before the next batch needs some.
        del payload
        # After each batch: a few kilobytes may become any number of mebibytes.
        stored_bytes += len(rebuilt[position]) if position in rebuilt else sent.size_in_bytes
        _require_segment(stored_bytes, config)
        room.work()
    return rebuilt


def _require_segment(size_bytes: int, config: LogConfig) -> None:
    """Raise RecordTooLargeError for a request over one segment: a request becomes visible as a whole."""
    if size_bytes > config.segment_bytes:
        raise RecordTooLargeError(
            "the request is larger than segment.bytes; send less at once",
            size_bytes=size_bytes,
            max_bytes=config.segment_bytes,
        )


def _located(buffer: Buffer, unpacking: Unpacking = UNLIMITED) -> tuple[tuple[int, BatchHeader], ...]:
    """The batches of a request, at least one, with their positions. Asks for the work with each of them."""
    located: list[tuple[int, BatchHeader]] = []
    try:
        for one in batches(buffer):
            unpacking.work(BATCH_WORK_BYTES)
            located.append(one)
    except CorruptRecordError as failure:
        position = failure.fields.get("position")
        if isinstance(position, int) and _is_old_message(buffer, position):
            raise UnsupportedOperationError(
                "the request is in a message format of Kafka's from before 0.11; send batches of version 2",
                position=position,
                field="magic",
                value=buffer[position + MAGIC_POSITION],
            ) from failure
        raise
    if not located:
        raise InvalidRequestError("an append needs at least one record batch")
    return tuple(located)


def _is_old_message(buffer: Buffer, position: int) -> bool:
    """Whether the bytes at `position` look like a message of version 0 or 1, with its magic in the same
    place."""
    if len(buffer) - position < _OLD_MESSAGE.size:
        return False
    size_bytes: int
    magic: int
    _, size_bytes, _, magic = _OLD_MESSAGE.unpack_from(buffer, position)
    return magic < MAGIC and _OLD_MIN_BYTES <= size_bytes <= len(buffer) - position - LOG_OVERHEAD


def proven_records(
    buffer: Buffer, position: int, header: BatchHeader, batch_index: int, room: UnpackingRoom
) -> tuple[Buffer, RecordsSummary]:
    """The batch's records section, decompressed within the room and well-framed, after a look at the
    checksum. An error has the batch's place in the request."""
    max_bytes = room.max_bytes(header.size_in_bytes)
    # Most batches are plain: one call takes one without the interpreter's lock.
    scanned = scan_batches(buffer, position, position + 1, 0)
    if position < scanned.end_position <= position + max_bytes:
        section = memoryview(buffer)[position + HEADER_SIZE : scanned.end_position]
        return section, scanned.summary_of(header)
    require_crc(buffer, position, header)
    try:
        payload: Buffer
        if header.codec is Codec.NONE:
            payload = records_payload(buffer, position, header, max_bytes=max_bytes)
        else:
            section = memoryview(buffer)[position + HEADER_SIZE : position + header.size_in_bytes]
            payload = room.unpack(header.codec, section, max_bytes)
        return payload, verify_frames(payload, header)
    except CorruptRecordError as failure:
        place = {"batch_index": batch_index, "position": position}
        if "max_bytes" not in failure.fields:
            raise CorruptRecordError(failure.message, **place, **failure.fields) from failure
        # Too many bytes are no sign of damage.
        is_of_request = room.is_short_for(header.size_in_bytes)
        message = _REQUEST_TOO_LARGE if is_of_request else failure.message
        raise RecordTooLargeError(message, **place, **failure.fields) from failure


def _redated(header: BatchHeader, summary: RecordsSummary) -> BatchHeader:
    """The header with the highest timestamp of its records; the same object if it has that already."""
    latest_ms = header.base_timestamp + summary.max_timestamp_delta
    return header if header.max_timestamp == latest_ms else header._replace(max_timestamp=latest_ms)


def _needs_other_form(section: memoryview, codec: Codec, config: LogConfig) -> bool:
    """Whether the topic has another codec, or Kafka's readers would refuse a frame that ours accept."""
    is_foreign = codec is Codec.LZ4 and not is_lz4_of_kafka(section)
    return is_foreign or config.compression_type.codec_for(codec) is not codec


def _recompressed(payload: Buffer, header: BatchHeader, config: LogConfig, batch_index: int) -> bytes:
    """The batch in the topic's codec. Its records and the other fields of its header stay as they are."""
    codec = config.compression_type.codec_for(header.codec)
    batch = rebuild_batch(
        header._replace(attributes=header.attributes & ~CODEC_MASK | codec),
        payload,
        records_count=header.records_count,
        max_timestamp=header.max_timestamp,
        level=config.compression_level(codec),
    )
    require_size(parse_header(batch), config, batch_index, sent_in=header.codec)
    return batch


def _with_batches(
    buffer: Buffer, located: Sequence[tuple[int, BatchHeader]], rebuilt: Mapping[int, bytes]
) -> bytes:
    """The request with other batches at some positions."""
    view = memoryview(buffer)
    return b"".join(
        rebuilt.get(position, view[position : position + header.size_in_bytes])
        for position, header in located
    )


def validate_replica(buffer: Buffer, next_offset: int) -> ValidatedAppend:
    """Check batches that have their offsets already: headers, checksums, ascending offsets from `next_offset`
    on. As in Kafka, records are not decoded: another log has accepted them under its own bounds.

    Raises CorruptRecordError.
    """
    located = _located(buffer)
    for position, header in located:
        require_crc(buffer, position, header)
        if header.base_offset < next_offset:
            raise CorruptRecordError(
                "a batch's offsets are not above those of the batch before it",
                field="base_offset",
                value=header.base_offset,
                position=position,
                next_offset=next_offset,
            )
        next_offset = header.next_offset
    return ValidatedAppend.of(buffer, located, AppendOrigin.REPLICATION)
