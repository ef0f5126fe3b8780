"""Finds the rows of a table that a refresh lets die, and marks them, on the machines of tasks.

A row dies if its key has a newer record, or if its record lies below the log start of its partition: nothing
of it would be in a table that is made anew. Only keys and partitions of the table are read, and offsets if a
log start has moved.

    scan     the rows whose hash passes the filter of the changed keys are candidates; the others live
    settle   candidates are compared with the keys, in the order of the hash

A task holds the filter, so many bytes of candidates, and the dead rows of its files.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from stratalog.base.errors import LogStoreError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.jobs.cluster import Cluster, shares
from stratalog.pipeline.lake.changed_keys import ChangedKeys, hashed_keys
from stratalog.pipeline.lake.key_hashes import key_hashes
from stratalog.pipeline.lake.lake_table import ChangedFile, RowRemoval, TableFile
from stratalog.pipeline.lake.row_files import read_columns
from stratalog.pipeline.lake.table_place import OpenTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

CANDIDATE_BYTES = 64 << 20
"""So many bytes of candidates are settled at once, about."""
TASK_ROWS = 2 << 20
"""The keys of so many rows are read in a few times of what Spark needs to start a task."""
TASK_BYTES = 512 << 20
"""Files of fewer rows may have large keys."""


@dataclass(frozen=True, slots=True)
class DeadRowSearch:
    """A search in files. Immutable, pickled to the machines."""

    open_table: OpenTable
    removal: RowRemoval
    refresh_id: str
    keys: ChangedKeys
    """The keys with newer records."""
    moved_starts: Mapping[int, int]
    """The log starts of partitions that have moved since the table was made."""

    @property
    def is_idle(self) -> bool:
        """Whether no row can die."""
        return not self.keys.files and not self.moved_starts

    def divided(self, cluster: Cluster, files: Sequence[TableFile]) -> list[Sequence[TableFile]]:
        """The files, of which there is one at least, divided among tasks."""
        by_size = sorted(files, key=lambda file: (-file.size_bytes, file.path))
        row_count = sum(file.row_count for file in files)
        size_bytes = sum(file.size_bytes for file in files)
        task_count = max(-(-row_count // TASK_ROWS), -(-size_bytes // TASK_BYTES))
        return list(shares(by_size, cluster, None if self.removal.writes_rows else task_count))

    def __call__(self, files: Sequence[TableFile]) -> list[ChangedFile] | LogStoreError:
        """Let rows of these files die; returns the files that changed."""
        try:
            with closing(self.open_table()) as store:
                changed: list[ChangedFile] = []
                for file, found in zip(files, self._found(store, files), strict=True):
                    before = self.removal.dead_rows(store, file)
                    dead = before | found
                    if len(dead) > len(before):
                        changed.append(self.removal.remove(store, file, dead, self.refresh_id))
                return changed
        except LogStoreError as error:
            return error

    def _found(self, store: ObjectStore, files: Sequence[TableFile]) -> list[BitMap]:
        """The rows of each file, dead before or not, that a table made anew would not have."""
        found = [BitMap() for _ in files]
        candidates = _Candidates(store, self.keys, found)
        key_filter = self.keys.filter(store) if self.keys.files else None
        names = ["partition", *["key"] * bool(self.keys.files), *["offset"] * bool(self.moved_starts)]
        for number, file in enumerate(files):
            position = 0
            for part in read_columns(store, file, names):
                if self.moved_starts:
                    found[number] |= _positions(_below(part, self.moved_starts), position)
                if key_filter is not None:
                    hashes = key_hashes(part)
                    may_die = key_filter.candidates(hashes)
                    hashed = hashed_keys(hashes[may_die], part.take(may_die))
                    candidates.add(number, position + may_die, hashed)
                position += part.num_rows
        candidates.settle()
        return found


class _Candidates:
    """Rows whose keys may have changed. Not thread-safe: one task uses it."""

    def __init__(self, store: ObjectStore, keys: ChangedKeys, found: list[BitMap]) -> None:
        self._store = store
        self._keys = keys
        self._found = found
        self._rows: list[pa.Table] = []
        self._bytes = 0

    def add(self, number: int, positions: NDArray[np.int64], hashed: pa.Table) -> None:
        """Take rows of a file, by its number and their positions in it. Raises StoreError."""
        if not hashed.num_rows:
            return
        rows = hashed.append_column("position", pa.array(positions, pa.int64()))
        rows = rows.append_column("file", pa.array(np.full(len(positions), number), pa.int64()))
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= CANDIDATE_BYTES:
            self.settle()

    def settle(self) -> None:
        """Note those among the found rows whose keys have changed. Raises StoreError."""
        if not self._rows:
            return
        rows = pa.concat_tables(self._rows)
        self._rows, self._bytes = [], 0
        rows = rows.take(np.argsort(rows.column("hash").to_numpy(), kind="stable"))
        has_changed = self._keys.have(self._store, rows)
        files = rows.column("file").to_numpy()[has_changed]
        positions = rows.column("position").to_numpy()[has_changed]
        for number in np.unique(files):
            self._found[int(number)] |= _positions(positions[files == number], 0)


def _below(rows: pa.Table, starts: Mapping[int, int]) -> NDArray[np.int64]:
    """The rows that lie below the log starts of their partitions."""
    limits = np.zeros(max(starts) + 2, np.int64)
    for partition, offset in starts.items():
        limits[partition] = offset
    # The last limit is that of all other partitions.
    partitions = np.minimum(rows.column("partition").to_numpy(), len(limits) - 1)
    return np.flatnonzero(rows.column("offset").to_numpy() < limits[partitions])


def _positions(rows: NDArray[np.int64], first: int) -> BitMap:
    return BitMap((rows + first).astype(np.uint32))


def search_dead_rows(
    cluster: Cluster, search: DeadRowSearch, files: Sequence[TableFile]
) -> list[ChangedFile]:
    """Let rows of files die on the cluster; returns the files that changed, by their paths. Raises
    StoreError, and LogStoreError if the cluster gives up."""
    if not files or search.is_idle:
        return []
    changed: list[ChangedFile] = []
    for done in cluster.each(search, search.divided(cluster, files)):
        if isinstance(done, LogStoreError):
            raise done
        changed += done
    return sorted(changed, key=lambda one: one.before.path)
