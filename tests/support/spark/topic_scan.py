"""The plan of a query over a store at hand, as the data source makes it, without Spark."""

from __future__ import annotations

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.source.partition_range import ranges_of
from stratalog.pipeline.source.read_options import parse_options
from stratalog.pipeline.source.scan_plan import NO_BOUNDS, RowBounds, plan_tasks
from stratalog.pipeline.source.slice_span import SliceSpan
from stratalog.pipeline.source.store_view import StoreReader
from stratalog.remote.metadata.head.page_loader import run_in_order


def topic_tasks(
    store: ObjectStore, bounds: RowBounds = NO_BOUNDS, /, **options: str
) -> list[list[SliceSpan]]:
    """The tasks of a query with these options."""
    parsed = parse_options({"store": store.url, **options}, is_stream=False)
    reader = StoreReader(store, run_in_order)
    return plan_tasks(reader, ranges_of(reader, reader.view(parsed), parsed), parsed, bounds)


def topic_spans(store: ObjectStore, bounds: RowBounds = NO_BOUNDS, /, **options: str) -> list[SliceSpan]:
    """The spans of a query with these options, in the order of the tasks."""
    return [span for task in topic_tasks(store, bounds, **options) for span in task]
