"""The schema of a Delta table from that of its files."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from stratalog.base.errors import UnsupportedOperationError

_NAMES: tuple[tuple[pa.DataType, str], ...] = (
    (pa.binary(), "binary"),
    (pa.string(), "string"),
    (pa.bool_(), "boolean"),
    (pa.int8(), "byte"),
    (pa.int16(), "short"),
    (pa.int32(), "integer"),
    (pa.int64(), "long"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.date32(), "date"),
    (pa.timestamp("us", tz="UTC"), "timestamp"),
    (pa.timestamp("us"), "timestamp_ntz"),
)

_INNER_TYPES = ("elementType", "keyType", "valueType")
"""The parts of an array and a map that are types."""


def delta_schema(schema: pa.Schema) -> str:
    """The schema as JSON. Raises UnsupportedOperationError for a type that Delta lacks."""
    return json.dumps(_struct(list(schema)))


def has_local_times(schema_json: str) -> bool:
    """Whether a column has times without a zone, which need a feature of the table."""
    return "timestamp_ntz" in _type_names(json.loads(schema_json))


def has_variants(schema_json: str) -> bool:
    """Whether a column has the type `variant`."""
    return "variant" in _type_names(json.loads(schema_json))


def _type_names(kind: Any) -> Iterator[str]:
    """The names of all types in a type of Delta's schema, of the inner ones, too."""
    if isinstance(kind, str):
        yield kind
        return
    yield kind["type"]
    inner = [kind[part] for part in _INNER_TYPES if part in kind]
    for one in chain(inner, (field["type"] for field in kind.get("fields", ()))):
        yield from _type_names(one)


def _struct(fields: list[Any]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": field.name, "type": _type(field.type), "nullable": field.nullable, "metadata": {}}
            for field in fields
        ],
    }


def _type(kind: Any) -> Any:
    for arrow_type, name in _NAMES:
        if kind == arrow_type:
            return name
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return _struct([kind.field(index) for index in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return {
            "type": "array",
            "elementType": _type(kind.value_type),
            "containsNull": kind.value_field.nullable,
        }
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type),
            "valueType": _type(kind.item_type),
            "valueContainsNull": kind.item_field.nullable,
        }
    raise UnsupportedOperationError(
        "tables of Delta Lake have no such type; choose another one", type=str(kind)
    )
