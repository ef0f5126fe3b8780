"""Writes the last records of keys as rows of a table, on the machine of a task."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.lake_table import WrittenFile
from stratalog.pipeline.lake.refresh_files import bad_directory
from stratalog.pipeline.lake.row_files import RowFiles
from stratalog.pipeline.lake.table_place import OpenTable
from stratalog.pipeline.lake.table_rows import BAD_SCHEMA, table_schema
from stratalog.pipeline.lake.values.value_format import ValueFormat


class WrittenRows(NamedTuple):
    """The result of one writer. Pickled to the driver."""

    number: int
    files: tuple[WrittenFile, ...]
    bad_files: tuple[WrittenFile, ...]
    row_count: int
    tombstone_count: int
    bad_count: int

    @property
    def record_count(self) -> int:
        """Records that were given to the writer."""
        return self.row_count + self.tombstone_count + self.bad_count


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Makes the outputs of writers. Immutable, pickled to the machines."""

    open_table: OpenTable
    refresh_id: str
    values: ValueFormat
    rows_directory: str
    """The prefix of the files of rows."""

    @contextmanager
    def opened(self, number: int) -> Generator[RowOutput]:
        """The output of the writer with this number."""
        with closing(self.open_table()) as store:
            yield RowOutput(self, store, number)


class RowOutput:
    """Writes the rows of one writer. Not thread-safe: one task uses it."""

    def __init__(self, writer: RowWriter, store: ObjectStore, number: int) -> None:
        name = f"{number:05}"
        self._writer = writer
        self._number = number
        self._schema = table_schema(writer.values.arrow_type)
        self._rows = RowFiles(store, self._schema, f"{writer.rows_directory}{name}")
        self._bad = RowFiles(store, BAD_SCHEMA, f"{bad_directory(writer.refresh_id)}{name}")
        self._row_count = self._tombstone_count = self._bad_count = 0

    def add(self, records: pa.RecordBatch) -> None:
        """Write records, the last ones of their keys, with key, partition, offset, timestamp and value: those
        without a value are no rows. Raises StoreError."""
        if not records.num_rows:
            return
        living = records.filter(records.column("value").is_valid())
        self._tombstone_count += records.num_rows - living.num_rows
        decoded = self._writer.values.decode(living.column("value"))
        columns = [*living.select(BAD_SCHEMA.names[:4]).columns, decoded.column]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if decoded.bad:
            bad = pa.array([one.place for one in decoded.bad], pa.int64())
            errors = pa.array([one.error for one in decoded.bad], pa.string())
            set_aside = living.select(BAD_SCHEMA.names[:5]).take(bad)
            self._bad.add(pa.RecordBatch.from_arrays([*set_aside.columns, errors], schema=BAD_SCHEMA))
            is_good = np.ones(rows.num_rows, bool)
            is_good[bad.to_numpy()] = False
            rows = rows.filter(pa.array(is_good))
        self._bad_count += len(decoded.bad)
        self._row_count += rows.num_rows
        self._rows.add(rows)

    def close(self) -> WrittenRows:
        """Write all rows. Raises StoreError."""
        return WrittenRows(
            number=self._number,
            files=tuple(self._rows.close()),
            bad_files=tuple(self._bad.close()),
            row_count=self._row_count,
            tombstone_count=self._tombstone_count,
            bad_count=self._bad_count,
        )
