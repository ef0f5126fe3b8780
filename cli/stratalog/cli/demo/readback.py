"""Reads the demonstration's topics back through the service, into plain dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.client.client import Client


@dataclass(slots=True)
class KeyedTopic:
    """What a reader from offset 0 finds in a keyed topic, folded as a consumer would. Not thread-safe."""

    state: dict[bytes, bytes | None] = field(default_factory=dict[bytes, bytes | None])
    records: int = 0
    disorder: int = 0
    """Records whose offset was not above the one before in their partition."""


async def read_keyed(client: Client, topic: str) -> KeyedTopic:
    """Every record from the log start to the high watermark, in order, the last value of a key winning."""
    found = KeyedTopic()
    last: dict[int, int] = {}
    consumer = client.consumer(await client.earliest(topic), end_offsets=await client.latest(topic))
    async for fetched in consumer.fetches():
        partition = fetched.topic_partition.partition
        for record in fetched.records:
            assert record.key is not None, "the service refuses records without a key on a compacted topic"
            found.state[record.key] = record.value
            found.records += 1
            found.disorder += record.offset <= last.get(partition, -1)
            last[partition] = record.offset
    return found


async def read_values(client: Client, topic: str) -> list[bytes]:
    """The value of every record of a topic."""
    values: list[bytes] = []
    consumer = client.consumer(await client.earliest(topic), end_offsets=await client.latest(topic))
    async for fetched in consumer.fetches():
        values += [record.value for record in fetched.records if record.value is not None]
    return values
