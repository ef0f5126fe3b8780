"""Messages of the formats before batches, in a log that a broker wrote.

Where a topic's format was lowered for a while, they lie between batches. Nothing here reads them; so they
must not be taken for the torn end of a log, which is cut off. One message, big-endian, in versions 0 and 1::

    offset      int64
    size        int32    bytes that follow this field
    crc         uint32   CRC-32 (not CRC-32C) of everything from magic to the end
    magic       int8     0 or 1, where a batch has its own
    attributes  int8
    timestamp   int64    version 1 only
    key, value  int32 length (-1: null) and bytes, each

Bytes of another kind hardly match that checksum: what does is a message. Where a file begins with a frame
that can be one, this is not asked for: then the whole file is of that format, and its first message damaged.
"""

from __future__ import annotations

import struct
import zlib

from stratalog.base.errors import UnsupportedOperationError
from stratalog.base.filesystem import AppendFile
from stratalog.record.header import LOG_OVERHEAD, MAGIC, MAGIC_POSITION

# Offset, size, CRC and magic.
_FIELDS = struct.Struct(">qiIb")
assert _FIELDS.size == MAGIC_POSITION + 1
_MIN_SIZES = {0: 14, 1: 22}
assert max(_MIN_SIZES) < MAGIC
_CHUNK_BYTES = 1 << 20


def require_no_old_message(file: AppendFile, position: int, end_position: int, least_offset: int) -> None:
    """Raises UnsupportedOperationError where a message of such a format, and of an offset that is not below
    `least_offset`, lies at `position` of the file's bytes below `end_position`; OSError.
    """
    if end_position - position <= MAGIC_POSITION:
        return
    fields = file.read_at(position, _FIELDS.size)
    if len(fields) < _FIELDS.size:
        return
    offset, size_bytes, crc, magic = _FIELDS.unpack(fields)
    end = position + LOG_OVERHEAD + size_bytes
    if (
        magic not in _MIN_SIZES
        or size_bytes < _MIN_SIZES[magic]
        or end > end_position
        or offset < least_offset
    ):
        return
    if position == 0 or _crc32(file, position + MAGIC_POSITION, end) == crc:
        raise UnsupportedOperationError(
            "the log holds messages of a format older than version 2; let a client copy the topic to a new"
            " one, and import that",
            path=file.path,
            position=position,
            offset=offset,
            message_format=magic,
        )


def _crc32(file: AppendFile, position: int, end_position: int) -> int:
    crc = 0
    while position < end_position:
        data = file.read_at(position, min(_CHUNK_BYTES, end_position - position))
        if not data:
            break
        crc, position = zlib.crc32(data, crc), position + len(data)
    return crc
