"""The task of a write that delivers at least once: its rows are appended at once, as by any producer.

A connection that breaks doubles nothing, but a task that Spark runs again appends its rows again. A batch
that was decided on with the other delivery is refused: its rows are appended, or will be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.base.errors import InvalidRequestError
from stratalog.pipeline.sink.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions
from stratalog.pipeline.sink.topic_demands import naming_topic
from stratalog.pipeline.sink.topic_rows import tables_by_topic

if TYPE_CHECKING:
    from stratalog.client.blocking.sync_client import SyncClient
    from stratalog.client.client import Client


def append_rows(client: SyncClient, batches: Iterable[pa.RecordBatch], options: SinkOptions) -> int:
    """Append the rows of a task, and wait until all are stored. Returns their number. Raises
    LogStoreError."""
    count = 0
    with client.producer(compression=options.compression, durability=options.durability) as producer:
        for batch in batches:
            for topic, table in tables_by_topic(batch, options.topic):
                with naming_topic(topic):
                    count += producer.send_many(topic, table)
    return count


async def require_undecided(client: Client, staging_topic: str, batch: int) -> None:
    """Raise InvalidRequestError if the last decision of the query is pending, or is one on this batch or a
    later one. Raises LogStoreError."""
    from stratalog.pipeline.sink.decision_log import DecisionLog

    last, _ = await DecisionLog(client, staging_topic).read()
    if last is not None and (last.batch >= batch or not last.is_applied):
        raise InvalidRequestError(
            f"the delivery was changed to {AT_LEAST_ONCE} at a batch that is decided on with {EXACTLY_ONCE},"
            f" so its rows would be doubled; write it to its end with {EXACTLY_ONCE}, and change it then",
            staging_topic=staging_topic,
            batch=batch,
            decided_batch=last.batch,
        )
