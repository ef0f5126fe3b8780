"""`stratalog spark materialize` on a real Spark session: tables in a directory, which other programs read."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from stratalog.base.errors import InvalidConfigError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.cli.main import stratalog
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.lake import materialization
from stratalog.pipeline.lake.materialization import MaterializeOrder
from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.lake.table_formats import FORMATS, TableFormat
from tests.support.lake.topic_table import pandas_rows
from tests.support.logs.sampling import SEED
from tests.support.places import REPOSITORY
from tests.support.tiered.tiered_store import TieredStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING = why_spark_cannot_run()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.slow]

DELTA = next(one for one in FORMATS if one.name == "delta")
NOW_MS = 1_700_000_000_000
DDL = "id BIGINT, name STRING, at TIMESTAMP, tags ARRAY<STRING>, sizes MAP<STRING, INT>"


class Orders:
    """A topic with values in JSON, of two partitions."""

    def __init__(self, directory: Path) -> None:
        clock = ManualClock(NOW_MS)
        filesystem = PosixFileSystem()
        self.url = f"file://{directory}/store"
        store = LocalObjectStore(filesystem, clock, SequentialIds(1), str(directory / "store"))
        self._tiered = TieredStore(
            filesystem, store, clock, SequentialIds(2), directory=str(directory / "tiered")
        )
        topic = self._tiered.catalog.create("orders", 2)
        self._tips = [TopicIdPartition(topic.topic_id, number) for number in range(2)]
        self.written: list[Record] = []
        """The records of each of the two partitions."""

    def upload(self, *records: tuple[bytes, bytes | None]) -> None:
        """Records of both partitions."""
        base_offset = len(self.written)
        placed = [
            Record(base_offset + index, NOW_MS, key, value) for index, (key, value) in enumerate(records)
        ]
        batch = encode_batch(placed, base_offset=base_offset)
        self._tiered.upload({tip: [batch] for tip in self._tips})
        self.written += placed


def order(number: int, **others: Any) -> tuple[bytes, bytes]:
    """A record of an order."""
    return b"%d" % number, json.dumps({"id": number, "unknown": 1, **others}).encode()


def run(orders: Orders, form: TableFormat, directory: Path, *arguments: str) -> Result:
    place = ["--store", orders.url, "--to", form.name, "--table", f"file://{directory}"]
    values = ["--values", "json", "--schema", DDL]
    return CliRunner().invoke(stratalog, ["spark", "materialize", "orders", *place, *values, *arguments])


def require_documented_readers(spark: SparkSession, table: Path) -> None:
    """The programs of docs/spark_jobs.md find the rows of the table, and no dead ones."""
    from pyspark.errors import AnalysisException

    names: dict[str, Any] = {"spark": spark}
    lists: list[list[str]] = []
    text = (REPOSITORY / "docs/spark_jobs.md").read_text()
    for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(program.replace("/srv/orders", str(table)), names)
        lists.append(sorted(names["files"]))
    assert lists[0] == lists[1]
    found = [
        sorted((row["partition"], row["offset"]) for row in names["orders"].collect()),
        sorted((row["partition"], row["offset"]) for row in names["by_duckdb"].to_pylist()),
        sorted((row.partition, row.offset) for row in names["by_pandas"].itertuples()),
    ]
    assert found == [[(number, offset) for number in (0, 1) for offset in (0, 4, 6)]] * 3
    # A reader that lists the folders finds nothing rather than dead rows.
    with pytest.raises(AnalysisException):
        spark.read.parquet(str(table))


@pytest.mark.parametrize("form", FORMATS, ids=lambda one: one.name)
def test_a_table_follows_its_topic(spark: SparkSession, tmp_path: Path, form: TableFormat) -> None:
    orders, table = Orders(tmp_path), tmp_path / "table"
    orders.upload(
        order(1, name="first", at="2024-02-29T12:00:00+01:00", tags=["a", None], sizes={"x": 1}),
        order(2),
        order(3),
        (b"bad", b'{"id": "no number"}'),
    )
    first = run(orders, form, table, "--json")
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert (report["mode"], report["row_count"], report["bad_count"]) == ("full", 6, 2)
    rows = form.read(table)
    assert sorted((row["partition"], row["value"]["id"]) for row in rows) == [
        (number, one) for number in (0, 1) for one in (1, 2, 3)
    ]
    value = next(row["value"] for row in rows if row["value"]["id"] == 1)
    assert value["at"].isoformat() == "2024-02-29T11:00:00+00:00"
    assert (value["tags"], dict(value["sizes"])) == (["a", None], {"x": 1})
    bad = [row for name in report["bad_files"] for row in pq.read_table(table / name).to_pylist()]
    assert {(row["key"], row["value"], row["offset"]) for row in bad} == {(b"bad", b'{"id": "no number"}', 3)}
    assert "id: a str is no integer" in bad[0]["error"]

    orders.upload(order(2, name="changed"), (b"3", None), order(4))
    second = run(orders, form, table)
    assert second.exit_code == 0, second.output
    assert "incremental refresh: the table has 6 rows" in second.stdout
    names = {(row["value"]["id"], row["value"]["name"]) for row in form.read(table)}
    assert names == {(1, "first"), (2, "changed"), (4, None)}
    if form.name == "parquet":
        require_documented_readers(spark, table)
    wrong = run(orders, form, table, "--schema", "id WRONG")
    assert isinstance(wrong.exception, InvalidConfigError)
    third = run(orders, form, table)
    assert "nothing new" in third.stdout, third.output


def test_a_table_follows_many_changes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random keys change, and go between many tasks; pandas has the rows."""
    del spark
    # So that keys are exchanged: one task would do for so few bytes.
    monkeypatch.setattr(materialization, "MaterializeOrder", partial(MaterializeOrder, max_task_bytes=2_000))
    random = Random(SEED)
    form = random.choice(FORMATS)
    orders, table = Orders(tmp_path), tmp_path / "table"
    orders.upload(*(order(number) for number in range(300)))
    for number in range(5):
        done = run(orders, form, table, "--json")
        assert json.loads(done.stdout)["mode"] == ("incremental" if number else "full"), done.output
        expected = [row for partition in (0, 1) for row in pandas_rows(partition, orders.written)]
        found = [(row["partition"], row["key"], row["offset"]) for row in form.read(table)]
        assert sorted(found) == sorted(row[:3] for row in expected)
        for _ in range(3):
            keys = random.sample(range(350), random.choice((1, 20)))
            orders.upload(*((b"%d" % key, random.choice((order(key)[1], None))) for key in keys))


