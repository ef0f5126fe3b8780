"""Hashes of keys, by which tasks divide them: each range has the same share of all hashes.

A key in two partitions is two keys, so the partition is hashed, too. Two keys may have the same hash: what
depends on a key compares its bytes.

All keys of a table are hashed, so none becomes a Python object: a compiled kernel hashes them where Arrow has
them, or numpy if there is no kernel. Both make the same hashes, because a refresh may have tasks with either.
The few longest keys go one by one.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from stratalog.record.native.kernels import NATIVE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.pipeline.lake.pure_key_hashes import Hashes

if TYPE_CHECKING or not NATIVE:
    from stratalog.pipeline.lake.pure_key_hashes import hash_key_column
else:
    from stratalog.record.native._kernels import hash_key_column

_HASH_BYTES = 8
_MAX_BYTES = 256
"""Longer keys are hashed one by one."""
_HALF = np.uint64(32)


def key_hashes(rows: pa.Table | pa.RecordBatch) -> Hashes:
    """The hashes of rows with the columns partition and key: the same on each machine."""
    keys: Any = rows.column("key")
    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    partitions = np.ascontiguousarray(rows.column("partition").to_numpy(), np.int32)
    hashes = np.empty(len(partitions), np.uint64)
    first = 0
    for chunk in chunks:
        end = first + len(chunk)
        if len(chunk):
            _hash_array(chunk, partitions[first:end], hashes[first:end])
        first = end
    return hashes


def range_numbers(hashes: Hashes, count: int) -> NDArray[np.int64]:
    """The numbers of the ranges of hashes, in their order, if there are so many ranges."""
    return (((hashes >> _HALF) * np.uint64(count)) >> _HALF).astype(np.int64)


def _hash_array(keys: Any, partitions: NDArray[np.int32], hashes: Hashes) -> None:
    """Write the hashes of an array of keys."""
    if not pa.types.is_binary(keys.type) and not pa.types.is_large_binary(keys.type):
        keys = keys.cast(pa.large_binary())
    is_wide = pa.types.is_large_binary(keys.type)
    _, places, data = keys.buffers()
    bounds: Any = np.frombuffer(places, np.int64 if is_wide else np.int32)
    bounds = bounds[keys.offset : keys.offset + len(keys) + 1]
    text = data or b""
    if not hash_key_column(bounds, is_wide, text, partitions, _MAX_BYTES, hashes):
        return
    for row in np.flatnonzero(np.diff(bounds) > _MAX_BYTES):
        key = memoryview(text)[bounds[row] : bounds[row + 1]]
        found = hashlib.blake2b(key, digest_size=_HASH_BYTES).digest()
        hashes[row] ^= np.uint64(int.from_bytes(found))
