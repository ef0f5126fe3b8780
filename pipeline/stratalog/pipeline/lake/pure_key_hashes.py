"""The hashes of a column of keys without compiled kernels, by numpy: no key becomes a Python object.

Words of eight bytes are mixed into the hashes of some thousand keys at once, the first words of all, then the
second ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.base.filesystem import Buffer

    Hashes = NDArray[np.uint64]
    """Numbers that are spread evenly over 64 bits."""

_WORD_BYTES = 8
_ROWS_AT_ONCE = 1 << 13
"""So many hashes stay in the caches of a processor."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27))
_HALF = np.uint64(32)


def hash_key_column(
    bounds: NDArray[np.int32 | np.int64],
    is_wide: bool,
    data: Buffer,
    partitions: NDArray[np.int32],
    max_bytes: int,
    hashes: Hashes,
) -> int:
    """Write the hashes of keys and their partitions to `hashes`. Key i lies in the data from bound i to bound
    i + 1; the bounds rise, and have 64 bits if they are wide. A key of more than `max_bytes` bytes counts as
    hash 0 before its partition is mixed in; returns how many these are."""
    del is_wide
    text = np.frombuffer(data, np.uint8)
    long_count = 0
    for first in range(0, len(hashes), _ROWS_AT_ONCE):
        part = bounds[first : first + _ROWS_AT_ONCE + 1].astype(np.int64)
        found = _text_hashes(text[part[0] : part[-1]], part - part[0], max_bytes)
        is_long = np.diff(part) > max_bytes
        found[is_long] = 0
        long_count += int(np.count_nonzero(is_long))
        # Distinct for each partition, because the multiplier is odd.
        seeds = partitions[first : first + _ROWS_AT_ONCE].astype(np.uint64) * _MULTIPLIER
        hashes[first : first + _ROWS_AT_ONCE] = found ^ seeds
    return long_count


def _text_hashes(text: NDArray[np.uint8], bounds: NDArray[np.int64], max_bytes: int) -> Hashes:
    """The hashes of keys that lie one behind the other, between these bounds, without their partitions."""
    # The last word of a key may end behind all keys.
    padded = np.concatenate([text, np.zeros(_WORD_BYTES, np.uint8)])
    # A word begins at each byte.
    words = np.ndarray(len(text) + 1, "<u8", padded, strides=(1,))
    starts, sizes = bounds[:-1], np.diff(bounds)
    least_bytes = int(sizes.min())
    hashes = _spread(sizes.astype(np.uint64))
    for position in range(0, min(int(sizes.max()), max_bytes), _WORD_BYTES):
        if position + _WORD_BYTES <= least_bytes:
            hashes = _spread(hashes ^ words[starts + position])
            continue
        open_rows = np.flatnonzero(sizes > position)
        unused_bytes = np.maximum(position + _WORD_BYTES - sizes[open_rows], 0)
        # The bytes of a word come lowest first: those behind the key go.
        found = words[starts[open_rows] + position] << (8 * unused_bytes).astype(np.uint64)
        hashes[open_rows] = _spread(hashes[open_rows] ^ found)
    return hashes


def _spread(numbers: Hashes) -> Hashes:
    """Other numbers, each of whose bits depends on all bits; different ones stay different."""
    for shift, mixer in zip(_SHIFTS, _MIXERS, strict=True):
        numbers = numbers ^ (numbers >> shift)
        numbers *= mixer
    return numbers ^ (numbers >> _HALF)
