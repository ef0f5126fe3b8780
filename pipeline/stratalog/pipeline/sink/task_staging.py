"""The part of a task in a write: its rows become staged batches. Nothing that a reader sees comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.base.clock import SystemClock
from stratalog.base.types import TopicPartition
from stratalog.client.sending.batch_receipt import UNKNOWN_OFFSET
from stratalog.pipeline.sink.sink_options import SinkOptions
from stratalog.pipeline.sink.staging_topic import (
    PARTITION_COUNT,
    ROWS,
    StagedPlaces,
    StagedTask,
    staging_config,
    target_headers,
)
from stratalog.pipeline.sink.target_batches import Target, TargetBatch, TargetBatches
from stratalog.pipeline.sink.topic_rows import rows_by_topic

if TYPE_CHECKING:
    from stratalog.client.blocking.sync_client import SyncClient
    from stratalog.record.native.record_accumulator import Delivery


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
        sent: list[tuple[Delivery, Target, int]] = []
        with self._client.producer(linger_ms=0) as producer:
            for one in chain((first,), complete):
                headers = target_headers(one.target)
                delivery = producer.send(topic, self._attempt, one.batch, partition=ROWS, headers=headers)
                counts[one.target] += one.record_count
                sent.append((delivery, one.target, one.record_count))
        return StagedTask(
            self._attempt,
            start_offset,
            end_offset=self._end_offset(),
            batch_count=len(sent),
            record_counts=tuple(counts.items()),
            places=_places(sent, list(counts)),
        )

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


def _places(sent: Iterable[tuple[Delivery, Target, int]], targets: Sequence[Target]) -> StagedPlaces | None:
    """The places of batches that are stored; None if the server has forgotten one."""
    indexes = {target: index for index, target in enumerate(targets)}
    places = StagedPlaces.none()
    for delivery, target, record_count in sent:
        offset = delivery.result().offset
        if offset == UNKNOWN_OFFSET:
            return None
        places.add(offset, indexes[target], record_count)
    return places
