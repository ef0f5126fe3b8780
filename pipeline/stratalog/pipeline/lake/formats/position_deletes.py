"""Position deletes of Iceberg: a Parquet file for each data file with dead rows, which names it and them.

file_path   location of the data file
pos         number of a dead row, in order
"""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID, uuid5

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.lake_table import ChangedFile, DeadRows, TableFile
from stratalog.pipeline.lake.refresh_files import data_directory
from stratalog.pipeline.lake.table_rows import FIELD_ID

PATH_FIELD = 2147483546
POSITION_FIELD = 2147483545
"""The numbers that Iceberg reserves for the two columns."""

_FIELDS: list[Any] = [
    pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(PATH_FIELD).encode()}),
    pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POSITION_FIELD).encode()}),
]
_SCHEMA = pa.schema(_FIELDS)


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """Implements `RowRemoval`. Immutable, pickled to the tasks."""

    location: str
    """That of the table."""

    @property
    def writes_rows(self) -> bool:
        """No row is: dead ones get a mark."""
        return False

    def dead_rows(self, store: ObjectStore, file: TableFile) -> BitMap:
        """The rows that the file of deletes names. Raises StoreError."""
        if file.dead is None:
            return BitMap()
        table = pq.read_table(pa.BufferReader(store.get(file.dead.path).data), columns=["pos"])
        return BitMap(table.column("pos").to_numpy().astype(np.uint32))

    def remove(self, store: ObjectStore, file: TableFile, dead: BitMap, refresh_id: str) -> ChangedFile:
        """Write a file with all dead rows, which replaces the former one. Raises StoreError."""
        if len(dead) == file.row_count:
            return ChangedFile(file)
        path = f"{data_directory(refresh_id)}{uuid5(UUID(refresh_id), file.path)}.deletes.parquet"
        names = pa.repeat(pa.scalar(f"{self.location}/{file.path}"), len(dead))
        positions = pa.array(np.array(dead.to_array(), np.int64))
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.Table.from_arrays([names, positions], schema=_SCHEMA),
            sink,
            compression="zstd",
            use_dictionary=cast("Any", ["file_path"]),
            column_encoding={"pos": "DELTA_BINARY_PACKED"},
        )
        data = sink.getvalue()
        store.put(path, data.to_pybytes())
        return ChangedFile(file, marked=file._replace(dead=DeadRows(path, 0, data.size, len(dead))))
