"""The batches of a producer as they are settled, for tests of how records are batched."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.client.producer import Producer
from stratalog.client.sending.sealed_batch import SealedBatch


class SettledBatch(NamedTuple):
    """A batch that is acknowledged (no error) or has failed."""

    topic: str
    record_count: int
    error: LogStoreError | None


def settled_batches(producer: Producer) -> list[SettledBatch]:
    """A list that grows with each batch. Call it before the first record is sent."""
    settled: list[SettledBatch] = []
    on_settled = producer.on_settled

    def noting(batch: SealedBatch, error: LogStoreError | None) -> None:
        settled.append(SettledBatch(batch.topic_partition.topic, batch.record_count, error))
        on_settled(batch, error)

    vars(producer)["on_settled"] = noting
    return settled
