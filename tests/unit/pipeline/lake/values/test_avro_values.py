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


def record_of(*fields: tuple[str, Any]) -> str:
    found = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "R", "fields": found})


EMPTY: dict[str, Any] = {"type": "record", "name": "Empty", "fields": []}


def test_a_record_without_fields_is_true_where_it_is_there() -> None:
    schema = record_of(("a", EMPTY), ("b", ["null", "Empty"]), ("m", {"type": "map", "values": "Empty"}))
    values = AvroValues.of(schema)
    stream = io.BytesIO()
    record: dict[str, Any] = {"a": {}, "b": None, "m": {"k": {}}}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema)), record)
    decoded = values.decode(pa.array([stream.getvalue()]))
    assert decoded.column.to_pylist() == [{"a": True, "b": None, "m": [("k", True)]}]
    assert not decoded.bad


@pytest.mark.parametrize(
    "wrapped",
    [
        EMPTY,
        {"type": "record", "name": "Outer", "fields": [{"name": "x", "type": EMPTY}]},
        {"type": "fixed", "name": "F", "size": 0},
    ],
)
def test_an_array_whose_items_take_no_bytes_is_refused(wrapped: Any) -> None:
    """A value of eleven bytes could be 2^62 of them."""
    array = {"type": "array", "items": wrapped}
    for schema in (record_of(("a", array)), record_of(("a", ["null", {"type": "map", "values": array}]))):
        with pytest.raises(InvalidConfigError) as caught:
            AvroValues.of(schema)
        assert caught.value.fields["field"] == "a"
    # The writer's fields that the table lacks are skipped item by item.
    with pytest.raises(InvalidConfigError):
        AvroValues.of(record_of(("b", "int"))).payload_decoder(record_of(("a", array), ("b", "int")).encode())


def test_a_field_that_is_always_null_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        AvroValues.of(record_of(("a", "null")))
    assert caught.value.fields == {"type": "null"}
