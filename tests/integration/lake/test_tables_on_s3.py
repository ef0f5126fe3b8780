"""Tables in a bucket, as other programs read them there."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.pipeline.lake.table_rows import table_schema
from stratalog.pipeline.lake.values.value_format import RawValues
from tests.support.lake.bucket_tables import BUCKET_READERS
from tests.support.lake.parquet_rows import raw_rows
from tests.support.lake.table_formats import FORMATS, TableFormat
from tests.support.lake.topic_table import TopicTable, last_rows
from tests.support.spark.plain_store import PlainStore
from tests.support.tiered.s3_servers import S3Server


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
        assert raw_rows(BUCKET_READERS[form.name](seaweedfs_server, s3_prefix)) == sorted(expected)
