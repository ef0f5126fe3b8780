"""The keys with newer records than a table has, in files beside it, for the tasks that look for old rows.

    _stratalog/keys/ID/HASH-000.parquet    hash, partition and key, sorted by the hash

The task that merges a range of the hash writes its keys, so the files have ranges that do not overlap. The
name is the first hash. Neither the driver nor a task holds all keys: a task reads the hashes to a filter, one
file after another, and then compares the rows that pass with the keys themselves. The files go at the end of
the refresh.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.key_filter import KeyFilter
from stratalog.pipeline.lake.key_hashes import key_hashes
from stratalog.pipeline.lake.lake_table import TableFile
from stratalog.pipeline.lake.refresh_files import keys_directory
from stratalog.pipeline.lake.row_files import RowFiles, read_columns
from stratalog.pipeline.lake.table_place import OpenTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.pipeline.lake.pure_key_hashes import Hashes

_FIELDS: list[Any] = [
    pa.field("hash", pa.uint64()),
    pa.field("partition", pa.int32()),
    pa.field("key", pa.binary()),
]
KEY_SCHEMA = pa.schema(_FIELDS)
"""The columns of keys with their hashes."""
_ROWS_A_BATCH = 1 << 16


class KeyFile(NamedTuple):
    """A file of keys. Pickled to the driver, and to the tasks."""

    file: TableFile
    first_hash: int
    last_hash: int


@dataclass(frozen=True, slots=True)
class KeyWriter:
    """Writes the keys of a range. Immutable, pickled to the machines."""

    open_table: OpenTable
    refresh_id: str

    def write(self, rows: pa.Table) -> KeyFile:
        """Write the partitions and keys of rows; there is at least one. The same rows make the same file.
        Raises StoreError."""
        hashes = key_hashes(rows)
        order = np.argsort(hashes, kind="stable")
        hashes, hashed = hashes[order], hashed_keys(hashes[order], rows.take(order))
        with closing(self.open_table()) as store:
            prefix = f"{keys_directory(self.refresh_id)}{int(hashes[0]):016x}"
            output = RowFiles(store, KEY_SCHEMA, prefix, max_bytes=1 << 62)
            for batch in hashed.to_batches(max_chunksize=_ROWS_A_BATCH):
                output.add(batch)
            (written,) = output.close()
        return KeyFile(written.file, int(hashes[0]), int(hashes[-1]))


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """Files of keys. Immutable, pickled to the tasks."""

    files: Sequence[KeyFile] = ()

    @property
    def count(self) -> int:
        """The number of the keys."""
        return sum(one.file.row_count for one in self.files)

    def filter(self, store: ObjectStore) -> KeyFilter:
        """A filter with the hashes of all keys. Raises StoreError."""
        found = KeyFilter(self.count)
        for one in self.files:
            for part in read_columns(store, one.file, ["hash"]):
                found.add(part.column("hash").to_numpy())
        return found

    def have(self, store: ObjectStore, rows: pa.Table) -> NDArray[np.bool_]:
        """Whether these are the keys of rows with the columns of `KEY_SCHEMA`, sorted by the hash. Raises
        StoreError."""
        hashes = rows.column("hash").to_numpy()
        found = np.zeros(len(hashes), np.bool_)
        for one in self.files:
            first, end = _between(hashes, one.first_hash, one.last_hash)
            if first == end:
                continue
            for part in read_columns(store, one.file, KEY_SCHEMA.names):
                known = part.column("hash").to_numpy()
                first, end = _between(hashes, known[0], known[-1])
                found[first:end] |= _matches(rows.slice(first, end - first), part.combine_chunks())
        return found


def hashed_keys(hashes: Hashes, rows: pa.Table) -> pa.Table:
    """The columns of `KEY_SCHEMA`: the hashes, and partition and key of the rows that they are of."""
    columns: list[Any] = [pa.array(hashes, pa.uint64()), rows.column("partition"), rows.column("key")]
    return pa.Table.from_arrays(columns, schema=KEY_SCHEMA)


def _between(hashes: Any, first_hash: int, last_hash: int) -> tuple[int, int]:
    """The places in sorted hashes of those from the first to the last one."""
    first = np.searchsorted(hashes, np.uint64(first_hash), side="left")
    return int(first), int(np.searchsorted(hashes, np.uint64(last_hash), side="right"))


def _matches(rows: pa.Table, known: pa.Table) -> NDArray[np.bool_]:
    """Whether each of some rows has a known key; both are sorted by the hash."""
    hashes, known_hashes = rows.column("hash").to_numpy(), known.column("hash").to_numpy()
    partitions, known_partitions = rows.column("partition").to_numpy(), known.column("partition").to_numpy()
    found = np.zeros(len(hashes), np.bool_)
    places = np.searchsorted(known_hashes, hashes, side="left")
    ends = np.searchsorted(known_hashes, hashes, side="right")
    # Nearly always one key has the hash of a row, or none.
    open_rows = np.flatnonzero(places < ends)
    while len(open_rows):
        candidates = places[open_rows]
        keys: Any = pc.equal(rows.column("key").take(open_rows), known.column("key").take(candidates))
        is_same = keys.to_numpy() & (partitions[open_rows] == known_partitions[candidates])
        found[open_rows[is_same]] = True
        places[open_rows] += 1
        open_rows = open_rows[~is_same & (places[open_rows] < ends[open_rows])]
    return found
