"""`stratalog spark materialize` with several schemas of a registry, without Spark."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from stratalog.base.errors import InvalidConfigError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.main import stratalog
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.lake.values.schema_registry import SchemaRegistry
from stratalog.pipeline.table_files import parquet_files
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster
from tests.support.spark.plain_store import START_MS, PlainStore

OLD = {"type": "record", "name": "P", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "none"}],
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store, whose topic `t` has values of the schemas 7, 9 and 8, and with schemas."""

    @contextmanager
    def without_spark(*_: object) -> Generator[InlineCluster]:
        yield InlineCluster(Random(1))

    monkeypatch.setattr("stratalog.cli.spark.materialize_command.spark_job", without_spark)
    store = LocalObjectStore(
        PosixFileSystem(), ManualClock(START_MS), SequentialIds(1), str(tmp_path / "store")
    )
    found = PlainStore(store)
    found.create("t")
    values = (b"\0\0\0\0\7\x02", b"\0\0\0\0\x09\x04\x04hi", b"\0\0\0\0\x08\x06")
    records = [Record(offset, START_MS, b"%d" % offset, value) for offset, value in enumerate(values)]
    found.tiered.upload({found.tips["t"][0]: [encode_batch(records)]})
    for name, schema in (("old", OLD), ("new", NEW)):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))
    return tmp_path


def run(site: Path, *arguments: str) -> Result:
    words = ["t", "--to", "parquet", "--table", f"{site}/table", "--store", f"file://{site}/store"]
    return CliRunner().invoke(stratalog, ["spark", "materialize", *words, *arguments, "--json"])


def test_each_schema_becomes_the_columns_of_one(site: Path) -> None:
    avro = ("--values", "confluent-avro", "--schema", f"{site}/new.avsc", "--schema-id", "9")
    done = run(site, *avro, "--schema-id", f"7={site}/old.avsc")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bad_count"] == 1
    (bad,) = pq.read_table(next((site / "table" / "_bad").rglob("*.parquet"))).to_pylist()
    assert (bad["key"], bad["error"]) == (b"2", "the value has the schema 8, which is unknown")
    (file,) = parquet_files(f"{site}/table")
    rows = {row["key"]: row["value"] for row in pq.read_table(file).to_pylist()}
    assert rows == {b"0": {"id": 1, "note": "none"}, b"1": {"id": 2, "note": "hi"}}
    done = run(site, *avro, "--schema-id", f"8={site}/old.avsc", "--schema-id", f"7={site}/old.avsc")
    assert "schemas were added" in json.loads(done.stdout)["reason"]
    assert json.loads(done.stdout)["row_count"] == 3


def test_a_registry_has_the_schemas(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    def avro_schemas(registry: SchemaRegistry, subject: str) -> dict[int, bytes]:
        asked.append((registry.url, registry.user_info, subject))
        return {7: json.dumps(OLD).encode(), 8: json.dumps(OLD).encode(), 9: b"{}"}

    monkeypatch.setattr(SchemaRegistry, "avro_schemas", avro_schemas)
    monkeypatch.setenv("STRATALOG_SCHEMA_REGISTRY_CREDENTIALS", "user:secret")
    avro = ("--values", "confluent-avro", "--schema", f"{site}/new.avsc", "--schema-registry", "https://r")
    done = run(site, *avro, "--schema-id", "9")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["row_count"], report["bad_count"]) == (3, 0)
    assert asked == [("https://r", "user:secret", "t-value")]
    assert run(site, *avro, "--subject", "other", "--schema-id", "9").exit_code == 0
    assert asked[1][2] == "other"
    for wrong in (("--subject", "other"), ("--values", "confluent-protobuf", *avro[2:], "--message", "m")):
        refused = run(site, *avro[:4], "--schema-id", "9", *wrong)
        assert isinstance(refused.exception, InvalidConfigError)
    assert "secret" not in "".join(
        path.read_bytes().decode(errors="replace") for path in (site / "table").rglob("*") if path.is_file()
    )


def test_a_schema_that_does_not_fit_is_named(site: Path) -> None:
    avro = ("--values", "confluent-avro", "--schema", f"{site}/old.avsc")
    refused = run(site, *avro, "--schema-id", f"7={site}/new.avsc")
    assert isinstance(refused.exception, InvalidConfigError)
    assert refused.exception.fields["value"] == 7
    missing = run(site, *avro, "--schema-id", "7=missing.avsc")
    assert isinstance(missing.exception, InvalidConfigError)
    assert missing.exception.fields["value"] == "missing.avsc"


@pytest.mark.parametrize("given", ["x", "7=", "-1", "4294967296", "=file", "²"])
def test_what_is_no_number_is_refused(site: Path, given: str) -> None:
    refused = run(site, "--values", "confluent-avro", "--schema", "s", "--schema-id", given)
    assert refused.exit_code == 2
    assert repr(given) in refused.stderr


def test_a_number_is_there_once(site: Path) -> None:
    twice = ("--schema-id", "7", "--schema-id", "7=file")
    refused = run(site, "--values", "confluent-avro", "--schema", "s", *twice)
    assert refused.exit_code == 2
    assert "twice" in refused.stderr
