"""The 61 bytes at the beginning of a record batch: everything that the log needs without looking at a record.

All integers are big-endian; the offset of each field is that of the field before it plus that field's size::

    base_offset        int64   offset of the first record that the batch was made with
    batch_length       int32   bytes that follow this field
    leader_epoch       int32   epoch of the owner that appended it, -1 from a client
    magic              int8    2
    crc                uint32  CRC-32C of everything from attributes to the end of the batch
    attributes         int16   see below
    last_offset_delta  int32   last_offset - base_offset; stays when compaction removes the last records
    base_timestamp     int64   the base of timestamp deltas; the delete horizon if bit 6 is set
    max_timestamp      int64   highest timestamp of the records; the append time if bit 3 is set
    producer_id        int64   -1 without a producer state
    producer_epoch     int16
    base_sequence      int32
    records_count      int32

    attributes: bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 has delete horizon, the others
    zero or ignored

The checksum leaves out the base offset and the leader epoch, because the owner of the log writes them into
batches whose checksum the clients have already computed. Headers are values: immutable, safe to share between
threads.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.codecs.compression import Codec

BASE_OFFSET_POSITION = 0
BATCH_LENGTH_POSITION = BASE_OFFSET_POSITION + 8
LEADER_EPOCH_POSITION = BATCH_LENGTH_POSITION + 4
MAGIC_POSITION = LEADER_EPOCH_POSITION + 4
CRC_POSITION = MAGIC_POSITION + 1
ATTRIBUTES_POSITION = CRC_POSITION + 4
LAST_OFFSET_DELTA_POSITION = ATTRIBUTES_POSITION + 2
BASE_TIMESTAMP_POSITION = LAST_OFFSET_DELTA_POSITION + 4
MAX_TIMESTAMP_POSITION = BASE_TIMESTAMP_POSITION + 8
PRODUCER_ID_POSITION = MAX_TIMESTAMP_POSITION + 8
PRODUCER_EPOCH_POSITION = PRODUCER_ID_POSITION + 8
BASE_SEQUENCE_POSITION = PRODUCER_EPOCH_POSITION + 2
RECORDS_COUNT_POSITION = BASE_SEQUENCE_POSITION + 4
RECORDS_POSITION = RECORDS_COUNT_POSITION + 4

LOG_OVERHEAD = LEADER_EPOCH_POSITION
"""The bytes before those that `batch_length` counts."""

HEADER_SIZE = RECORDS_POSITION
"""The bytes before the records section."""

MAGIC = 2
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
MAX_OFFSET = 2**63 - 1

CODEC_MASK = 0x07
_CODECS = tuple(Codec)
_MAX_CODEC = len(_CODECS) - 1
assert list(_CODECS) == list(range(len(_CODECS)))
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

_STRUCT = struct.Struct(">qiibIhiqqqhii")
assert _STRUCT.size == HEADER_SIZE == 61
_MIN_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD


class TimestampType(enum.IntEnum):
    """The meaning of a batch's timestamps. The numbers are those of attribute bit 3."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """A batch's header as it lies in the log."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_in_bytes(self) -> int:
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The last offset, inclusive. A compaction may have removed its record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The exclusive end of the offsets that the batch covers."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return _CODECS[self.attributes & CODEC_MASK]

    @property
    def timestamp_type(self) -> TimestampType:
        return (
            TimestampType.LOG_APPEND_TIME
            if self.attributes & TIMESTAMP_TYPE_BIT
            else TimestampType.CREATE_TIME
        )

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """The batch holds markers of the log itself (a transaction's commit or abort), no records of
        users."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_bare(self) -> bool:
        """The header is the whole batch: compaction dropped the records."""
        return self.records_count == 0 and self.size_in_bytes == HEADER_SIZE

    @property
    def delete_horizon_ms(self) -> int | None:
        """Wall time from which compaction may drop the batch's tombstones and marker (KIP-534).

        None if no compaction has set it yet.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def append_time_ms(self) -> int | None:
        """The timestamp of every record if the log set it at append; None if records have their own."""
        return self.max_timestamp if self.attributes & TIMESTAMP_TYPE_BIT else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    def pack(self) -> bytes:
        return _STRUCT.pack(*self)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header at `position`. Proves that its fields fit each other; ignores the checksum and the
    records.

    Raises CorruptRecordError if fewer than 61 bytes are left or a field is out of range.
    """
    if position < 0 or len(buffer) - position < HEADER_SIZE:
        raise CorruptRecordError(
            "the bytes end inside a batch header; fetch or read on from the batch's beginning",
            position=position,
            size_bytes=len(buffer),
        )
    header = BatchHeader._make(_STRUCT.unpack_from(buffer, position))
    # One condition accepts a valid header, because this runs for every batch.
    base_offset, batch_length, _, magic, _, attributes, last_offset_delta, *_, records_count = header
    if not (
        magic == MAGIC
        and batch_length >= _MIN_BATCH_LENGTH
        and 0 <= base_offset < MAX_OFFSET - last_offset_delta
        and 0 <= records_count <= last_offset_delta + 1
        and last_offset_delta >= 0
        and attributes & CODEC_MASK <= _MAX_CODEC
    ):
        raise _impossible(header, position)
    return header


def _impossible(header: BatchHeader, position: int) -> CorruptRecordError:
    """The error for an invalid header: it names the first field that is wrong, and its value."""
    field, value, problem = _problem(header)
    return CorruptRecordError(
        f"this is not a batch header: {problem}; the bytes were changed or the position is wrong",
        position=position,
        field=field,
        value=value,
    )


def _problem(header: BatchHeader) -> tuple[str, int, str]:
    if header.magic != MAGIC:
        return "magic", header.magic, f"only version {MAGIC} is known"
    if header.batch_length < _MIN_BATCH_LENGTH:
        return "batch_length", header.batch_length, "its length is less than a header's"
    if header.last_offset_delta < 0:
        return "last_offset_delta", header.last_offset_delta, "its last offset is below its first"
    if not 0 <= header.base_offset < MAX_OFFSET - header.last_offset_delta:
        return "base_offset", header.base_offset, "its offsets are out of range"
    if not 0 <= header.records_count <= header.last_offset_delta + 1:
        return "records_count", header.records_count, "its record count does not fit its offsets"
    codec = header.attributes & CODEC_MASK
    assert codec > _MAX_CODEC
    return "codec", codec, "its codec is unknown"
