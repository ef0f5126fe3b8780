"""Sends a finished object until its outcome is known to be good, a few times at most.

The same bytes go under the same name again after an unknown outcome: whether an earlier attempt has landed
makes no difference then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreUnavailableError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.objects.object_writer import FinishedObject
from stratalog.remote.store_layout import StoreLayout


class PutAttempts(NamedTuple):
    """How patiently an object is sent."""

    attempt_count: int = 3
    """How often it is sent before its name is given up."""
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
    for attempt in range(attempts.attempt_count):
        before_attempt()
        try:
            finished.store(store, layout, before_part=before_part)
        except StoreUnavailableError:
            if attempt + 1 == attempts.attempt_count:
                raise
            clock.sleep(attempts.backoff_ms * 2**attempt / 1000)
        else:
            return
