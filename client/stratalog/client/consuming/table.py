"""A table: the latest value of each key of a topic, kept up to date.

A table reads its topic from the log start, so it is for topics that are compacted or small. A record with a
value sets its key, a tombstone removes it. The records of a key must be in one partition, as Kafka's clients
put them there; records without a key are left out.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, ItemsView, Iterator, KeysView, ValuesView
from types import TracebackType
from typing import Any, Self

from stratalog.base.errors import InvalidRequestError
from stratalog.client.consuming.topic_follower import TopicFollower
from stratalog.record.native.consumer_records import ConsumerRecord


class Table:
    """The latest values by key, and the changes as they come. Belongs to one event loop, and any thread may
    look up keys; use `async with`, which returns when the table has caught up with all its partitions, and
    waits for an owner that is away.

    Keys are bytes, unless the table has a decoder for them; a text then stands for its UTF-8. Once the topic
    cannot be read any further, every look at the table raises the reason.
    """

    def __init__(self, follower: TopicFollower, *, has_bytes_keys: bool) -> None:
        self._follower = follower
        self._has_bytes_keys = has_bytes_keys
        self._values: dict[Any, Any] = {}
        follower.on_positions = self._notify
        self._progress = asyncio.Event()
        """Set, and replaced, when the positions are known, when records were applied, and at the end."""
        self._listeners: weakref.WeakSet[_Changes] = weakref.WeakSet()
        """Those of iterations, each of which holds its own, also before its first step."""
        self._work: asyncio.Task[None] | None = None

    async def caught_up(self) -> None:
        """Wait until the table has all records that were there when the call began. Raises LogStoreError, and
        InvalidRequestError once the table is closed."""
        self._require_reading()
        await self._until(lambda: self._follower.has_all_positions)
        ends = await self._follower.ends()
        await self._until(lambda: self._has_reached(ends))

    def get(self, key: Any, default: Any = None) -> Any:
        """The latest value of the key, or the default."""
        return self._current.get(self._key_of(key), default)

    def keys(self) -> KeysView[Any]:
        """The keys that have a value."""
        return self._current.keys()

    def values(self) -> ValuesView[Any]:
        """The latest values."""
        return self._current.values()

    def items(self) -> ItemsView[Any, Any]:
        """The keys with their latest values."""
        return self._current.items()

    def __getitem__(self, key: Any) -> Any:
        return self._current[self._key_of(key)]

    def __contains__(self, key: object) -> bool:
        return self._key_of(key) in self._current

    def __len__(self) -> int:
        return len(self._current)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._current)

    def changes(self) -> AsyncGenerator[ConsumerRecord]:
        """Yield the record of each change from now on; a tombstone has no value. A reader that is slower than
        the topic gets the latest change of each key, so that no queue grows beyond the table."""
        changes = _Changes()
        self._listeners.add(changes)
        return self._changes(changes)

    def __aiter__(self) -> AsyncGenerator[ConsumerRecord]:
        """Iterate over `changes`."""
        return self.changes()

    async def __aenter__(self) -> Self:
        self._work = asyncio.ensure_future(self._apply_all())
        self._work.add_done_callback(self._end)
        try:
            await self.caught_up()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading. Iterations over changes end."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait((self._work,))

    @property
    def _current(self) -> dict[Any, Any]:
        self._require_work()
        return self._values

    async def _apply_all(self) -> None:
        try:
            while (part := await self._follower.next_part()) is not None:
                self._apply(part.records)
                self._notify()
        finally:
            await self._follower.close()

    def _end(self, work: asyncio.Task[None]) -> None:
        """Wake all that wait: they raise the error of the work, if it has one."""
        if not work.cancelled():
            work.exception()
        self._notify()
        for changes in self._listeners:
            changes.arrived.set()

    def _notify(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def _apply(self, records: list[ConsumerRecord]) -> None:
        listeners = list(self._listeners)
        for record in records:
            if record.key is None:
                continue
            if record.value is None:
                self._values.pop(record.key, None)
            else:
                self._values[record.key] = record.value
            for changes in listeners:
                changes.add(record)

    async def _changes(self, changes: _Changes) -> AsyncGenerator[ConsumerRecord]:
        try:
            while not self._has_ended:
                await changes.arrived.wait()
                for record in changes.take():
                    yield record
            self._require_work()
        finally:
            self._listeners.discard(changes)

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        """Wait for the progress that makes it true. Raises as `_require_reading`."""
        while not is_reached():
            self._require_reading()
            await self._progress.wait()

    def _has_reached(self, ends: dict[int, int]) -> bool:
        positions = self._follower.readable_positions
        return all(positions[number] >= end for number, end in ends.items() if number in positions)

    @property
    def _has_ended(self) -> bool:
        """Whether the table reads no more: it is closed, there is an error, or no partition is left."""
        return self._work is None or self._work.done()

    def _require_reading(self) -> None:
        """Raise the error that ended the reading, or InvalidRequestError after another end."""
        self._require_work()
        if self._has_ended:
            raise InvalidRequestError("the table reads no more; make another one")

    def _require_work(self) -> None:
        """Raise the error that ended the reading, if one did."""
        work = self._work
        if work is None:
            raise InvalidRequestError("a table reads inside of `async with`; enter it first")
        if work.done() and not work.cancelled():
            error = work.exception()
            if error is not None:
                raise error

    def _key_of(self, key: Any) -> Any:
        return key.encode() if self._has_bytes_keys and isinstance(key, str) else key


class _Changes:
    """The changes that one reader has not seen: the latest record of each key. Belongs to an event loop."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self._records: dict[Any, ConsumerRecord] = {}

    def add(self, record: ConsumerRecord) -> None:
        # Removed first, so that the changes stay in the order of their latest records.
        self._records.pop(record.key, None)
        self._records[record.key] = record
        self.arrived.set()

    def take(self) -> list[ConsumerRecord]:
        """The changes, oldest first. Waits for others from now on."""
        taken = list(self._records.values())
        self._records.clear()
        self.arrived.clear()
        return taken
