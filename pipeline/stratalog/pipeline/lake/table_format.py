"""The formats that a topic can be materialized to."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import pyarrow as pa

from stratalog.base.clock import Clock
from stratalog.base.errors import InvalidRequestError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.kept_versions import require_properties
from stratalog.pipeline.lake.lake_table import LakeTable
from stratalog.pipeline.lake.table_rows import table_schema
from stratalog.remote.store_layout import IDENTITY_KEY


class TableFormat(Enum):
    """A format of tables, by its name."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"

    def table(
        self,
        store: ObjectStore,
        clock: Clock,
        value_type: pa.DataType,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> LakeTable:
        """The table at the root of a store, with values of this type. A commit sets `properties`, which are
        those of `kept_versions`. Raises UnsupportedOperationError for a type that the format lacks,
        InvalidConfigError for properties that it lacks, InvalidRequestError if a table of another format is
        there, or a store of topics, and StoreError."""
        require_properties(self.value, properties)
        self.require_own(store)
        schema = table_schema(value_type)
        match self:
            case TableFormat.PARQUET:
                from stratalog.pipeline.lake.formats.parquet_table import ParquetTable

                return ParquetTable(store)
            case TableFormat.DELTA:
                from stratalog.pipeline.lake.formats.delta_table import DeltaTable

                return DeltaTable(store, clock, schema, properties)
            case TableFormat.ICEBERG:
                from stratalog.pipeline.lake.formats.iceberg_table import IcebergTable

                return IcebergTable(store, clock, schema, properties)

    def require_own(self, store: ObjectStore) -> None:
        """Raise InvalidRequestError if a table of another format, or a store of topics, is at the root of the
        store: all tables have the same folders, so two would delete each other's files. Raises StoreError."""
        if next(iter(store.list(IDENTITY_KEY)), None) is not None:
            raise InvalidRequestError(
                "this place is a store of topics; choose another one for the table", table=store.url
            )
        for other, prefix in _SIGNS.items():
            if other is not self and next(iter(store.list(prefix)), None) is not None:
                raise InvalidRequestError(
                    "a table of another format is here; choose another place",
                    table=store.url,
                    format=other.value,
                )


_SIGNS = {
    TableFormat.PARQUET: "_latest.json",
    TableFormat.DELTA: "_delta_log/",
    TableFormat.ICEBERG: "metadata/v",
}
"""The beginnings of names that objects of one format alone have."""
