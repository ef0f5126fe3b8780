"""MurmurHash2, 32 bits, with the seed of Kafka's clients, in plain Python."""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The hash as an unsigned number."""
    size_bytes = len(key)
    state = (_SEED ^ size_bytes) & _MASK
    tail_position = size_bytes & ~3
    for position in range(0, tail_position, 4):
        word = int.from_bytes(key[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ (word >> _SHIFT)) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    if tail_position < size_bytes:
        state = (state ^ int.from_bytes(key[tail_position:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ (state >> 13)) * _MULTIPLIER & _MASK
    return state ^ (state >> 15)
