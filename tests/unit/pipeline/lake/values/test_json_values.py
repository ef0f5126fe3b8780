"""JSON as columns: each type, and each value that is bad."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from stratalog.base.errors import UnsupportedOperationError
from stratalog.pipeline.lake.values.json_values import JsonValues

FIELDS: list[Any] = [
    pa.field("byte", pa.int8()),
    pa.field("long", pa.int64()),
    pa.field("float", pa.float32()),
    pa.field("double", pa.float64()),
    pa.field("flag", pa.bool_()),
    pa.field("text", pa.string()),
    pa.field("data", pa.binary()),
    pa.field("day", pa.date32()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("local", pa.timestamp("us")),
    pa.field("price", pa.decimal128(10, 2)),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("sizes", pa.map_(pa.string(), pa.int32())),
    pa.field("inner", pa.struct([pa.field("x", pa.int32(), nullable=False)])),
]
VALUES = JsonValues.of(pa.struct(FIELDS))


def decode(*values: bytes) -> tuple[list[Any], dict[int, str]]:
    """The column, and the errors by the places of their values."""
    copy: JsonValues = pickle.loads(pickle.dumps(VALUES))
    found = copy.decode(pa.array(values, pa.binary()))
    return found.column.to_pylist(), {one.place: one.error for one in found.bad}


def test_each_type() -> None:
    value = {
        "byte": -128,
        "long": 2**63 - 1,
        "float": 0.5,
        "double": 1,
        "flag": True,
        "text": "é",
        "data": "AP8=",
        "day": "2024-02-29",
        "at": "2024-02-29T12:00:00.000001+02:00",
        "local": "2024-02-29T12:00:00",
        "price": 12.25,
        "tags": ["a", None],
        "sizes": {"a": 1, "b": None},
        "inner": {"x": 1, "unknown": 2},
    }
    ((row, empty), errors) = decode(json.dumps(value).encode(), b" {}\n")
    assert errors == {}
    assert row == {
        **value,
        "data": b"\0\xff",
        "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 10, microsecond=1, tzinfo=UTC),
        "local": datetime.fromisoformat("2024-02-29T12:00:00"),
        "price": Decimal("12.25"),
        "sizes": [("a", 1), ("b", None)],
        "inner": {"x": 1},
    }
    assert set(empty.values()) == {None}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'{"long": 1} {"long": 2}',
        b'{"long": 1',
        b"\xff",
        b'{"byte": 128}',
        b'{"long": "1"}',
        b'{"long": true}',
        b'{"long": 1.0}',
        b'{"double": "1"}',
        b'{"double": 1e999}',
        b'{"double": NaN}',
        b'{"float": 1e300}',
        b'{"float": -3.5e38}',
        b'{"flag": 0}',
        b'{"text": 1}',
        b'{"text": "\\ud800"}',
        b'{"data": "not base64!"}',
        b'{"day": "2023-02-29"}',
        b'{"at": 5}',
        b'{"at": "0001-01-01T00:00:00+01:00"}',
        b'{"at": "9999-12-31T23:59:59-01:00"}',
        b'{"local": "2024-01-01T00:00:00Z"}',
        b'{"price": 1.005}',
        b'{"price": 123456789012}',
        b'{"price": "many"}',
        b'{"tags": {}}',
        b'{"tags": [1]}',
        b'{"sizes": {"a": "b"}}',
        b'{"inner": {}}',
        b"[" * 100_000,
    ],
)
def test_a_bad_value_leaves_the_others_good(value: bytes) -> None:
    good = b'{"long": 7}'
    column, errors = decode(good, value, good)
    assert [row and row["long"] for row in column] == [7, None, 7]
    assert list(errors) == [1]
    assert 0 < len(errors[1]) <= 200
    assert "\n" not in errors[1]


def test_a_type_that_json_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError):
        JsonValues.of(pa.struct([pa.field("gap", pa.duration("us"))]))


def test_other_columns_are_another_encoding() -> None:
    other = JsonValues.of(pa.struct([pa.field("long", pa.int32())]))
    assert other.encoding != VALUES.encoding
