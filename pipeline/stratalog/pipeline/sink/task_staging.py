"""The part of a task in a write: its rows become staged batches. Nothing that a reader sees comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.base.clock import SystemClock
from stratalog.base.types import TopicPartition
from stratalog.pipeline.sink.sink_options import SinkOptions
from stratalog.pipeline.sink.staging_topic import (
    PARTITION_COUNT,
    ROWS,
    StagedTask,
    staging_config,
    target_headers,
)
from stratalog.pipeline.sink.target_batches import Target, TargetBatch, TargetBatches
from stratalog.pipeline.sink.topic_rows import rows_by_topic

if TYPE_CHECKING:
    from stratalog.client.blocking.sync_client import SyncClient


class TaskStaging:
    """Stages the rows of an attempt of a task. Belongs to one thread. It does nothing at the
    service before the first row, because many tasks have none."""

    def __init__(self, client: SyncClient, topic: str, attempt: str, options: SinkOptions) -> None:
        """`topic` is the staging topic, which is created if need be. `attempt` is an id of this attempt
        alone."""
        self._client = client
        self._rows = TopicPartition(topic, ROWS)
        self._attempt = attempt
        self._options = options

    def stage(self, batches: Iterable[pa.RecordBatch], first_partition: int) -> StagedTask:
        """Stage all rows; returns when they are durable. Rows without a key begin at `first_partition`.
        Raises LogStoreError; the attempt has failed then."""
        describe, codec = self._client.topics.describe, self._options.compression
        encoder = TargetBatches(describe, SystemClock(), codec, first_partition)
        complete = self._complete(encoder, batches)
        first = next(complete, None)
        if first is None:
            return StagedTask(self._attempt, 0, 0, 0, ())
        topic = self._rows.topic
        self._create()
        start_offset = self._end_offset()
        counts: Counter[Target] = Counter()
        batch_count = 0
        with self._client.producer(linger_ms=0) as producer:
            for one in chain((first,), complete):
                headers = target_headers(one.target)
                _ = producer.send(topic, self._attempt, one.batch, partition=ROWS, headers=headers)
                counts[one.target] += one.record_count
                batch_count += 1
        end_offset = self._end_offset()
        return StagedTask(self._attempt, start_offset, end_offset, batch_count, tuple(counts.items()))

    def _create(self) -> None:
        """Create the staging topic, or make it durable enough for these rows."""
        topic, is_object_durable = self._rows.topic, self._options.durability == "object"
        config = staging_config(is_object_durable=is_object_durable)
        found = self._client.topics.create(topic, partitions=PARTITION_COUNT, config=config, exists_ok=True)
        if is_object_durable and found.config.get("min.durability") != "object":
            self._client.topics.alter(topic, config, topic_id=found.topic_id)

    def _complete(self, encoder: TargetBatches, batches: Iterable[pa.RecordBatch]) -> Iterator[TargetBatch]:
        for batch in batches:
            for topic, rows in rows_by_topic(batch, self._options.topic):
                yield from encoder.add(topic, rows)
        yield from encoder.finish()

    def _end_offset(self) -> int:
        return self._client.offsets([self._rows], "latest")[self._rows]
