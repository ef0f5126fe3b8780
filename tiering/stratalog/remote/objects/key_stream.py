"""The key stream of a slice: one entry for each distinct key, for its last record there (or for that with the
highest version), sorted by hash.

docs/formats/object_file.md has the format, and ``key_block`` that of a block. A block can be verified alone
and has 1 to 4,096 entries, so a merge of many streams holds little of each.

Invariants, all checked while reading: hashes ascend strictly (as unsigned pairs) over the whole stream; an
ordinal is below the slice's record count; counts, sizes and the CRC-32C of the whole stream match the
directory. The CRC-32C is known only when the iteration has ended: act on a stream after its end, not before.

Threads: functions are pure; an iterator belongs to one user.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.record.header import BatchHeader
from stratalog.record.keep_rules import BatchVersions, VersionRule
from stratalog.record.key_block import (
    BLOCK_CRC_POSITION,
    HASH_BYTES,
    MAX_BLOCK_ENTRY_COUNT,
    ORDINAL_BYTES,
    TOMBSTONE_BYTES,
    VERSION_BYTES,
    VERSIONS_FLAG,
    block_size_bytes,
)
from stratalog.record.native.batch_kernels import merge_key_streams
from stratalog.record.native.kernels import key_columns_fault, merge_windows, siphash128
from stratalog.record.native.key_entries import Column, KeyEntries, KeyWindow
from stratalog.remote.objects.fixed_layout import Buffer, FixedLayout, padding_bytes
from stratalog.remote.objects.object_format import crc_of
from stratalog.remote.objects.slice_entry import KeyStreamRef

# Columns are read in place as this machine's numbers.
assert sys.byteorder == "little", "object files are read in place, on little-endian machines only"

BLOCK_HEADER = FixedLayout(("entry_count", "I"), ("flags", "I"), ("block_bytes", "I"), ("block_crc", "I"))
# The kernels that read whole streams use the same position.
assert BLOCK_HEADER.positions["block_crc"] == BLOCK_CRC_POSITION

_WIDTHS = (HASH_BYTES, HASH_BYTES, ORDINAL_BYTES, TOMBSTONE_BYTES, VERSION_BYTES)
_HASH_HALF = struct.Struct("<Q")
SMALL_STREAM_BYTES = 128 << 10
"""A key stream up to this size (one or two blocks) is read at once."""

_HASH_KEY_ID_TEXT = b"stratalog/hash-key-id"


class KeyHashing(NamedTuple):
    """How the key streams of a topic are made."""

    hash_key: bytes
    """16 secret bytes; the same for all slices of a topic, different for every topic."""
    version_rule: VersionRule | None = None
    """The versions of the records; None if the last record of a key stays."""

    @property
    def has_versions(self) -> bool:
        return self.version_rule is not None

    @property
    def hash_key_id(self) -> int:
        """The number in the descriptor of a key stream that was made this way."""
        return _hash_key_id(self)

    def new_entries(self) -> KeyEntries:
        """Entries without any, with the columns that such a key stream has."""
        return KeyEntries(has_versions=self.has_versions)

    def versions_of(self, batch: BatchHeader) -> BatchVersions | None:
        """The versions of the records of a batch; None if they have none."""
        return None if self.version_rule is None else self.version_rule.of_batch(batch)

    def made(self, stream: KeyStreamRef) -> bool:
        """Whether `stream` was made this way; if not, its slice is hashed from the data."""
        return stream.hash_key_id == self.hash_key_id


@functools.lru_cache(maxsize=1024)
def _hash_key_id(hashing: KeyHashing) -> int:
    """Cached, because every slice needs it."""
    text, rule = _HASH_KEY_ID_TEXT, hashing.version_rule
    if rule is not None:
        text += b"/timestamp" if rule.header is None else b"/header/" + rule.header
    return siphash128(hashing.hash_key, text)[0]


class KeyColumns(Protocol):
    """Sorted entries as columns of little-endian numbers, as `KeyEntries` and the kernels have them."""

    @property
    def hash_high(self) -> Column: ...
    @property
    def hash_low(self) -> Column: ...
    @property
    def ordinal(self) -> Column: ...
    @property
    def tombstone(self) -> Column: ...
    @property
    def version(self) -> Column | None: ...


class EncodedKeyStream(NamedTuple):
    """The bytes of a key stream, in parts to be written one after the other."""

    parts: tuple[Buffer, ...]
    size_bytes: int
    entry_count: int
    crc: int


class KeyBlock(NamedTuple):
    """A block of a stream: columns of bytes, each of `entry_count` numbers."""

    entry_count: int
    hash_high: memoryview
    hash_low: memoryview
    ordinal: memoryview
    tombstone: memoryview
    version: memoryview | None = None

    @property
    def last_hash(self) -> tuple[int, int]:
        return _hash_at(self, self.entry_count - 1)


def encode_key_stream(entries: KeyColumns) -> EncodedKeyStream:
    """Encode entries that `sort_key_entries` has sorted."""
    encoder = KeyStreamEncoder()
    parts = [*encoder.add(entries), *encoder.end()]
    return encoder.encoded(tuple(parts))


class KeyStreamEncoder:
    """Encodes a key stream block by block. Not thread-safe: guarded by its user."""

    def __init__(self) -> None:
        self._size_bytes = self._entry_count = self._crc = 0
        self._rest: KeyEntries | None = None
        """Entries that do not fill a block yet, once some have come."""

    def add(self, entries: KeyColumns) -> Iterator[bytes]:
        """The blocks that the next entries fill; they are sorted, and behind all earlier ones."""
        rest = self._rest
        if rest is None or len(rest) == 0:
            self._rest = KeyEntries(has_versions=entries.version is not None)
            yield from self._whole_blocks(entries)
            return
        assert (rest.version is None) == (entries.version is None), "all entries have versions, or none has"
        _extend(rest, _columns_of(entries))
        self._rest = KeyEntries(has_versions=rest.version is not None)
        yield from self._whole_blocks(rest)

    def end(self) -> Iterator[bytes]:
        """The last block, if entries are left."""
        rest, self._rest = self._rest, None
        if rest is not None and len(rest):
            yield self._block(_columns_of(rest), 0, len(rest))

    def encoded(self, parts: tuple[Buffer, ...] = ()) -> EncodedKeyStream:
        """The facts about the stream, which has ended. `parts`: its blocks, if they are kept."""
        assert self._rest is None, "the stream has ended"
        return EncodedKeyStream(parts, self._size_bytes, self._entry_count, self._crc)

    def _whole_blocks(self, entries: KeyColumns) -> Iterator[bytes]:
        columns = _columns_of(entries)
        widths = _WIDTHS[: len(columns)]
        entry_count = len(columns[3])
        assert all(len(column) == entry_count * width for column, width in zip(columns, widths, strict=True))
        end = entry_count - entry_count % MAX_BLOCK_ENTRY_COUNT
        for start in range(0, end, MAX_BLOCK_ENTRY_COUNT):
            yield self._block(columns, start, MAX_BLOCK_ENTRY_COUNT)
        assert self._rest is not None
        _extend(self._rest, [column[end * width :] for column, width in zip(columns, widths, strict=True)])

    def _block(self, columns: Sequence[memoryview], start: int, count: int) -> bytes:
        body: list[Buffer] = []
        has_versions = len(columns) == len(_WIDTHS)
        for column, width in zip(columns, _WIDTHS[: len(columns)], strict=True):
            body.append(column[start * width : (start + count) * width])
            body.append(bytes(padding_bytes(count * width)))
        block_bytes = block_size_bytes(count, has_versions=has_versions)
        columns_bytes = b"".join(body)
        header = BLOCK_HEADER.pack(count, VERSIONS_FLAG if has_versions else 0, block_bytes, 0)[
            :BLOCK_CRC_POSITION
        ]
        block_crc = crc_of(columns_bytes, crc_of(header))
        block = b"".join((header, block_crc.to_bytes(4, "little"), columns_bytes))
        assert len(block) == block_bytes
        self._size_bytes += block_bytes
        self._entry_count += count
        self._crc = crc_of(block, self._crc)
        return block


def read_key_stream(
    read: Callable[[int], Buffer], stream: KeyStreamRef, record_count: int
) -> Iterator[KeyBlock]:
    """The verified blocks of `stream`, from a source that only moves forward.

    `read(size)` returns exactly `size` bytes, or fewer at the end of the source; nothing behind the stream
    is read. Raises StoreCorruptError (also after the last block), StoreNotUsableError.
    """
    left_bytes, crc, entry_count = stream.size_bytes, 0, 0
    last_hash: tuple[int, int] | None = None
    had_versions = False
    while left_bytes > 0:
        header = _read_exactly(read, min(BLOCK_HEADER.size_bytes, left_bytes), BLOCK_HEADER.size_bytes)
        count, flags, block_bytes, block_crc = BLOCK_HEADER.unpack(header)
        has_versions = flags == VERSIONS_FLAG
        if flags not in (0, VERSIONS_FLAG):
            raise StoreNotUsableError("a key stream has a newer format; use a newer version", flags=flags)
        if not 0 < count <= MAX_BLOCK_ENTRY_COUNT or block_bytes != block_size_bytes(
            count, has_versions=has_versions
        ):
            raise _corrupt("has a block whose size and entry count contradict each other")
        if block_bytes > left_bytes:
            raise _corrupt("has a block that does not fit it")
        body = _read_exactly(read, block_bytes - len(header), block_bytes - len(header))
        if crc_of(body, crc_of(memoryview(header)[:BLOCK_CRC_POSITION])) != block_crc:
            raise _corrupt("has a block that fails its checksum")
        crc = crc_of(body, crc_of(header, crc))
        if entry_count and has_versions != had_versions:
            raise _corrupt("has versions in some blocks only")
        had_versions = has_versions
        block = _columns(memoryview(body), count, has_versions=has_versions)
        _verify(block, last_hash, record_count)
        left_bytes -= block_bytes
        if left_bytes > 0:
            last_hash = block.last_hash
        entry_count += count
        yield block
    if crc != stream.crc or entry_count != stream.entry_count:
        raise _corrupt("does not match the directory")


def verify_key_stream(read: Callable[[int], Buffer], stream: KeyStreamRef, record_count: int) -> int:
    """Read and verify all of `stream`. Returns the number of different records that it refers to. Raises as
    `read_key_stream`."""
    if max(stream.size_bytes, record_count) > SMALL_STREAM_BYTES:
        blocks = read_key_stream(read, stream, record_count)
    else:
        data = read(stream.size_bytes)
        merged = merge_key_streams([(data, stream.entry_count, stream.crc, record_count)])
        if merged is not None:
            return int.from_bytes(merged[0], "little").bit_count()
        # It is damaged, or has a newer format: block by block finds out.
        blocks = key_blocks(data, stream, record_count)
    records = bytearray((record_count + 7) // 8)
    for block in blocks:
        window = KeyWindow(
            hash_high=block.hash_high,
            hash_low=block.hash_low,
            ordinal=block.ordinal,
            tombstone=block.tombstone,
            start=0,
            count=block.entry_count,
            version=block.version,
        )
        merge_windows([window], None, [records])
    return int.from_bytes(records, "little").bit_count()


def key_blocks(data: Buffer, stream: KeyStreamRef, record_count: int) -> Iterator[KeyBlock]:
    """Read the blocks from a buffer that holds exactly the stream; they refer into it. Raises as
    `read_key_stream`.
    """
    if len(data) != stream.size_bytes:
        raise _corrupt("does not have the size in the directory")
    view = memoryview(data)
    position = 0

    def read(size: int) -> memoryview:
        nonlocal position
        position += size
        return view[position - size : position]

    return read_key_stream(read, stream, record_count)


def _columns(body: memoryview, count: int, *, has_versions: bool) -> KeyBlock:
    low_position = count * HASH_BYTES
    ordinal_position = low_position + count * HASH_BYTES
    ordinal_end = ordinal_position + count * ORDINAL_BYTES
    tombstone_position = ordinal_end + padding_bytes(ordinal_end)
    tombstone_end = tombstone_position + count * TOMBSTONE_BYTES
    version_position = tombstone_end + padding_bytes(tombstone_end)
    # Hashes and versions need no padding.
    if any(body[ordinal_end:tombstone_position]) or any(body[tombstone_end:version_position]):
        raise _corrupt("has padding that is not zero")
    version = body[version_position:] if has_versions else None
    assert len(body) == version_position + (count * VERSION_BYTES if has_versions else 0)
    return KeyBlock(
        entry_count=count,
        hash_high=body[:low_position],
        hash_low=body[low_position:ordinal_position],
        ordinal=body[ordinal_position:ordinal_end],
        tombstone=body[tombstone_position:tombstone_end],
        version=version,
    )


def _verify(block: KeyBlock, last_hash: tuple[int, int] | None, record_count: int) -> None:
    if last_hash is not None and _hash_at(block, 0) <= last_hash:
        raise _corrupt("is not sorted from block to block")
    fault = key_columns_fault(block.hash_high, block.hash_low, block.ordinal, block.tombstone, record_count)
    if fault is not None:
        raise _corrupt(fault)


def _hash_at(block: KeyBlock, index: int) -> tuple[int, int]:
    place = index * HASH_BYTES
    high: int = _HASH_HALF.unpack_from(block.hash_high, place)[0]
    low: int = _HASH_HALF.unpack_from(block.hash_low, place)[0]
    return high, low


def _read_exactly(read: Callable[[int], Buffer], size: int, expected: int) -> Buffer:
    data = read(size)
    if len(data) != expected:
        raise _corrupt("is cut off")
    return data


def _columns_of(entries: KeyColumns) -> list[memoryview]:
    columns = [entries.hash_high, entries.hash_low, entries.ordinal, entries.tombstone]
    if entries.version is not None:
        columns.append(entries.version)
    return [_bytes_of(column) for column in columns]


def _extend(entries: KeyEntries, columns: Sequence[memoryview]) -> None:
    entries.hash_high.frombytes(columns[0])
    entries.hash_low.frombytes(columns[1])
    entries.ordinal.frombytes(columns[2])
    entries.tombstone.extend(columns[3])
    if entries.version is not None:
        entries.version.frombytes(columns[4])


def _bytes_of(column: Column) -> memoryview:
    view = memoryview(column)
    return view if view.format == "B" else view.cast("B")


def _corrupt(problem: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"the key stream of a slice {problem}; keep the object and find out what changed it"
    )
