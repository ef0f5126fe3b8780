"""SipHash-2-4 with a 128-bit result, in plain Python (after the paper of Aumasson and Bernstein)."""

from __future__ import annotations

import struct

_MASK = 0xFFFFFFFFFFFFFFFF
KEY_BYTES = 16

_State = tuple[int, int, int, int]


def siphash128(key16: bytes, data: bytes) -> tuple[int, int]:
    """The result's first and last eight bytes as little-endian numbers. `key16` is the 16-byte key."""
    assert len(key16) == KEY_BYTES, "a hash key has 16 bytes"
    k0, k1 = struct.unpack("<QQ", key16)
    state = (
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    )
    size_bytes = len(data)
    tail_position = size_bytes & ~7
    for (word,) in struct.iter_unpack("<Q", data[:tail_position]):
        state = _absorb(state, word)
    last = int.from_bytes(data[tail_position:], "little") | (size_bytes & 0xFF) << 56
    v0, v1, v2, v3 = _absorb(state, last)
    state = _rounds((v0, v1, v2 ^ 0xEE, v3), 4)
    high = state[0] ^ state[1] ^ state[2] ^ state[3]
    v0, v1, v2, v3 = state
    state = _rounds((v0, v1 ^ 0xDD, v2, v3), 4)
    return high, state[0] ^ state[1] ^ state[2] ^ state[3]


def _absorb(state: _State, word: int) -> _State:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _rounds((v0, v1, v2, v3 ^ word), 2)
    return v0 ^ word, v1, v2, v3


def _rounds(state: _State, count: int) -> _State:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v1 = (v1 << 13 | v1 >> 51) & _MASK ^ v0
        v0 = (v0 << 32 | v0 >> 32) & _MASK
        v2 = (v2 + v3) & _MASK
        v3 = (v3 << 16 | v3 >> 48) & _MASK ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = (v3 << 21 | v3 >> 43) & _MASK ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = (v1 << 17 | v1 >> 47) & _MASK ^ v2
        v2 = (v2 << 32 | v2 >> 32) & _MASK
    return v0, v1, v2, v3
