"""Chooses the partition of a key as Kafka's clients do."""

from __future__ import annotations

from stratalog.record.native.kernels import murmur2

_POSITIVE_MASK = 0x7FFFFFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of `key` among `partition_count`: murmur2 without its sign bit, modulo the count."""
    assert partition_count > 0
    return (murmur2(key) & _POSITIVE_MASK) % partition_count
