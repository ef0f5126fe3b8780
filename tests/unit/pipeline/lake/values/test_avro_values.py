"""Avro as columns, and schemas that are refused."""

# pyright: reportUnknownMemberType=false
# (some of fastavro's functions have stubs with open type arguments)
from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from stratalog.base.errors import InvalidConfigError, UnsupportedOperationError
from stratalog.pipeline.lake.values.avro_values import AvroValues

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "sizes", "type": {"type": "map", "values": ["null", {"type": "array", "items": "int"}]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "inner",
            "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "double"}]},
        },
    ],
}
RECORD: dict[str, Any] = {
    "id": 1,
    "note": None,
    "state": "NEW",
    "before": "PAID",
    "sizes": {"a": [1, 2], "b": None},
    "at": datetime(2024, 2, 29, tzinfo=UTC),
    "price": Decimal("12.25"),
    "token": UUID(int=5),
    "inner": {"x": 0.5},
}


def encoded(record: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), record)
    return stream.getvalue()


def test_each_type_and_bad_values() -> None:
    values: AvroValues = pickle.loads(pickle.dumps(AvroValues.of(json.dumps(SCHEMA))))
    good = encoded(RECORD)
    found = values.decode(pa.array([good, good + b"\0", good[:-1], b"", good], pa.binary()))
    row = {**RECORD, "sizes": [("a", [1, 2]), ("b", None)], "token": str(UUID(int=5))}
    assert found.column.to_pylist() == [row, None, None, None, row]
    assert [one.place for one in found.bad] == [1, 2, 3]


@pytest.mark.parametrize("text", ["", "{}", '"string"', '{"type": "record"}', "[]"])
def test_a_schema_that_is_none_of_a_record_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError):
        AvroValues.of(text)


@pytest.mark.parametrize(
    "kind",
    [
        ["int", "string"],
        ["null", "T"],
        {"type": "int", "logicalType": "time-millis"},
    ],
)
def test_a_type_that_tables_lack_is_refused(kind: Any) -> None:
    schema = {"type": "record", "name": "T", "fields": [{"name": "field", "type": kind}]}
    with pytest.raises(UnsupportedOperationError):
        AvroValues.of(json.dumps(schema))
