"""The formats of tables, and their rows as other programs read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import duckdb
import pyarrow as pa
from pyiceberg.table import StaticTable

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.formats.delta_table import DeltaTable
from stratalog.pipeline.lake.formats.iceberg_table import IcebergTable
from stratalog.pipeline.lake.formats.parquet_table import ParquetTable
from stratalog.pipeline.lake.lake_table import LakeTable
from stratalog.testing.manual_clock import ManualClock
from tests.support.lake.parquet_rows import listed_files

Rows = list[dict[str, Any]]


class TableFormat(NamedTuple):
    """A format of tables."""

    name: str
    make: Callable[[ObjectStore, ManualClock, pa.Schema], LakeTable]
    read: Callable[[Path], Rows]
    """The rows of a table in a directory, by a reader that shares no code with the writer."""


def _delta_rows(directory: Path) -> Rows:
    rows: Rows = pa.table(deltalake.DeltaTable(str(directory)).scan().read_all()).to_pylist()
    return rows


def _iceberg_rows(directory: Path) -> Rows:
    rows: Rows = StaticTable.from_metadata(f"file://{directory}").scan().to_arrow().to_pylist()
    return rows


def _parquet_rows(directory: Path) -> Rows:
    files = [str(directory / name) for name in listed_files((directory / "_latest.json").read_bytes())]
    if not files:
        return []
    found = duckdb.sql("select * from read_parquet($files)", params={"files": files})
    assert found is not None
    rows: Rows = found.to_arrow_table().to_pylist()
    return rows


def _parquet(store: ObjectStore, _clock: ManualClock, _schema: pa.Schema) -> LakeTable:
    return ParquetTable(store)


FORMATS = (
    TableFormat("parquet", _parquet, _parquet_rows),
    TableFormat("delta", DeltaTable, _delta_rows),
    TableFormat("iceberg", IcebergTable, _iceberg_rows),
)
