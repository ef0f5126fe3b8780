"""Each type of a value, in each format, as another program reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.lake.table_rows import table_schema
from stratalog.pipeline.lake.values.json_values import JsonValues
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.lake.table_formats import FORMATS, TableFormat
from tests.support.lake.topic_table import TopicTable
from tests.support.spark.plain_store import PlainStore

FIELDS: Mapping[str, tuple[pa.DataType, Any, Any]] = {
    "byte": (pa.int8(), -128, -128),
    "short": (pa.int16(), -32768, -32768),
    "int": (pa.int32(), 1, 1),
    "long": (pa.int64(), 2**63 - 1, 2**63 - 1),
    "float": (pa.float32(), 0.5, 0.5),
    "double": (pa.float64(), 0.1, 0.1),
    "flag": (pa.bool_(), True, True),
    "text": (pa.string(), "é", "é"),
    "data": (pa.binary(), "AP8=", b"\0\xff"),
    "day": (pa.date32(), "2024-02-29", date(2024, 2, 29)),
    "at": (pa.timestamp("us", tz="UTC"), "2024-02-29T12:00:00Z", datetime(2024, 2, 29, 12, tzinfo=UTC)),
    "local": (pa.timestamp("us"), "2024-02-29T12:00:00", datetime.fromisoformat("2024-02-29T12:00:00")),
    "price": (pa.decimal128(10, 2), "12.25", Decimal("12.25")),
    "tags": (pa.list_(pa.struct([pa.field("x", pa.int32())])), [{"x": 1}, None], [{"x": 1}, None]),
    "sizes": (pa.map_(pa.string(), pa.list_(pa.int64())), {"a": [1]}, [("a", [1])]),
    "inner": (
        pa.struct([pa.field("y", pa.string()), pa.field("z", pa.int64())]),
        {"y": "b"},
        {"y": "b", "z": None},
    ),
}

EMPTY = b'{"tags": []}'
"""pyiceberg reads a list of structs that is null as an empty one."""


@pytest.mark.parametrize("form", FORMATS, ids=lambda one: one.name)
def test_each_type_of_a_value(form: TableFormat, tmp_path: Path) -> None:
    fields: list[Any] = [pa.field(name, kind) for name, (kind, _, _) in FIELDS.items()]
    values = JsonValues.of(pa.struct(fields))
    topic = PlainStore()
    topic.create("t")
    (tip,) = topic.tips["t"]
    store = LocalObjectStore(PosixFileSystem(), topic.clock, SequentialIds(9), str(tmp_path / "table"))
    schema = table_schema(values.arrow_type)
    table = TopicTable(
        Random(1), topic.clock, topic.store, "t", store, lambda store: form.make(store, topic.clock, schema)
    )
    full = json.dumps({name: given for name, (_, given, _) in FIELDS.items()}).encode()
    for keys in ((b"a", b"b"), (b"b", b"c")):
        base_offset = topic.tiered.partition(tip).tiered_end_offset
        records = [
            Record(base_offset + index, topic.clock.now_ms(), key, EMPTY if key == b"b" else full)
            for index, key in enumerate(keys)
        ]
        topic.tiered.upload({tip: [encode_batch(records, base_offset=base_offset)]})
        assert table.run(values=values).bad_count == 0
    rows = {row["key"]: row["value"] for row in form.read(tmp_path / "table")}
    expected = {name: read for name, (_, _, read) in FIELDS.items()}
    assert rows.keys() == {b"a", b"b", b"c"}
    for key in (b"a", b"c"):
        found = rows[key]
        # DuckDB has maps as dictionaries.
        found["sizes"] = list(dict(found["sizes"]).items())
        assert found == expected
    assert rows[b"b"] == {**dict.fromkeys(FIELDS), "tags": []}
