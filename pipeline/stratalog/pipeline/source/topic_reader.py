"""Reads topics for a query: plans on the driver, reads on executors.

Instances are pickled between Python processes: they hold plain values only, and import other modules when
they run, so that a process that only looks data sources up stays light.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from stratalog.pipeline.source.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.pipeline.source.slice_span import SliceSpan

_KEPT_BYTES = 32 << 20
"""Freed memory that a worker keeps: more than a task needs for batches of a mebibyte."""


class SlicePartition(InputPartition):
    """The spans that one task reads, in order. Immutable, pickled to the executor."""

    def __init__(self, spans: Sequence[SliceSpan]) -> None:
        super().__init__(None)
        self.spans = tuple(spans)

    def __repr__(self) -> str:
        # Spark shows it in plans and logs.
        return f"SlicePartition({len(self.spans)} spans)"


class TopicReader(DataSourceReader):
    """Reads topics for one query. Not thread-safe: Spark uses it on one thread."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._filters: tuple[Filter, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        """One moment of the topics, divided into tasks. Raises UnknownTopicOrPartitionError,
        OffsetOutOfRangeError, StoreError."""
        from stratalog.pipeline.source.partition_range import ranges_of
        from stratalog.pipeline.source.row_filters import bounds_of
        from stratalog.pipeline.source.scan_plan import plan_tasks
        from stratalog.pipeline.source.store_view import reading_store

        options, lease_s = self._options, self._options.lease_s
        with reading_store(options.store_url) as reader:
            if lease_s is not None:
                reader.lease(options, lambda now_ms: now_ms + 1000 * lease_s)
            ranges = ranges_of(reader, reader.view(options), options)
            tasks = plan_tasks(reader, ranges, options, bounds_of(self._filters))
        return [SlicePartition(spans) for spans in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return read_task(self._options.store_url, self._names, partition)


class FilteringTopicReader(TopicReader):
    """A reader that leaves out slices by the query's filters. Not thread-safe, as its base.

    Spark fails each query of a reader with this method unless its configuration allows push-down, so a query
    asks for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Note the filters; Spark applies all of them again."""
        self._filters = tuple(filters)
        return filters


def read_task(store_url: str, names: tuple[str, ...], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a task, on its executor. Raises StoreError, CorruptRecordError.

    Spark turns an empty plan into one base `InputPartition`, which has no records.
    """
    if not isinstance(partition, SlicePartition):
        return
    from stratalog.objectstore.open_store import open_store
    from stratalog.pipeline.source.slice_scan import scan

    _tune_worker()
    store = open_store(store_url)
    try:
        yield from scan(store, partition.spans, names)
    finally:
        store.close()


@cache
def _tune_worker() -> None:
    """Make this worker of Spark faster, once all is imported. Spark collects garbage after each task, and
    would look at all objects of all modules each time, which took as long as to decode 32 MiB of records."""
    from stratalog.base.process_tuning import keep_freed_memory

    gc.freeze()
    keep_freed_memory(_KEPT_BYTES)
