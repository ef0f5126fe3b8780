"""Iterates over the records of a topic in a thread without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from stratalog.client.blocking.consumer_calls import ConsumerCalls
from stratalog.record.native.consumer_records import ConsumerRecord

_T = TypeVar("_T")


class SyncConsumer(ConsumerCalls):
    """Iterates over records, in the order of offsets within a partition. Thread-safe, but only one thread
    at a time may iterate.

    The loop fetches lists of records, and the caller's thread takes them: an interruption of the wait, such
    as KeyboardInterrupt, loses no record. As with `Consumer`, there is one iteration: a second `for` goes on
    behind the last record. The session goes on between the two; `with`, or `aclose`, ends it at once.
    """

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield single records."""
        records = aiter(self._consumer)
        while self._fill():
            yield _at_once(anext(records))

    def batches(self) -> Iterator[list[ConsumerRecord]]:
        """Yield the records in lists, each of one partition, as they are decoded, which is cheaper. It is the
        same iteration: lists go on behind the last single record, and the other way round."""
        lists = aiter(self._consumer.batches())
        while self._fill():
            yield _at_once(anext(lists))

    def _fill(self) -> bool:
        """Whether there is a record, which is at hand then."""
        return self._consumer.has_next or self.fill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.aclose()


def _at_once(ready: Awaitable[_T]) -> _T:
    """The result of an awaitable that does not wait."""
    try:
        next(ready.__await__())
    except StopIteration as done:
        result: _T = done.value
        return result
    raise AssertionError("it waits")
