"""The kernels for key streams in plain Python: hash, sort, merge. Twins of those in ``_kernels``."""

from __future__ import annotations

import itertools
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Literal

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.keep_rules import BatchVersions
from stratalog.record.key_block import (
    BLOCK_HEADER,
    HASH_BYTES,
    ORDINAL_BYTES,
    TOMBSTONE_BYTES,
    aligned,
    block_size_bytes,
)
from stratalog.record.native.key_entries import (
    KEYS_NOT_SORTED,
    ORDINAL_TOO_HIGH,
    RANK_BITS,
    TOMBSTONE_NOT_A_BIT,
    VERSIONS_DIFFER,
    Column,
    HashPair,
    KeyEntries,
    KeyWindow,
    RankedSurvivors,
)
from stratalog.record.record_frame import record_frames

HASH_KEY_BYTES = 16
MAX_ORDINAL = 2**32 - 1
_SIP_MASK = 0xFFFFFFFFFFFFFFFF
# MurmurHash2, 32 bits, with the seed of Kafka's clients.
_MURMUR_SEED = 0x9747B28C
_MURMUR_MULTIPLIER = 0x5BD1E995
_MURMUR_SHIFT = 24
_MURMUR_MASK = 0xFFFFFFFF

_State = tuple[int, int, int, int]


def siphash128(key16: Buffer, data: Buffer) -> HashPair:
    """The plain-Python form of ``kernels.siphash128``: SipHash-2-4 by Aumasson and Bernstein."""
    assert len(key16) == HASH_KEY_BYTES, "a hash key has 16 bytes"
    k0, k1 = struct.unpack("<QQ", key16)
    state = (
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    )
    size_bytes = len(data)
    tail_position = size_bytes & ~7
    for (word,) in struct.iter_unpack("<Q", memoryview(data)[:tail_position]):
        state = _absorb(state, word)
    last = int.from_bytes(data[tail_position:], "little") | (size_bytes & 0xFF) << 56
    v0, v1, v2, v3 = _absorb(state, last)
    state = _rounds((v0, v1, v2 ^ 0xEE, v3), 4)
    high = state[0] ^ state[1] ^ state[2] ^ state[3]
    v0, v1, v2, v3 = state
    state = _rounds((v0, v1 ^ 0xDD, v2, v3), 4)
    return high, state[0] ^ state[1] ^ state[2] ^ state[3]


