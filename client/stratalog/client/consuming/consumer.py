"""Consumers iterate over the records of a topic."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Self

from stratalog.client.consuming.consumer_settings import ConsumerSettings
from stratalog.client.consuming.topic_follower import TopicFollower
from stratalog.client.position import Place
from stratalog.record.native.consumer_records import ConsumerRecord, RecordCursor


class Consumer:
    """Iterates over records, in the order of offsets within a partition. Belongs to one event loop.

    There is one iteration: a second `async for` goes on behind the last record. `async with`, or `aclose`,
    ends the session at once; otherwise it ends with the consumer. There are no consumer groups: to continue
    later, keep `positions`.
    """

    def __init__(self, follower: TopicFollower, settings: ConsumerSettings) -> None:
        self._follower = follower
        self._lists = _lists(follower, settings.max_records)
        self._cursor = RecordCursor(self._lists.__anext__)

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition, to continue later: the `start` of another consumer. Empty before
        the first record is asked for."""
        positions = self._follower.positions
        # The follower is already behind all records of the list at hand.
        upcoming = self._cursor.peek()
        if upcoming is not None:
            positions[upcoming.partition] = upcoming.offset
        return positions

    @property
    def topic_id(self) -> str:
        """The topic's id: with `positions` it finds the same records again, or none. Empty before the first
        record is asked for."""
        return self._follower.topic_id

    @property
    def has_next(self) -> bool:
        """Whether the next record is at hand, so that the iteration does not wait for it."""
        return self._cursor.peek() is not None

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield single records."""
        return self._cursor

    async def batches(self) -> AsyncGenerator[list[ConsumerRecord], None]:
        """Yield the records in lists, each of one partition, as they are decoded, which is cheaper."""
        if rest := self._cursor.take_rest():
            yield rest
        async for records in self._lists:
            yield records

    async def seek(self, partition: int, place: Place) -> None:
        """Go on from another position of a partition: an offset, a name, a time, or a distance from the end
        as a negative number. Raises UnknownTopicOrPartitionError."""
        await self._follower.seek(partition, place)
        upcoming = self._cursor.peek()
        if upcoming is not None and upcoming.partition == partition:
            self._cursor.take_rest()

    async def aclose(self) -> None:
        """End the session and the iteration."""
        await self._lists.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def _lists(
    follower: TopicFollower, max_records: int | None
) -> AsyncGenerator[list[ConsumerRecord], None]:
    """The records of the follower in lists, up to `max_records`."""
    left = max_records
    parts = follower.parts()
    try:
        async for part in parts:
            records = part.records
            if left is not None and len(records) >= left:
                follower.step_back(records, left)
                yield records[:left]
                return
            if records:
                left = None if left is None else left - len(records)
                yield records
    finally:
        await parts.aclose()
