"""Reads the demonstration's topics back through the service, into plain dictionaries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from stratalog.client.client import Client
from stratalog.client.messages import FetchedRecords


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
    async for fetched in _fetches(client, topic, advance):
        partition = fetched.topic_partition.partition
        for record in fetched.records:
            assert record.key is not None, "the service refuses records without a key on a compacted topic"
            found.state[record.key] = record.value
            found.records += 1
            found.disorder += record.offset <= last.get(partition, -1)
            last[partition] = record.offset
    return found


async def read_values(client: Client, topic: str, advance: Callable[[int], None]) -> list[bytes]:
    """The value of every record of a topic. `advance` as above."""
    values: list[bytes] = []
    async for fetched in _fetches(client, topic, advance):
        values += [record.value for record in fetched.records if record.value is not None]
    return values


async def _fetches(
    client: Client, topic: str, advance: Callable[[int], None]
) -> AsyncGenerator[FetchedRecords]:
    positions = await client.earliest(topic)
    consumer = client.consumer(positions, end_offsets=await client.latest(topic))
    async for fetched in consumer.fetches():
        yield fetched
        advance(fetched.next_offset - positions[fetched.topic_partition])
        positions[fetched.topic_partition] = fetched.next_offset
