"""The rows of an Arrow batch by their topics. Imports pyarrow."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.base.errors import InvalidRequestError
from stratalog.client.sending.arrow_rows import COLUMNS, rows_of
from stratalog.pipeline.sink.topic_demands import naming_topic
from stratalog.record.record_rows import RecordRows


def rows_by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, RecordRows]]:
    """Yield the rows of each topic, as `tables_by_topic`. Raises InvalidRequestError as a producer, too."""
    for name, table in tables_by_topic(batch, topic):
        with naming_topic(name):
            for rows in rows_of(table):
                yield name, rows


def tables_by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic, in their order, with the columns that a producer takes. `topic` is that
    of all rows; None: the column has it. Raises InvalidRequestError for a row without a topic."""
    columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names if name in COLUMNS}
    if "headers" in columns:
        columns["headers"] = _without_nulls(columns["headers"])
    table = pa.RecordBatch.from_pydict(columns)
    if topic is None:
        yield from _divided(table, batch.column("topic"))
    else:
        yield topic, table


def _divided(table: pa.RecordBatch, topics: Any) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topics.null_count:
        raise InvalidRequestError("a row has no topic; fill the column topic, or set the option topic")
    encoded: Any = topics.dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    for index, name in enumerate(names):
        yield name, table if len(names) == 1 else _selected(table, encoded.indices, index)


def _selected(table: pa.RecordBatch, indices: Any, index: int) -> pa.RecordBatch:
    return table.filter(pc.equal(indices, pa.scalar(index, indices.type)))


def _without_nulls(headers: Any) -> Any:
    """Rows without headers as rows with none."""
    if headers.null_count == 0:
        return headers
    none: Any = pa.scalar([], headers.type)
    return pc.coalesce(headers, none)
