"""Delta tables over many commits: checkpoints, other writers, and features that are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import deltalake
import pyarrow as pa
import pytest
from pyroaring import BitMap

from stratalog.base.errors import StoreCorruptError, UnsupportedOperationError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.lake.formats.deletion_vector import decoded_vector, encoded_vector
from stratalog.pipeline.lake.formats.delta_log import commit_key
from stratalog.pipeline.lake.formats.delta_schema import delta_schema, has_local_times, has_variants
from stratalog.pipeline.lake.formats.delta_table import DeltaTable
from stratalog.pipeline.lake.table_rows import table_schema
from stratalog.pipeline.lake.values.value_format import RawValues
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.lake.parquet_rows import raw_rows
from tests.support.lake.topic_table import Row, TopicTable, last_rows
from tests.support.spark.plain_store import PlainStore


class Site:
    """A topic and its Delta table in a directory. Not thread-safe: one test uses it."""

    def __init__(self, directory: Path) -> None:
        self.topic = PlainStore()
        self.topic.create("t")
        self.directory = directory
        store = LocalObjectStore(PosixFileSystem(), self.topic.clock, SequentialIds(9), str(directory))
        schema = table_schema(RawValues().arrow_type)
        self.table = TopicTable(
            Random(1),
            self.topic.clock,
            self.topic.store,
            "t",
            store,
            lambda store: DeltaTable(store, self.topic.clock, schema),
        )

    def rows(self) -> list[Row]:
        """The rows as deltalake reads them."""
        return raw_rows(pa.table(deltalake.DeltaTable(str(self.directory)).scan().read_all()).to_pylist())

    def expected(self) -> list[Row]:
        (tip,) = self.topic.tips["t"]
        return sorted(last_rows(0, self.topic.tiered.records(tip)))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path / "table")
    found.topic.upload({("t", 0): 40})
    found.table.run()
    yield found
    assert found.rows() == found.expected()


def test_a_table_is_read_from_a_checkpoint_without_older_commits(site: Site) -> None:
    for _ in range(11):
        site.topic.upload({("t", 0): 1})
        site.table.run()
    found = deltalake.DeltaTable(str(site.directory))
    assert found.version() == 11
    newest = max(pa.table(found.get_add_actions(flatten=True)).to_pylist(), key=lambda one: one["max.offset"])
    assert (newest["min.offset"], newest["max.offset"], newest["max.partition"]) == (50, 50, 0)
    for version in range(11):
        (site.directory / commit_key(version)).unlink()
    assert site.rows() == site.expected()
    site.topic.upload({("t", 0): 3})
    assert site.table.run().mode == "incremental"
    found = deltalake.DeltaTable(str(site.directory))
    kept = found.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert all("deletion_vector" in name or name.endswith(".parquet") for name in kept)


def test_a_file_with_another_vector_is_live_behind_a_checkpoint(site: Site) -> None:
    """The checkpoint names it with its former vector, too, as one that was removed."""
    for _ in range(12):
        site.topic.upload({("t", 0): 2})
        site.table.run()
        assert site.rows() == site.expected()
        live = pa.table(deltalake.DeltaTable(str(site.directory)).get_add_actions(flatten=True))
        assert {file.path for file in site.table.table().read().files} == set(live.column("path").to_pylist())


def test_the_table_goes_on_after_another_program_has_compacted_it(site: Site) -> None:
    for _ in range(3):
        site.topic.upload({("t", 0): 2})
        site.table.run()
    other = deltalake.DeltaTable(str(site.directory))
    other.create_checkpoint()
    other.optimize.compact()
    site.topic.upload({("t", 0): 2})
    assert site.table.run().mode == "incremental"


def test_a_missing_commit_is_corruption(site: Site) -> None:
    for _ in range(2):
        site.topic.upload({("t", 0): 2})
        site.table.run()
    path = site.directory / commit_key(1)
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(StoreCorruptError):
        site.table.run()
    path.write_bytes(data)


def test_a_table_with_other_features_is_left_alone(site: Site) -> None:
    path = site.directory / commit_key(0)
    data = path.read_bytes()
    lines = [json.loads(line) for line in data.splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"]["writerFeatures"].append("columnMapping")
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UnsupportedOperationError):
        site.table.run()
    path.write_bytes(data)


def test_a_table_goes_on_after_deletions_and_properties_of_another_program(site: Site) -> None:
    """deltalake writes files with views of Arrow, and adds a feature that no column needs."""
    other = deltalake.DeltaTable(str(site.directory))
    offset = site.rows()[-1].offset
    other.delete(f"`offset` = {offset}")
    other.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 3 days"})
    site.topic.upload({("t", 0): 3})
    report = site.table.run()
    assert report.mode == "incremental"
    expected = [row for row in site.expected() if row.offset != offset]
    assert site.rows() == expected
    protocol = deltalake.DeltaTable(str(site.directory)).protocol()
    assert "variantType" in (protocol.writer_features or ())


def test_a_table_with_variants_is_left_alone(site: Site) -> None:
    path = site.directory / commit_key(0)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"]["writerFeatures"].append("variantType")
            line["protocol"]["readerFeatures"].append("variantType")
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            schema["fields"].append({"name": "v", "type": "variant", "nullable": True, "metadata": {}})
            line["metaData"]["schemaString"] = json.dumps(schema, separators=(",", ":"))
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UnsupportedOperationError) as caught:
        site.table.run()
    assert caught.value.fields["features"] == "variantType"


def test_deletion_vectors_are_proved() -> None:
    data = encoded_vector(BitMap([1, 3, 70_000]))[1:]
    assert decoded_vector(data, {}) == BitMap([1, 3, 70_000])
    for index in range(len(data)):
        flipped = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        with pytest.raises(StoreCorruptError):
            decoded_vector(flipped, {})
    for size in range(len(data)):
        with pytest.raises(StoreCorruptError):
            decoded_vector(data[:size], {})


def test_a_column_by_the_name_of_a_type_is_none_of_that_type() -> None:
    names = pa.schema({"variant": pa.string(), "timestamp_ntz": pa.struct([pa.field("variant", pa.int64())])})
    assert not has_variants(delta_schema(names))
    assert not has_local_times(delta_schema(names))


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("us"),
        pa.list_(pa.timestamp("us")),
        pa.map_(pa.string(), pa.timestamp("us")),
        pa.struct([pa.field("type", pa.list_(pa.timestamp("us")))]),
    ],
)
def test_the_type_of_a_column_is_found_wherever_it_is(kind: pa.DataType) -> None:
    schema_json = delta_schema(pa.schema([pa.field("id", pa.int64()), pa.field("a", kind)]))
    assert has_local_times(schema_json)
    assert has_variants(schema_json.replace('"timestamp_ntz"', '"variant"'))
