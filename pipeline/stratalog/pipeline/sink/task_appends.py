"""The task of a write that delivers at least once: its rows are appended at once, as by any producer.

A connection that breaks doubles nothing, but a task that Spark runs again appends its rows again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.pipeline.sink.sink_options import SinkOptions
from stratalog.pipeline.sink.topic_rows import tables_by_topic

if TYPE_CHECKING:
    from stratalog.client.blocking.sync_client import SyncClient


def append_rows(client: SyncClient, batches: Iterable[pa.RecordBatch], options: SinkOptions) -> int:
    """Append the rows of a task, and wait until all are stored. Returns their number. Raises
    LogStoreError."""
    count = 0
    with client.producer(compression=options.compression, durability=options.durability) as producer:
        for batch in batches:
            for topic, table in tables_by_topic(batch, options.topic):
                count += producer.send_many(topic, table)
    return count
