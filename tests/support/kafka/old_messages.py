"""Messages of the formats before batches, as brokers of old wrote them."""

from __future__ import annotations

import struct
import zlib


def old_message(offset: int, version: int, key: bytes, value: bytes, timestamp_ms: int = 1000) -> bytes:
    """One uncompressed message of version 0 or 1; version 0 has no timestamp."""
    assert version in {0, 1}
    body = struct.pack(">bb", version, 0)
    if version == 1:
        body += struct.pack(">q", timestamp_ms)
    for part in (key, value):
        body += struct.pack(">i", len(part)) + part
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(message)) + message
