"""Finds messages of the formats before batches in a log that a broker wrote.

If a topic's format was lowered for a while, such messages lie between batches. This project does not read
them. It must not mistake them for the torn end of a log either, which recovery cuts off. One message,
big-endian, in versions 0 and 1::

    offset      int64
    size        int32    bytes that follow this field
    crc         uint32   CRC-32 (not CRC-32C) of everything from magic to the end
    magic       int8     0 or 1, at the place of a batch's magic
    attributes  int8
    timestamp   int64    version 1 only
    key, value  int32 length (-1: null) and bytes, each

Other bytes hardly ever match that checksum, so bytes that do are a message. At the beginning of a file a
frame with a plausible header is enough: the whole file is then of that format, and its first message is
damaged.
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
    """Raise UnsupportedOperationError if an old message with an offset of at least `least_offset` lies at
    `position` and ends by `end_position`. Raises OSError."""
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
            "the log holds messages of a format older than version 2; copy the topic to a new one with a"
            " client, and import the new one",
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