def murmur2(key: Buffer) -> int:
    """The plain-Python form of ``kernels.murmur2``."""
    data = bytes(key)
    size_bytes = len(data)
    state = (_MURMUR_SEED ^ size_bytes) & _MURMUR_MASK
    tail_position = size_bytes & ~3
    for position in range(0, tail_position, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MURMUR_MULTIPLIER & _MURMUR_MASK
        word = (word ^ (word >> _MURMUR_SHIFT)) * _MURMUR_MULTIPLIER & _MURMUR_MASK
        state = (state * _MURMUR_MULTIPLIER & _MURMUR_MASK) ^ word
    if tail_position < size_bytes:
        tail = int.from_bytes(data[tail_position:], "little")
        state = (state ^ tail) * _MURMUR_MULTIPLIER & _MURMUR_MASK
    state = (state ^ (state >> 13)) * _MURMUR_MULTIPLIER & _MURMUR_MASK
    return state ^ (state >> 15)


def hash_keys(
    payload: Buffer,
    records_count: int,
    hash_key16: Buffer,
    first_ordinal: int,
    entries: KeyEntries,
    versions: BatchVersions | None = None,
) -> None:
    """The plain-Python form of ``kernels.hash_keys``."""
    data = bytes(payload)
    key16 = bytes(hash_key16)
    assert len(key16) == HASH_KEY_BYTES, "a hash key has 16 bytes"
    if first_ordinal < 0 or first_ordinal + records_count - 1 > MAX_ORDINAL:
        raise CorruptRecordError("a slice has more records than can be numbered", first_ordinal=first_ordinal)
    # Appended only when the whole payload is proved, so that an error leaves the entries unchanged.
    found = KeyEntries(has_versions=versions is not None)
    for ordinal, frame in enumerate(record_frames(data, records_count), first_ordinal):
        if frame.key_size >= 0:
            key = data[frame.key_position : frame.key_position + frame.key_size]
            version = 0 if versions is None else versions.of_record(data, frame)
            _append_entry(found, siphash128(key16, key), ordinal, frame.value_size < 0, version)
    entries.extend(found)


def sort_key_entries(entries: KeyEntries) -> KeyEntries:
    """The plain-Python form of ``kernels.sort_key_entries``."""
    entries.check()
    winners: dict[HashPair, tuple[int, int, int]] = {}
    versions = itertools.repeat(0, len(entries)) if entries.version is None else entries.version
    for high, low, *entry in zip(
        entries.hash_high, entries.hash_low, versions, entries.ordinal, entries.tombstone, strict=True
    ):
        version, ordinal, tombstone = entry
        rival = version, ordinal, tombstone
        winners[high, low] = max(winners.get((high, low), rival), rival)
    result = KeyEntries(has_versions=entries.version is not None)
    for pair in sorted(winners):
        version, ordinal, tombstone = winners[pair]
        _append_entry(result, pair, ordinal, tombstone != 0, version)
    return result


def key_columns_fault(
    hash_high: Column, hash_low: Column, ordinal: Column, tombstone: Column, record_count: int
) -> str | None:
    """The plain-Python form of ``kernels.key_columns_fault``."""
    count = len(memoryview(tombstone).cast("B"))
    assert len(memoryview(hash_high).cast("B")) == len(memoryview(hash_low).cast("B")) == 8 * count
    assert len(memoryview(ordinal).cast("B")) == 4 * count
    hashes = list(zip(_numbers("Q", hash_high, 0, count), _numbers("Q", hash_low, 0, count), strict=True))
    if any(later <= earlier for earlier, later in itertools.pairwise(hashes)):
        return KEYS_NOT_SORTED
    if max(_numbers("I", ordinal, 0, count), default=-1) >= record_count:
        return ORDINAL_TOO_HIGH
    return TOMBSTONE_NOT_A_BIT if max(memoryview(tombstone).cast("B"), default=0) > 1 else None


def merge_windows(
    windows: Sequence[KeyWindow], limit: HashPair | None, survivors: Sequence[bytearray]
) -> list[int]:
    """The plain-Python form of ``kernels.merge_windows``."""
    assert len(windows) == len(survivors), "each window needs its survivor bits"
    if len({window.version is None for window in windows}) > 1:
        raise CorruptRecordError(VERSIONS_DIFFER)
    consumed = [0] * len(windows)
    winners: dict[HashPair, tuple[int, int, int]] = {}
    for index, (window, bits) in enumerate(zip(windows, survivors, strict=True)):
        previous: HashPair | None = None
        for (pair, ordinal), version in zip(_window_entries(window), _window_versions(window), strict=True):
            if limit is not None and pair > limit:
                break
            if previous is not None and pair <= previous:
                raise CorruptRecordError("the key stream is not sorted; make it again from the slice's data")
            if ordinal >= len(bits) * 8:
                raise CorruptRecordError(
                    "a key stream points behind the records of its slice", ordinal=ordinal
                )
            previous = pair
            consumed[index] += 1
            rival = version, index, ordinal
            winners[pair] = max(winners.get(pair, rival), rival)
    for _, index, ordinal in winners.values():
        survivors[index][ordinal >> 3] |= 1 << (ordinal & 7)
    return consumed


def translate_keys(
    window: KeyWindow, limit: HashPair | None, kept: RankedSurvivors, entries: KeyEntries
) -> int:
    """The plain-Python form of ``kernels.translate_keys``."""
    tombstones = memoryview(window.tombstone).cast("B")[window.start : window.start + window.count]
    if (window.version is None) != (entries.version is None):
        raise CorruptRecordError(VERSIONS_DIFFER)
    found = KeyEntries(has_versions=window.version is not None)
    taken = 0
    for (pair, ordinal), tombstone, version in zip(
        _window_entries(window), tombstones, _window_versions(window), strict=True
    ):
        if limit is not None and pair > limit:
            break
        taken += 1
        rank = _rank(kept, ordinal)
        if rank is not None:
            _append_entry(found, pair, rank, tombstone != 0, version)
    entries.extend(found)
    return taken


def translate_key_stream(data: Buffer, kept: RankedSurvivors, entries: KeyEntries) -> None:
    """The plain-Python form of ``kernels.translate_key_stream``."""
    view = memoryview(data)
    position = 0
    found = KeyEntries()
    while position < len(view):
        if len(view) - position < BLOCK_HEADER.size:
            raise CorruptRecordError("a key stream ends inside a block")
        count, flags, _, _ = BLOCK_HEADER.unpack_from(view, position)
        if flags:
            raise CorruptRecordError("a key stream has a block of another kind")
        end = position + block_size_bytes(count)
        if end > len(view):
            raise CorruptRecordError("a key stream ends inside a block")
        low = position + BLOCK_HEADER.size + count * HASH_BYTES
        ordinal = low + count * HASH_BYTES
        tombstone = ordinal + aligned(count * ORDINAL_BYTES)
        window = KeyWindow(
            hash_high=view[position + BLOCK_HEADER.size : low],
            hash_low=view[low:ordinal],
            ordinal=view[ordinal : ordinal + count * ORDINAL_BYTES],
            tombstone=view[tombstone : tombstone + count * TOMBSTONE_BYTES],
            start=0,
            count=count,
        )
        translate_keys(window, None, kept, found)
        position = end
    entries.extend(found)


def _rank(kept: RankedSurvivors, ordinal: int) -> int | None:
    """The ordinal of a record in the slice that it goes to; None if it does not stay."""
    if kept.survivors is None:
        rank = kept.first_rank + ordinal
    else:
        block = ordinal // RANK_BITS
        if ordinal >= 8 * len(kept.survivors) or block >= len(kept.ranks):
            raise CorruptRecordError("a key stream points behind its slice", ordinal=ordinal)
        begin = block * RANK_BITS // 8
        bits = int.from_bytes(kept.survivors[begin : ordinal // 8 + 1], "little")
        if not bits >> (ordinal - 8 * begin) & 1:
            return None
        before = bits & ((1 << (ordinal - 8 * begin)) - 1)
        rank = kept.first_rank + kept.ranks[block] + before.bit_count()
    if rank > MAX_ORDINAL:
        raise CorruptRecordError("a key stream points behind its slice", ordinal=ordinal)
    return rank


def _append_entry(
    entries: KeyEntries, pair: HashPair, ordinal: int, is_tombstone: bool, version: int
) -> None:
    entries.hash_high.append(pair[0])
    entries.hash_low.append(pair[1])
    entries.ordinal.append(ordinal)
    entries.tombstone.append(is_tombstone)
    if entries.version is not None:
        entries.version.append(version)


def _window_entries(window: KeyWindow) -> list[tuple[HashPair, int]]:
    if window.start < 0 or window.count < 0:
        raise CorruptRecordError("a key stream window cannot have a negative size")
    highs = _numbers("Q", window.hash_high, window.start, window.count)
    lows = _numbers("Q", window.hash_low, window.start, window.count)
    ordinals = _numbers("I", window.ordinal, window.start, window.count)
    return [((high, low), ordinal) for high, low, ordinal in zip(highs, lows, ordinals, strict=True)]


def _window_versions(window: KeyWindow) -> Sequence[int]:
    """Equal numbers if there are none."""
    if window.version is None:
        return [0] * window.count
    return _numbers("q", window.version, window.start, window.count)


def _numbers(typecode: Literal["Q", "q", "I"], column: Column, start: int, count: int) -> array[int]:
    numbers: array[int] = array(typecode)
    width = numbers.itemsize
    part = memoryview(column).cast("B")[start * width : (start + count) * width]
    if len(part) != count * width:
        raise CorruptRecordError("a key stream ends before its last entry")
    numbers.frombytes(part)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _absorb(state: _State, word: int) -> _State:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _rounds((v0, v1, v2, v3 ^ word), 2)
    return v0 ^ word, v1, v2, v3


def _rounds(state: _State, count: int) -> _State:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = (v0 + v1) & _SIP_MASK
        v1 = (v1 << 13 | v1 >> 51) & _SIP_MASK ^ v0
        v0 = (v0 << 32 | v0 >> 32) & _SIP_MASK
        v2 = (v2 + v3) & _SIP_MASK
        v3 = (v3 << 16 | v3 >> 48) & _SIP_MASK ^ v2
        v0 = (v0 + v3) & _SIP_MASK
        v3 = (v3 << 21 | v3 >> 43) & _SIP_MASK ^ v0
        v2 = (v2 + v1) & _SIP_MASK
        v1 = (v1 << 17 | v1 >> 47) & _SIP_MASK ^ v2
        v2 = (v2 << 32 | v2 >> 32) & _SIP_MASK
    return v0, v1, v2, v3
