"""Hashes of keys, by which tasks divide them: each range has the same share of all hashes.

A key in two partitions is two keys, so the partition is hashed, too. Two keys may have the same hash: what
depends on a key compares its bytes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    """Numbers that are spread evenly over 64 bits."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


def key_hashes(rows: pa.Table | pa.RecordBatch) -> Hashes:
    """The hashes of rows with the columns partition and key: the same on each machine."""
    # Its import takes long, and drivers need no hashes.
    from pandas.util import hash_array

    keys: Any = rows.column("key").to_numpy(zero_copy_only=False)
    partitions = rows.column("partition").to_numpy().astype(np.uint64)
    # Distinct for each partition, because the multiplier is odd.
    return hash_array(keys, categorize=False) ^ (partitions * _MULTIPLIER)


def range_numbers(hashes: Hashes, count: int) -> NDArray[np.int64]:
    """The numbers of the ranges of hashes, in their order, if there are so many ranges."""
    return (((hashes >> _HALF) * np.uint64(count)) >> _HALF).astype(np.int64)
