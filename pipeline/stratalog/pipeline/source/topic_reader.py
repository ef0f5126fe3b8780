"""Reads topics for a query: plans on the driver, reads on executors.

Instances are pickled between Python processes: they hold plain values only, and import other modules when
they run, so that a process that only looks data sources up stays light.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, InputPartition

from stratalog.base.types import TopicIdPartition
from stratalog.pipeline.source.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from stratalog.pipeline.source.partition_range import PartitionRange
    from stratalog.pipeline.source.scan_plan import RowBounds
    from stratalog.pipeline.source.slice_span import SliceSpan
    from stratalog.pipeline.source.store_view import StoreReader
    from stratalog.pipeline.source.tail_span import TailSpan
    from stratalog.remote.metadata.shard.tiered_partition import TieredPartition

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


class TailPartition(InputPartition):
    """The tails that one task reads from the service. Immutable, pickled to the executor."""

    def __init__(self, spans: Sequence[TailSpan]) -> None:
        super().__init__(None)
        self.spans = tuple(spans)

    def __repr__(self) -> str:
        return f"TailPartition({len(self.spans)} spans)"


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
        from stratalog.pipeline.source.store_view import reading_store

        options = self._options
        with reading_store(options.store_url, options.service) as reader:
            reader.lease_as_asked(options)
            ranges = ranges_of(reader, reader.view(options), options)
            return planned_partitions(reader, ranges, options, self._bounds())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return read_task(self._options, self._names, partition, is_one_moment=True)

    def _bounds(self) -> RowBounds | None:
        """Bounds that the query's filters set; None without any."""
        if not self._filters:
            return None
        # Not above: Spark 4.0 has no filters.
        from stratalog.pipeline.source.row_filters import bounds_of

        return bounds_of(self._filters)


class FilteringTopicReader(TopicReader):
    """A reader that leaves out slices by the query's filters. Not thread-safe, as its base.

    Spark fails each query of a reader with this method unless its configuration allows push-down, so a query
    asks for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Note the filters; Spark applies all of them again."""
        self._filters = tuple(filters)
        return filters


def planned_partitions(
    reader: StoreReader,
    ranges: Sequence[PartitionRange],
    options: ReadOptions,
    bounds: RowBounds | None = None,
) -> list[InputPartition]:
    """The tasks of a query or a batch, those of the objects first. Raises StoreError."""
    from stratalog.pipeline.source.scan_plan import NO_BOUNDS, plan_tasks
    from stratalog.pipeline.source.tail_plan import plan_tails

    bounds = bounds or NO_BOUNDS
    return [
        *map(SlicePartition, plan_tasks(reader, ranges, options, bounds)),
        *map(TailPartition, plan_tails(ranges, options, bounds)),
    ]


def read_task(
    options: ReadOptions, names: tuple[str, ...], partition: InputPartition, *, is_one_moment: bool
) -> Iterator[pa.RecordBatch]:
    """The records of a task, on its executor. Raises LogStoreError, CorruptRecordError.

    Spark turns an empty plan into one base `InputPartition`, which has no records.
    """
    if isinstance(partition, SlicePartition):
        yield from _read_slices(options, names, partition)
    elif isinstance(partition, TailPartition):
        yield from _read_tails(options, names, partition, is_one_moment=is_one_moment)


def _read_slices(
    options: ReadOptions, names: tuple[str, ...], partition: SlicePartition
) -> Iterator[pa.RecordBatch]:
    from stratalog.objectstore.open_store import open_store
    from stratalog.pipeline.source.slice_scan import scan

    _tune_worker()
    store = open_store(options.store_url)
    try:
        yield from scan(store, partition.spans, names)
    finally:
        store.close()


def _read_tails(
    options: ReadOptions, names: tuple[str, ...], partition: TailPartition, *, is_one_moment: bool
) -> Iterator[pa.RecordBatch]:
    # Not above: only a query with a service loads grpc.
    from stratalog.client.retry import LONG_WORK
    from stratalog.pipeline.source.store_view import reading_store
    from stratalog.pipeline.source.tail_scan import TailScan

    _tune_worker()
    assert options.service is not None, "only a service has tails"
    with ExitStack() as resources:
        client = resources.enter_context(options.service.sync_client(LONG_WORK))

        @cache
        def reader() -> StoreReader:
            return resources.enter_context(reading_store(options.store_url))

        def tiered_now(span: TailSpan) -> TieredPartition:
            return reader().tiered_now(TopicIdPartition(UUID(span.topic_id), span.partition))

        scan = TailScan(
            client,
            names,
            tiered_now,
            isolation=options.isolation,
            fails_on_data_loss=options.fails_on_data_loss,
            is_one_moment=is_one_moment,
        )
        yield from scan.scan(partition.spans)


@cache
def _tune_worker() -> None:
    """Make this worker of Spark faster, once all is imported. Spark collects garbage after each task, and
    would look at all objects of all modules each time, which took as long as to decode 32 MiB of records."""
    from stratalog.base.process_tuning import keep_freed_memory

    gc.freeze()
    keep_freed_memory(_KEPT_BYTES)