def framed(number: int, payload: bytes) -> bytes:
    """A value as serializers for a schema registry make it."""
    return b"\0" + number.to_bytes(4) + payload


def test_values_of_a_registry_in_json(spark: SparkSession, tmp_path: Path) -> None:
    del spark
    orders, table = Orders(tmp_path), tmp_path / "table"
    key, value = order(1, name="first")
    orders.upload((key, framed(3, value)), (b"unknown", framed(9, value)), (b"bare", value))
    given = ("--values", "confluent-json", "--schema-id", "3", "--json")
    done = run(orders, DELTA, table, *given)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["row_count"], report["bad_count"]) == (2, 4)
    assert [(row["value"]["id"], row["value"]["name"]) for row in DELTA.read(table)] == [(1, "first")] * 2
    errors = [row["error"] for name in report["bad_files"] for row in pq.read_table(table / name).to_pylist()]
    assert sorted(set(errors)) == [
        "the value has the schema 9, which is unknown",
        "the value lacks the number of a schema",
    ]


def test_values_of_a_registry_in_protobuf(spark: SparkSession, tmp_path: Path) -> None:
    """Two schemas of one message, whose second field came later, and another message of their file."""
    del spark
    names = {1: ("id",), 2: ("id", "count")}
    for number, fields in names.items():
        file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
        for message in ("Other", "Order"):
            made = file.message_type.add(name=message)
            for place, name in enumerate(fields, 1):
                made.field.add(name=name, number=place, type=FieldDescriptorProto.TYPE_INT64)
        (tmp_path / f"{number}.desc").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    orders, table = Orders(tmp_path), tmp_path / "table"
    index = b"\x02\x02"
    orders.upload(
        (b"old", framed(1, index + b"\x08\x05")),
        (b"new", framed(2, index + b"\x08\x06\x10\x07")),
        (b"other", framed(2, b"\0" + b"\x08\x06\x10\x07")),
        (b"damaged", framed(2, index + b"\xff")),
    )
    schemas = ("--schema", f"{tmp_path}/2.desc", "--schema-id", "2", "--schema-id", f"1={tmp_path}/1.desc")
    given = ("--values", "confluent-protobuf", "--message", "shop.Order", *schemas, "--json")
    done = run(orders, DELTA, table, *given)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["row_count"], report["bad_count"]) == (4, 4)
    rows = {row["key"]: (row["value"]["id"], row["value"]["count"]) for row in DELTA.read(table)}
    assert rows == {b"old": (5, 0), b"new": (6, 7)}
    orders.upload((b"old", framed(2, index + b"\x10\x01")))
    assert json.loads(run(orders, DELTA, table, *given).stdout)["mode"] == "incremental"
    rows = {row["key"]: (row["value"]["id"], row["value"]["count"]) for row in DELTA.read(table)}
    assert rows == {b"old": (0, 1), b"new": (6, 7)}


def test_options_that_do_not_fit_are_refused_before_spark_starts(tmp_path: Path) -> None:
    no_schema = tmp_path / "none"
    no_schema.write_bytes(b"{}")
    for arguments, name in (
        (["--values", "json"], "--schema"),
        (["--schema", "id INT"], "--schema"),
        (["--values", "protobuf", "--schema", "file"], "--message"),
        (["--values", "avro"], "--schema"),
        (["--values", "avro", "--schema", f"{tmp_path}/missing.avsc"], "--schema"),
        (["--values", "confluent-avro", "--schema", str(no_schema), "--schema-id", "1"], "schema"),
        (["--values", "protobuf", "--schema", str(no_schema), "--message", "m"], "message"),
        (["--values", "confluent-protobuf", "--schema", "file", "--message", "m"], "--schema-id"),
        (
            ["--values", "confluent-json", "--schema", "id INT", "--schema-id", "1=file"],
            "--schema-id NUMBER=FILE",
        ),
    ):
        place = [
            "--store",
            f"file://{tmp_path}/store",
            "--to",
            "delta",
            "--table",
            f"file://{tmp_path}/table",
        ]
        refused = CliRunner().invoke(stratalog, ["spark", "materialize", "orders", *place, *arguments])
        assert isinstance(refused.exception, InvalidConfigError)
        assert refused.exception.fields["name"] == name
