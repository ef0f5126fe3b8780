"""Rows of a table, sorted, as files in the scratch of the store: where a topic's offsets are still unknown.

A task writes a file for each partition that it has rows of, more if they are many, with offsets from 0. The
driver learns of the files by the result of the task. So tasks that fail or run twice leave files that no
result names, as a crash leaves all of them: the servers of the store delete old scratch after their grace
period.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from stratalog.base.errors import InvalidRequestError
from stratalog.pipeline.jobs.task_place import TaskMeans
from stratalog.pipeline.transfer.parquet_file import FILE_SCHEMA, write_file
from stratalog.remote.store_layout import StoreLayout

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

STAGED_BYTES = 64 << 20
"""About the rows of a file, which a task holds in memory."""
TABLE_COLUMNS = ("partition", "key", "value", "timestamp_ms", "headers")
"""The columns of the rows, in order."""
RESULT_SCHEMA = (
    "place bigint, number bigint, partition int, key string, record_count bigint, data_bytes bigint"
)
"""A row for each file, as Spark's DDL."""
_NUMBER: pa.DataType = pa.int64()
_RESULT_TYPES: dict[str, pa.DataType] = {
    "place": _NUMBER,
    "number": _NUMBER,
    "partition": pa.int32(),
    "key": pa.string(),
    "record_count": _NUMBER,
    "data_bytes": _NUMBER,
}


class StagedFile(NamedTuple):
    """A file of rows that follow each other in a partition."""

    place: int
    """The number of the task: rows of a later one come behind."""
    number: int
    """The number of the file among those of the task."""
    partition: int
    key: str
    record_count: int
    data_bytes: int


class StagedTopic(NamedTuple):
    """The topic that rows are staged for. Pickled to the tasks."""

    name: str
    partition_count: int


def stage_rows(
    means: TaskMeans, place: int, topic: StagedTopic, batches: Iterable[pa.RecordBatch]
) -> Iterator[StagedFile]:
    """Write the rows of a task, which are sorted by partition. Raises InvalidRequestError for a partition
    that the topic does not have, StoreError."""
    for number, (partition, part) in enumerate(_parts(batches, topic)):
        data_bytes = sum(rows.nbytes for rows in part)
        key = f"{StoreLayout(0).scratch_prefixes[0]}{means.ids.uuid()}"
        written = write_file(_file_rows(part, partition))
        means.store.put_parts(key, [memoryview(written.data)])
        yield StagedFile(
            place=place,
            number=number,
            partition=partition,
            key=key,
            record_count=written.record_count,
            data_bytes=data_bytes,
        )


def as_result(file: StagedFile) -> pa.RecordBatch:
    """A row of `RESULT_SCHEMA`."""
    return pa.RecordBatch.from_pylist([file._asdict()], schema=pa.schema(_RESULT_TYPES))


def _parts(
    batches: Iterable[pa.RecordBatch], topic: StagedTopic
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """The rows of each file, and their partition."""
    part: list[pa.RecordBatch] = []
    current, size_bytes = -1, 0
    for batch in batches:
        for partition, rows in _runs(batch, topic):
            if part and (partition != current or size_bytes >= STAGED_BYTES):
                yield current, part
                part, size_bytes = [], 0
            part.append(rows)
            current = partition
            size_bytes += rows.nbytes
    if part:
        yield current, part


def _runs(batch: pa.RecordBatch, topic: StagedTopic) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition in a batch."""
    column = cast("Any", batch.column("partition"))
    begin = 0
    while begin < batch.num_rows:
        partition = column[begin].as_py()
        if partition is None or not 0 <= partition < topic.partition_count:
            raise InvalidRequestError(
                "a row of the table has a partition that the topic does not have; correct the column, or the"
                " number of partitions",
                topic=topic.name,
                partition=partition,
                partition_count=topic.partition_count,
            )
        # Sorted: the rows end where the numbers are greater.
        end = begin + _count_of(column, begin, batch.num_rows, partition)
        yield partition, batch.slice(begin, end - begin)
        begin = end


def _count_of(column: Any, begin: int, end: int, partition: int) -> int:
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if column[middle].as_py() == partition:
            low = middle + 1
        else:
            high = middle
    return low - begin


def _file_rows(part: Iterable[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
    """The rows in the columns of a file, with offsets from 0."""
    next_offset = 0
    kinds: dict[str, Any] = dict(zip(FILE_SCHEMA.names, FILE_SCHEMA.types, strict=True))
    for rows in cast("Iterable[Any]", part):
        count = rows.num_rows
        arrays: list[Any] = [
            rows.column("key"),
            rows.column("value"),
            pa.nulls(count, kinds["topic"]),
            pa.array([partition] * count, kinds["partition"]),
            pa.array(range(next_offset, next_offset + count), kinds["offset"]),
            rows.column("timestamp_ms").cast(kinds["timestamp"]),
            pa.array([0] * count, kinds["timestampType"]),
            rows.column("headers").cast(kinds["headers"]),
        ]
        next_offset += count
        yield cast("Any", pa.RecordBatch).from_arrays(arrays, schema=FILE_SCHEMA)
