"""Finds the rows of a table that a refresh lets die, and marks them, on the machines of tasks.

A row dies if its key has a newer record, or if its record lies below the log start of its partition: nothing
of it would be in a table that is made anew. Only keys, partitions and offsets of the table are read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from stratalog.base.errors import LogStoreError
from stratalog.pipeline.jobs.cluster import Cluster, shares
from stratalog.pipeline.lake.lake_table import ChangedFile, RowRemoval, TableFile
from stratalog.pipeline.lake.row_files import read_columns
from stratalog.pipeline.lake.table_place import OpenTable

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

_READ_COLUMNS = ["key", "partition", "offset"]


@dataclass(frozen=True, slots=True)
class DeadRowSearch:
    """A search in files. Immutable, pickled to the machines."""

    open_table: OpenTable
    removal: RowRemoval
    refresh_id: str
    keys: Mapping[int, AnyArray]
    """For each partition the keys with newer records."""
    log_starts: Mapping[int, int]

    def __call__(self, files: Sequence[TableFile]) -> list[ChangedFile] | LogStoreError:
        """Let rows of these files die; returns the files that changed."""
        try:
            with closing(self.open_table()) as store:
                changed: list[ChangedFile] = []
                for file in files:
                    found = self._found(list(read_columns(store, file, _READ_COLUMNS)))
                    before = self.removal.dead_rows(store, file)
                    dead = before | found
                    if len(dead) > len(before):
                        changed.append(self.removal.remove(store, file, dead, self.refresh_id))
                return changed
        except LogStoreError as error:
            return error

    def _found(self, parts: Sequence[pa.Table]) -> BitMap:
        """The positions of rows, dead before or not, that a table made anew would not have."""
        found = BitMap()
        position = 0
        for part in parts:
            partitions = part.column("partition").to_numpy()
            offsets = part.column("offset").to_numpy()
            is_dead = np.zeros(part.num_rows, bool)
            for partition in map(int, np.unique(partitions)):
                is_mine = partitions == partition
                is_dead |= is_mine & (offsets < self.log_starts.get(partition, 0))
                keys = self.keys.get(partition)
                if keys is not None:
                    is_changed = pc.is_in(part.column("key"), value_set=keys)
                    is_dead |= is_mine & is_changed.to_numpy()
            found |= BitMap((np.flatnonzero(is_dead) + position).astype(np.uint32))
            position += part.num_rows
        return found


def search_dead_rows(
    cluster: Cluster, search: DeadRowSearch, files: Sequence[TableFile]
) -> list[ChangedFile]:
    """Let rows of files die on the cluster; returns the files that changed, by their paths. Raises
    StoreError, and LogStoreError if the cluster gives up."""
    if not files:
        return []
    by_size = sorted(files, key=lambda file: (-file.size_bytes, file.path))
    changed: list[ChangedFile] = []
    for done in cluster.each(search, list(shares(by_size, cluster))):
        if isinstance(done, LogStoreError):
            raise done
        changed += done
    return sorted(changed, key=lambda one: one.before.path)
