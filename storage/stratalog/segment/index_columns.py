"""Index files as columns of numbers.

The files hold entry after entry, big-endian; a search wants one column of them, as numbers of this machine.
Going from one to the other takes a few steps over all entries at once, and none over a single one.
"""

from __future__ import annotations

import sys
from array import array
from itertools import islice
from operator import le, lt

from stratalog.base.filesystem import Buffer

WORD_BYTES = 4


def in_network_order(column: array[int]) -> array[int]:
    """A copy with the bytes of each number the other way round, where this machine has them so. Its own
    inverse."""
    swapped = column[:]
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped


def words_of(data: Buffer) -> array[int]:
    """The 32-bit words of bytes, each in the order that it has there."""
    words = array("i")
    words.frombytes(data)
    assert words.itemsize == WORD_BYTES
    return words


def ascends(column: array[int]) -> bool:
    """Each number is above the one before it."""
    return all(map(lt, column, islice(column, 1, None)))


def never_descends(column: array[int]) -> bool:
    """No number is below the one before it."""
    return all(map(le, column, islice(column, 1, None)))
