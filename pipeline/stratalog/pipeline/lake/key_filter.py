"""A set of hashes in few bytes, which also has some that were not added.

A bit for each share of all hashes: at least `_BITS_A_KEY` bits for each one that is added, so that at most
one in 16 others is in the set by mistake. Of more than 33 million there are fewer bits, and more mistakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.pipeline.lake.key_hashes import Hashes

_BITS_A_KEY = 16
_MIN_BITS = 13
_MAX_BITS = 29
"""The power of two: 64 MiB."""
_BYTE_SHIFT, _BIT_MASK = np.uint64(3), np.uint64(7)


class KeyFilter:
    """A set of hashes. Not thread-safe: one task uses it."""

    def __init__(self, key_count: int) -> None:
        """For about so many hashes."""
        bits = min(max((key_count * _BITS_A_KEY).bit_length(), _MIN_BITS), _MAX_BITS)
        self._shift = np.uint64(64 - bits)
        self._bytes = np.zeros(1 << (bits - 3), np.uint8)

    def add(self, hashes: Hashes) -> None:
        """Add hashes, which are sorted."""
        if not len(hashes):
            return
        slots = hashes >> self._shift
        places = slots >> _BYTE_SHIFT
        firsts = np.flatnonzero(np.diff(places, prepend=places[0] + np.uint64(1)))
        bits = np.left_shift(np.uint8(1), (slots & _BIT_MASK).astype(np.uint8))
        self._bytes[places[firsts]] |= np.bitwise_or.reduceat(bits, firsts)

    def may_have(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Whether each of the hashes may have been added: those that were are found."""
        slots = hashes >> self._shift
        bits = self._bytes[slots >> _BYTE_SHIFT] >> (slots & _BIT_MASK).astype(np.uint8)
        found: NDArray[np.bool_] = (bits & np.uint8(1)).astype(np.bool_)
        return found
