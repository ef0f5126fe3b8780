"""Functions that run in the tasks of a scan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.pipeline.mapped_scan import map_scan
from tests.support.spark.keyed_store import local_store
from tests.support.spark.plain_store import PlainStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MISSING = why_spark_cannot_run()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.slow]


def test_a_function_sees_the_batches_of_its_task(spark: SparkSession, tmp_path: Path) -> None:
    found = PlainStore(local_store(tmp_path))
    found.create("t", 2)
    for _ in range(2):
        found.upload({("t", 0): 30, ("t", 1): 50})
    options = {"store": found.store.url, "topic": "t", "columns": "offset", "maxPartitionBytes": "1"}

    # A function of the module would be imported by the workers, which do not have the tests.
    def counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a task, their greatest offset and the columns that were decoded."""
        import pyarrow as pa

        rows, last, names = 0, -1, ""
        for batch in batches:
            rows += batch.num_rows
            last = max(last, *cast("list[int]", batch.column("offset").to_pylist()))
            names = ",".join(batch.schema.names)
        yield pa.RecordBatch.from_pydict(
            {"rows": pa.array([rows], pa.int64()), "last": pa.array([last], pa.int64()), "names": [names]}
        )

    table = map_scan(spark, options, counts, "rows bigint, last bigint, names string")
    assert sorted(cast("list[tuple[int, int, str]]", table.collect())) == [
        (30, 29, "offset"),
        (30, 59, "offset"),
        (50, 49, "offset"),
        (50, 99, "offset"),
    ]
    assert table.selectExpr("sum(rows) as total").collect()[0]["total"] == 160
