"""Tables in a bucket, as other programs read them there.

The server is a process of its own: deltalake may hold the interpreter while it waits for an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from stratalog.pipeline.lake.table_rows import table_schema
from stratalog.pipeline.lake.values.value_format import RawValues
from tests.support.lake.parquet_rows import parquet_rows, raw_rows
from tests.support.lake.table_formats import FORMATS, Rows, TableFormat
from tests.support.lake.topic_table import TopicTable, last_rows
from tests.support.spark.plain_store import PlainStore
from tests.support.tiered.s3_servers import S3Server


def _delta_rows(server: S3Server, prefix: str) -> Rows:
    options = {
        "AWS_ENDPOINT_URL": server.endpoint_url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": server.access_key_id,
        "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
        "AWS_REGION": server.region,
    }
    table = deltalake.DeltaTable(f"s3://{server.bucket}/{prefix}", storage_options=options)
    rows: Rows = pa.table(table.scan().read_all()).to_pylist()
    return rows


def _iceberg_rows(server: S3Server, prefix: str) -> Rows:
    properties = {
        "s3.endpoint": server.endpoint_url,
        "s3.access-key-id": server.access_key_id,
        "s3.secret-access-key": server.secret_access_key,
        "s3.region": server.region,
    }
    table = StaticTable.from_metadata(f"s3://{server.bucket}/{prefix}", properties)
    rows: Rows = table.scan().to_arrow().to_pylist()
    return rows


def _parquet_rows(server: S3Server, prefix: str) -> Rows:
    return parquet_rows(server.open_store(prefix))


READERS: dict[str, Callable[[S3Server, str], Rows]] = {
    "delta": _delta_rows,
    "iceberg": _iceberg_rows,
    "parquet": _parquet_rows,
}


@pytest.mark.parametrize("form", FORMATS, ids=lambda one: one.name)
def test_a_table_in_a_bucket(form: TableFormat, seaweedfs_server: S3Server, s3_prefix: str) -> None:
    topic = PlainStore()
    topic.create("t", 2)
    schema = table_schema(RawValues().arrow_type)
    table = TopicTable(
        Random(5),
        topic.clock,
        topic.store,
        "t",
        seaweedfs_server.open_store(s3_prefix),
        lambda store: form.make(store, topic.clock, schema),
    )
    for counts in ({("t", 0): 20, ("t", 1): 5}, {("t", 0): 3}):
        topic.upload(counts)
        table.run()
        expected = [
            row for tip in topic.tips["t"] for row in last_rows(tip.partition, topic.tiered.records(tip))
        ]
        assert raw_rows(READERS[form.name](seaweedfs_server, s3_prefix)) == sorted(expected)
