"""Consumers iterate over the records of a topic."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from stratalog.client.consuming.consumer_settings import ConsumerSettings
from stratalog.client.consuming.topic_follower import TopicFollower
from stratalog.client.position import Place, position_of
from stratalog.client.whole_number import INT32_MAX, whole_number
from stratalog.record.native.consumer_records import ConsumerRecord, RecordCursor


class Consumer:
    """Iterates over records, in the order of offsets within a partition. Belongs to one event loop.

    There is one iteration: a second `async for` goes on behind the last record, also if the first one was
    left, cancelled or failed. Records that were fetched and not yielded come next. Behind `until` and
    `max_records` there is nothing more; `seek` may go back before `until`. Only one task at a time may wait
    for records; another one gets InvalidRequestError.

    The session with the server goes on between two iterations. `async with`, or `aclose`, ends it at once;
    otherwise it ends with the consumer. There are no consumer groups: to continue later, keep `positions`.
    """

    def __init__(self, follower: TopicFollower, settings: ConsumerSettings) -> None:
        self._follower = follower
        self._lists = _RecordLists(follower, settings.max_records)
        self._cursor = RecordCursor(self._lists.next_list)

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition, to continue later: the `start` of another consumer. Empty before
        the first record is asked for. A partition is missing until its owner has answered, unless the
        consumer was given an offset for it."""
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

    def batches(self) -> AsyncIterator[list[ConsumerRecord]]:
        """Yield the records in lists, each of one partition, as they are decoded, which is cheaper. It is the
        same iteration: lists go on behind the last single record, and the other way round."""
        return _Batches(self._cursor, self._lists)

    async def fill(self) -> bool:
        """Fetch the next list unless a record is at hand, and take nothing. Returns False at the end. Raises
        as the iteration."""
        if self.has_next:
            return True
        try:
            records = await self._lists.next_list()
        except StopAsyncIteration:
            return False
        # Nothing waits from here on, so that no cancellation loses the list.
        self._lists.lay_ready([records[0], *records])
        # The cursor begins the list, and takes the first record, which is there twice.
        await anext(self._cursor)
        return True

    async def seek(self, partition: int, place: Place) -> None:
        """Go on from another position of a partition: an offset, a name, a time, or a distance from the end
        as a negative number. Raises InvalidRequestError, UnknownTopicOrPartitionError, and as the first
        record of a consumer with this start."""
        number = whole_number("partition", partition, 0, INT32_MAX)
        await self._follower.seek(number, position_of(place))
        upcoming = self._cursor.peek()
        if upcoming is not None and upcoming.partition == number:
            self._cursor.take_rest()

    async def aclose(self) -> None:
        """End the session. An iteration that waits in another task ends. May be repeated; another iteration
        goes on behind the last record, in a new session."""
        await self._follower.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _RecordLists:
    """The records of a follower in lists, up to `max_records`. Belongs to one event loop. The session ends
    with this object, which every iteration holds, and the session does not."""

    def __init__(self, follower: TopicFollower, max_records: int | None) -> None:
        self._follower = follower
        self._left_count = max_records
        self._ready: list[ConsumerRecord] = []
        weakref.finalize(self, follower.abandon).atexit = False

    async def next_list(self) -> list[ConsumerRecord]:
        """The next records. Raises StopAsyncIteration at the end, and as the follower."""
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        if self._left_count == 0:
            await self._follower.close()
            raise StopAsyncIteration
        # Nothing waits between a part and its return, so that no cancellation loses it.
        while (part := await self._follower.next_part()) is not None:
            if part.records:
                return self._limited(part.records)
        raise StopAsyncIteration

    def lay_ready(self, records: list[ConsumerRecord]) -> None:
        """Make this the next list."""
        self._ready = records

    def _limited(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records up to the limit, which are counted."""
        if self._left_count is None:
            return records
        taken = records[: self._left_count]
        if len(taken) < len(records):
            self._follower.step_back(records[len(taken)])
        self._left_count -= len(taken)
        return taken


class _Batches:
    """The iterator over lists. Belongs to one event loop."""

    def __init__(self, cursor: RecordCursor, lists: _RecordLists) -> None:
        self._cursor = cursor
        self._lists = lists

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ConsumerRecord]:
        return self._cursor.take_rest() or await self._lists.next_list()
