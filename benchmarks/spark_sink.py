"""The sink of Spark without Spark: rows that are staged and committed, beside rows that a producer appends.

The reference is delivery at least once: the same Arrow batches through the same service, appended by the task
as they come. Exactly once sends each row three times: a task stages it, and the driver reads it and appends
it. One task writes to 12 partitions, and the driver follows; in a cluster many tasks stage at a time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count

import pyarrow as pa

import report
from server_process import running, stratalog_command
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.pipeline.sink.batch_commit import BatchCommit
from stratalog.pipeline.sink.sink_options import SinkOptions, parse_sink_options
from stratalog.pipeline.sink.staging_topic import staging_topic_name
from stratalog.pipeline.sink.task_appends import append_rows
from stratalog.pipeline.sink.task_staging import TaskStaging

PARTITION_COUNT = 12
ROW_COUNT = 10_000
"""Rows of an Arrow batch, as Spark makes them."""
MB = 1_000_000
SHAPES = ((100, 0.2), (1024, 0.2))
"""The size of values, and the least part of the reference's rate."""


def batches_of(value_bytes: int, size_bytes: int) -> list[pa.RecordBatch]:
    batch_count = max(1, size_bytes // (ROW_COUNT * value_bytes))
    return [
        pa.RecordBatch.from_pydict(
            {
                "key": [b"%016d" % (number * ROW_COUNT + row) for row in range(ROW_COUNT)],
                "value": [bytes(value_bytes)] * ROW_COUNT,
            }
        )
        for number in range(batch_count)
    ]


def append(client: SyncClient, options: SinkOptions, batches: Sequence[pa.RecordBatch]) -> float:
    """Seconds to append the rows in the task."""
    start_s = time.perf_counter()
    append_rows(client, batches, options)
    return time.perf_counter() - start_s


def write(client: SyncClient, options: SinkOptions, batches: Sequence[pa.RecordBatch], name: str) -> float:
    """Seconds to stage the rows in a task and to commit them in the driver."""
    topic = staging_topic_name(name)

    async def commit() -> None:
        async with options.service.client() as driver:
            await BatchCommit(driver, topic, None).commit(0, [task])

    start_s = time.perf_counter()
    task = TaskStaging(client, topic, name, options).stage(batches, 0)
    client.run(commit())
    return time.perf_counter() - start_s


def measure(quick: bool) -> list[report.Row]:
    """Writes of Spark's rows, exactly once and at least once."""
    rows: list[report.Row] = []
    names = map(str, count())
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(*stratalog_command(f"{folder}/data")) as server,
        SyncClient(server.address) as client,
    ):
        for value_bytes, target in SHAPES:
            topic = f"values-of-{value_bytes}"
            client.topics.create(topic, partitions=PARTITION_COUNT)
            options = parse_sink_options({"server": server.address, "topic": topic}, is_stream=False)
            batches = batches_of(value_bytes, (50 if quick else 100) * MB)
            size_mb = len(batches) * ROW_COUNT * value_bytes / MB
            ours_s, reference_s = report.pair_of_median_ratio(
                (write(client, options, batches, next(names)), append(client, options, batches))
                for _ in range(3 if quick else 5)
            )
            rows.append(
                report.Row(
                    work=f"exactly once, {value_bytes} B values / at least once",
                    unit="MB/s",
                    ours=size_mb / ours_s,
                    reference=size_mb / reference_s,
                    target=target,
                )
            )
    return rows


if __name__ == "__main__":
    sys.exit(report.run(measure))
