"""The formats that a topic can be materialized to."""

from __future__ import annotations

from enum import Enum

import pyarrow as pa

from stratalog.base.clock import Clock
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.lake_table import LakeTable
from stratalog.pipeline.lake.table_rows import table_schema


class TableFormat(Enum):
    """A format of tables, by its name."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"

    def table(self, store: ObjectStore, clock: Clock, value_type: pa.DataType) -> LakeTable:
        """The table at the root of a store, with values of this type. Raises UnsupportedOperationError for a
        type that the format lacks."""
        schema = table_schema(value_type)
        match self:
            case TableFormat.PARQUET:
                from stratalog.pipeline.lake.formats.parquet_table import ParquetTable

                return ParquetTable(store)
            case TableFormat.DELTA:
                from stratalog.pipeline.lake.formats.delta_table import DeltaTable

                return DeltaTable(store, clock, schema)
            case TableFormat.ICEBERG:
                from stratalog.pipeline.lake.formats.iceberg_table import IcebergTable

                return IcebergTable(store, schema)
