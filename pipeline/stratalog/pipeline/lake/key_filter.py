"""A set of hashes in few bytes, which also has some that were not added.

A word of 64 bits for each share of all hashes, and in it two bits for each hash that was added. There are at
least `_BITS_A_KEY` bits for each of these, so that at most one in 50 others is in the set by mistake. Of more
than 33 million hashes there are fewer bits, and more mistakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.pipeline.lake.pure_key_hashes import Hashes

_BITS_A_KEY = 16
_WORD_BITS = 6
"""The power of two."""
_MIN_BITS = 13
_MAX_BITS = 29
"""The power of two: 64 MiB."""
_HASHES_AT_ONCE = 1 << 13
"""So many stay in the caches of a processor."""
_PLACE_MASK = np.uint64((1 << _WORD_BITS) - 1)
_SECOND_SHIFT = np.uint64(_WORD_BITS)
_ONE = np.uint64(1)


class KeyFilter:
    """A set of hashes. Not thread-safe: one task uses it."""

    def __init__(self, key_count: int) -> None:
        """For about so many hashes."""
        bits = min(max((key_count * _BITS_A_KEY).bit_length(), _MIN_BITS), _MAX_BITS) - _WORD_BITS
        self._shift = np.uint64(64 - bits)
        self._words = np.zeros(1 << bits, np.uint64)

    def add(self, hashes: Hashes) -> None:
        """Add hashes, which are sorted."""
        if not len(hashes):
            return
        places = hashes >> self._shift
        firsts = np.flatnonzero(np.diff(places, prepend=places[0] + _ONE))
        bits = (_ONE << (hashes & _PLACE_MASK)) | (_ONE << (hashes >> _SECOND_SHIFT & _PLACE_MASK))
        self._words[places[firsts]] |= np.bitwise_or.reduceat(bits, firsts)

    def candidates(self, hashes: Hashes) -> NDArray[np.int64]:
        """The places of those hashes that may have been added: all that were, and few others."""
        parts = (
            first + self._candidates(hashes[first : first + _HASHES_AT_ONCE])
            for first in range(0, len(hashes), _HASHES_AT_ONCE)
        )
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _candidates(self, hashes: Hashes) -> NDArray[np.int64]:
        words = self._words[hashes >> self._shift]
        # Most hashes go by the first bit.
        places = np.flatnonzero(words >> (hashes & _PLACE_MASK) & _ONE)
        second = hashes[places] >> _SECOND_SHIFT & _PLACE_MASK
        found: NDArray[np.int64] = places[(words[places] >> second & _ONE).astype(np.bool_)]
        return found
