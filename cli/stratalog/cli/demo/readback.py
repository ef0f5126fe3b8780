"""Reads the demonstration's topics back through the service, into plain dictionaries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from stratalog.client.client import Client
from stratalog.record.native.consumer_records import ConsumerRecord


@dataclass(slots=True)
class KeyedTopic:
    """The records of a keyed topic from offset 0, folded as a consumer would. Not thread-safe."""

    state: dict[bytes, bytes | None] = field(default_factory=dict[bytes, bytes | None])
    records: int = 0
    disorder: int = 0
    """Records whose offset was not above the one before in their partition."""


async def read_keyed(client: Client, topic: str, advance: Callable[[int], None]) -> KeyedTopic:
    """Read every record from the log start to the high watermark in order; the last value of a key wins.
    Calls `advance` with the number of offsets that each answer covers.
    """
    found = KeyedTopic()
    last: dict[int, int] = {}
    async for records in _batches(client, topic, advance):
        for record in records:
            partition = record.partition
            assert record.key is not None, "the service refuses records without a key on a compacted topic"
            found.state[record.key] = record.value
            found.records += 1
            found.disorder += record.offset <= last.get(partition, -1)
            last[partition] = record.offset
    return found


async def read_values(client: Client, topic: str, advance: Callable[[int], None]) -> list[bytes]:
    """The value of every record of a topic. `advance` as above."""
    values: list[bytes] = []
    async for records in _batches(client, topic, advance):
        values += [record.value for record in records if record.value is not None]
    return values


async def _batches(
    client: Client, topic: str, advance: Callable[[int], None]
) -> AsyncGenerator[list[ConsumerRecord]]:
    starts = {one.partition: offset for one, offset in (await client.earliest(topic)).items()}
    consumer = client.consume(topic, start=starts, until="latest")
    covered = sum(starts.values())
    async for records in consumer.batches():
        yield records
        before, covered = covered, sum(consumer.positions.values())
        advance(covered - before)
    advance(sum(consumer.positions.values()) - covered)
