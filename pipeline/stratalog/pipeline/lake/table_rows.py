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
    """The columns of a table with values of this type."""
    fields: list[AnyField] = [
        pa.field("key", pa.binary()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("value", value_type),
    ]
    return pa.schema(_numbered(fields, itertools.count(1)))


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
