"""The ceiling of `spark_source.py`: a Python source for Spark that neither reads nor decodes.

It has the columns of the other sources there, or those of them that a schema names, and each task yields one
prepared record batch again and again.
What it takes is the cost of Spark's way into the JVM and of the rows there: no Python source can be faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCHEMA = "key binary, value binary, partition int, offset bigint, timestamp timestamp"


class PreparedSource(DataSource):
    """The source, with the options `tasks`, `batches` (of each task), `rows` (of each batch) and
    `valueBytes`."""

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        tasks, *sizes = (int(self.options[name]) for name in ("tasks", "batches", "rows", "valueBytes"))
        return PreparedReader(schema.names, tasks, *sizes)


class PreparedReader(DataSourceReader):
    """Yields one batch. Not thread-safe, as its base."""

    def __init__(
        self, names: Sequence[str], task_count: int, batch_count: int, row_count: int, value_bytes: int
    ) -> None:
        self._names = names
        self._task_count = task_count
        self._batch_count = batch_count
        self._row_count = row_count
        self._value_bytes = value_bytes

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._task_count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        batch = self._batch()
        for _ in range(self._batch_count):
            yield batch

    def _batch(self) -> pa.RecordBatch:
        import pyarrow as pa

        offsets = pa.array(range(self._row_count), pa.int64())
        columns: dict[str, pa.Array[Any]] = {
            "key": pa.array([b"k%d" % (number % 7) for number in range(self._row_count)]),
            "value": pa.array([b"." * self._value_bytes] * self._row_count),
            "partition": pa.array([0] * self._row_count, pa.int32()),
            "offset": offsets,
            "timestamp": offsets.cast(pa.timestamp("us", tz="UTC")),
        }
        return pa.record_batch({name: columns[name] for name in self._names})
