"""An object store whose small requests have a deadline, whatever the inner store does.

Nothing can end a request that hangs in a disk or in a network library. So each request runs on another
thread, and its caller gives it up after the deadline: the outcome is unknown then, as after a lost answer.
A hanging thread stays until the request ends. Requests for an object with several that hang are refused at
once, so their number is bounded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreUnavailableError
from stratalog.base.scheduler import RunBeside
from stratalog.objectstore.protocol import (
    DEFAULT_PART_BYTES,
    Buffer,
    ObjectInfo,
    ObjectPlace,
    ObjectStore,
    ObjectUpload,
    ReadStream,
    StoredObject,
    UnfinishedUpload,
)

R = TypeVar("R")

MAX_HANGING_COUNT = 2
"""Requests for one object that may hang at once; more are refused."""


class _Request:
    """A request under way. Guarded by the condition of the store."""

    def __init__(self) -> None:
        self.is_done = self.is_given_up = False
        self.result: object = None
        self.error: BaseException | None = None


class TimedObjectStore:
    """An object store for metadata: `put`, `get` and `get_if_changed` have the deadline, all else is the
    inner store's. Thread-safe if that one is: `_changed` guards the requests under way."""

    def __init__(self, inner: ObjectStore, clock: Clock, run_beside: RunBeside, deadline_s: float) -> None:
        """`run_beside` runs a request; if it runs it at once, there is no deadline."""
        self._inner = inner
        self._clock = clock
        self._run_beside = run_beside
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._hanging: Counter[str] = Counter()
        """The number of requests that were given up and have not ended, by key."""

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        return self._timed(key, lambda: self._inner.put(key, data, if_match=if_match, if_absent=if_absent))

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        self._inner.put_parts(key, parts, part_bytes=part_bytes)

    def open_upload(self, key: str) -> ObjectUpload:
        return self._inner.open_upload(key)

    def place_of(self, key: str) -> ObjectPlace | None:
        return self._inner.place_of(key)

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        return self._inner.copy(source, key, size_bytes)

    def get(self, key: str) -> StoredObject:
        return self._timed(key, lambda: self._inner.get(key))

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        return self._timed(key, lambda: self._inner.get_if_changed(key, etag))

    def get_range(self, key: str, position: int, size: int) -> bytes:
        return self._inner.get_range(key, position, size)

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        return self._inner.open_range(key, position, size, if_match=if_match)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, start_after=start_after)

    def delete_many(self, keys: Sequence[str]) -> None:
        self._inner.delete_many(keys)

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        return self._inner.list_uploads(prefix)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._inner.abort_upload(upload)

    def remarks(self) -> Sequence[str]:
        return self._inner.remarks()

    def close(self) -> None:
        self._inner.close()

    def _timed(self, key: str, call: Callable[[], R]) -> R:
        """The result of the call. Raises its error, and StoreUnavailableError after the deadline."""
        request = _Request()
        with self._changed:
            if self._hanging[key] >= MAX_HANGING_COUNT:
                raise StoreUnavailableError(
                    "earlier requests for the file hang, and no more are sent before one of them ends; find"
                    " out why the store does not answer; a restart helps only once it does",
                    key=key,
                    hanging=self._hanging[key],
                    store=self._inner.url,
                )
        self._run_beside(lambda: self._run(request, key, call))
        end_s = self._clock.monotonic_s() + self._deadline_s
        with self._changed:
            while not request.is_done:
                left_s = end_s - self._clock.monotonic_s()
                if left_s <= 0:
                    request.is_given_up = True
                    self._hanging[key] += 1
                    raise StoreUnavailableError(
                        "the store did not answer a request in time, so its outcome is unknown; find out why"
                        " it does not answer",
                        key=key,
                        waited_s=round(self._deadline_s),
                        store=self._inner.url,
                    )
                self._clock.wait(self._changed, left_s)
        if request.error is not None:
            raise request.error
        return cast(R, request.result)

    def _run(self, request: _Request, key: str, call: Callable[[], Any]) -> None:
        try:
            request.result = call()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            request.error = error
        with self._changed:
            request.is_done = True
            if request.is_given_up:
                self._hanging[key] -= 1
            self._changed.notify_all()
