"""The columns of a table, and of its bad records.

Each field has a number, which Iceberg finds it by; the other formats do not mind.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from stratalog.base.errors import UnsupportedOperationError

if TYPE_CHECKING:
    AnyField = pa.Field[Any]

FIELD_ID = b"PARQUET:field_id"

_BAD_FIELDS: list[Any] = [
    pa.field("key", pa.binary()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("value", pa.binary()),
    pa.field("error", pa.string()),
]
BAD_SCHEMA = pa.schema(_BAD_FIELDS)
"""The columns of the records whose values could not be decoded."""


def table_schema(value_type: pa.DataType) -> pa.Schema:
    """The columns of a table with values of this type. Raises UnsupportedOperationError for structs that
    tables cannot hold: without fields, or with two fields whose names differ by case only."""
    _require_storable(value_type, "value")
    fields: list[AnyField] = [
        pa.field("key", pa.binary()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("value", value_type),
    ]
    return pa.schema(_numbered(fields, itertools.count(1)))


def _require_storable(kind: Any, path: str) -> None:
    """Raise UnsupportedOperationError for a struct that Parquet, or Spark by default, does not hold."""
    if pa.types.is_list(kind):
        _require_storable(kind.value_type, f"{path}.element")
    elif pa.types.is_map(kind):
        _require_storable(kind.item_type, f"{path}.value")
    elif pa.types.is_struct(kind):
        fields: list[Any] = [kind.field(index) for index in range(kind.num_fields)]
        if not fields:
            raise UnsupportedOperationError(
                "tables have no structs without fields; leave the column out, or give it fields", column=path
            )
        spelled: dict[str, str] = {}
        for field in fields:
            name: str = field.name
            other = spelled.get(name.lower())
            if other is not None:
                raise UnsupportedOperationError(
                    "the names of two columns are the same, or differ by case only, so Spark and Delta cannot"
                    " tell them apart; leave one out",
                    column=f"{path}.{name}",
                    other=f"{path}.{other}",
                )
            spelled[name.lower()] = name
            _require_storable(field.type, f"{path}.{name}")


def _numbered(fields: Sequence[AnyField], numbers: Iterator[int]) -> list[AnyField]:
    """The fields with numbers, then those inside of each: the order in which Iceberg numbers a new table."""
    own = [next(numbers) for _ in fields]
    return [
        pa.field(
            field.name,
            _with_numbers(field.type, numbers),
            nullable=field.nullable,
            metadata=cast("Any", {FIELD_ID: str(number).encode()}),
        )
        for field, number in zip(fields, own, strict=True)
    ]


def _with_numbers(kind: Any, numbers: Iterator[int]) -> Any:
    """The type with numbered fields."""
    if pa.types.is_struct(kind):
        return pa.struct(_numbered([kind.field(index) for index in range(kind.num_fields)], numbers))
    if pa.types.is_list(kind):
        return pa.list_(*_numbered([kind.value_field.with_name("element")], numbers))
    if pa.types.is_map(kind):
        map_of: Any = pa.map_
        return map_of(*_numbered([kind.key_field, kind.item_field], numbers))
    return kind
