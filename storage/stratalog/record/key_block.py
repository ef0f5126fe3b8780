"""The block of a key stream: up to 4,096 entries as columns, little-endian, each at a multiple of 8 bytes.

    block        = block-header column{4}
    block-header = entry-count u32, flags u32, block-bytes u32, block-crc u32
    column       = value{entry-count} padding           padded with zeros to a multiple of 8
    columns      = hash-high u64, hash-low u64, ordinal u32, tombstone u8 (0 or 1) [version i64]

Flag 1 means that there is a version column: the topic keeps the highest version of a key, not its last
record. All blocks of a stream have one, or none has. No other flags are known. `block-bytes` counts the
header too; `block-crc` is the CRC-32C of the block without those four bytes.
"""

from __future__ import annotations

import struct

MAX_BLOCK_ENTRY_COUNT = 4096
ALIGNMENT_BYTES = 8

BLOCK_HEADER = struct.Struct("<IIII")
BLOCK_CRC_POSITION = BLOCK_HEADER.size - 4
HASH_BYTES, ORDINAL_BYTES, TOMBSTONE_BYTES, VERSION_BYTES = 8, 4, 1, 8
VERSIONS_FLAG = 1


def aligned(size_bytes: int) -> int:
    """`size_bytes` plus the padding that follows."""
    return size_bytes + -size_bytes % ALIGNMENT_BYTES


def block_size_bytes(entry_count: int, *, has_versions: bool = False) -> int:
    """The size of a block: header, columns and their padding."""
    return (
        BLOCK_HEADER.size
        + entry_count * 2 * HASH_BYTES
        + aligned(entry_count * ORDINAL_BYTES)
        + aligned(entry_count * TOMBSTONE_BYTES)
        + (entry_count * VERSION_BYTES if has_versions else 0)
    )


def key_stream_bytes(entry_count: int, *, has_versions: bool) -> int:
    """The most bytes of the blocks of a key stream with so many entries."""
    full_count, last_entries = divmod(entry_count, MAX_BLOCK_ENTRY_COUNT)
    full_bytes = full_count * block_size_bytes(MAX_BLOCK_ENTRY_COUNT, has_versions=has_versions)
    return full_bytes + block_size_bytes(last_entries, has_versions=has_versions)
