"""Sends objects until the outcome is known to be good, a few times at most.

The same bytes go under the same name again after an unknown outcome: whether an earlier attempt has landed
makes no difference then. An object that is sent while it is made repeats single parts, and its completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreUnavailableError
from stratalog.objectstore.protocol import LEAST_PART_BYTES, Buffer, ObjectStore, ObjectUpload
from stratalog.remote.objects.object_writer import FinishedObject
from stratalog.remote.store_layout import StoreLayout

R = TypeVar("R")


class PutAttempts(NamedTuple):
    """How patiently an object is sent."""

    attempt_count: int = 3
    """How often it, or a part of it, is sent before its name is given up."""
    backoff_ms: int = 500
    """Pause before the second attempt; doubled for each one after it."""


def put_object(
    clock: Clock,
    store: ObjectStore,
    layout: StoreLayout,
    finished: FinishedObject,
    attempts: PutAttempts,
    before_attempt: Callable[[], None] = lambda: None,
    before_part: Callable[[int], None] = lambda _: None,
) -> None:
    """PUT the object. Calls `before_attempt` before each attempt, and `before_part` as `FinishedObject.store`
    does. Raises StoreError; after StoreUnavailableError the outcome is unknown, and the name is given up."""

    def put() -> None:
        before_attempt()
        finished.store(store, layout, before_part=before_part)

    _repeated(clock, attempts, put)


class RepeatedWrites:
    """Writes of one object, each repeated after an unknown outcome. Not thread-safe: one user at a time."""

    def __init__(self, clock: Clock, store: ObjectStore, key: str, attempts: PutAttempts) -> None:
        """`key` is fresh: it gets these bytes only."""
        self._clock = clock
        self._store = store
        self._key = key
        self._attempts = attempts
        self._upload: ObjectUpload | None = None

    def put_whole(self, data: Sequence[Buffer]) -> None:
        """Store the object in one request. Raises StoreError."""
        part_bytes = max(LEAST_PART_BYTES, sum(map(len, data)))
        self._repeated(lambda: self._store.put_parts(self._key, data, part_bytes=part_bytes))

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        """Send part `number`; the first begins the upload. Raises StoreError."""
        upload = self._upload
        if upload is None:
            # One whose answer is lost stays unfinished, until the sweep of orphans aborts it.
            upload = self._upload = self._repeated(lambda: self._store.open_upload(self._key))
        self._repeated(lambda: upload.put_part(number, data))

    def complete(self, crc: int) -> None:
        """Let the object of the parts appear; `crc` is its CRC-32C. Raises StoreError."""
        upload = self._upload
        assert upload is not None, "an upload has a part"
        self._repeated(lambda: upload.complete(crc))
        self._upload = None

    def abort(self) -> None:
        """Discard the parts of an upload that is not complete. Raises StoreError, after which the sweep of
        orphans discards them."""
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.abort()

    def _repeated(self, request: Callable[[], R]) -> R:
        return _repeated(self._clock, self._attempts, request)


def _repeated(clock: Clock, attempts: PutAttempts, request: Callable[[], R]) -> R:
    """The result of the request, which is sent again after StoreUnavailableError. Raises StoreError."""
    for attempt in range(attempts.attempt_count - 1):
        try:
            return request()
        except StoreUnavailableError:
            clock.sleep(attempts.backoff_ms * 2**attempt / 1000)
    return request()
