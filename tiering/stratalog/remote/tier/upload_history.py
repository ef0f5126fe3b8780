"""The last uploads of each partition: when one succeeded, and how long a failing partition is left alone.

A partition fails by itself where its local log is damaged or cannot be read. It is tried again after a pause
that doubles with each failure in a row, and does not hold up the others. A store that does not answer is no
fault of a partition. The history is lost with the process: the next one tries every partition.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicIdPartition

FIRST_PAUSE_S = 10.0
MAX_PAUSE_S = 300.0
NEVER_MS = -1


class UploadFailure(NamedTuple):
    """The last of a partition's failures in a row."""

    error: LogStoreError
    failure_count: int
    retry_at_s: float
    """Monotonic time before which the partition is left alone."""


class UploadHistory:
    """The last success and the failures of each partition. Guarded by the lock of its `Uploader`, except that
    `last_success_ms` and `failure_of` are thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[TopicIdPartition, UploadFailure] = {}
        self._success_ms: dict[TopicIdPartition, int] = {}

    def last_success_ms(self, tip: TopicIdPartition) -> int:
        """Wall time of the last commit with records of the partition; -1 if there was none since the
        start."""
        return self._success_ms.get(tip, NEVER_MS)

    def failure_of(self, tip: TopicIdPartition) -> LogStoreError | None:
        """The error of the partition's last try; None if it did not fail."""
        failure = self._failures.get(tip)
        return None if failure is None else failure.error

    def pausing(self, tip: TopicIdPartition) -> LogStoreError | None:
        """The error because of which the partition is left alone for now."""
        failure = self._failures.get(tip)
        if failure is None or self._clock.monotonic_s() >= failure.retry_at_s:
            return None
        return failure.error

    def note_success(self, tip: TopicIdPartition) -> None:
        self._success_ms[tip] = self._clock.now_ms()

    def note_end(self, tip: TopicIdPartition, error: LogStoreError | None) -> None:
        """Note how a partition's part of a pass has ended."""
        if error is None:
            self._failures.pop(tip, None)
            return
        count = self._failures[tip].failure_count + 1 if tip in self._failures else 1
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(count - 1, 20))
        self._failures[tip] = UploadFailure(error, count, self._clock.monotonic_s() + pause_s)

    def keep_only(self, tips: Collection[TopicIdPartition]) -> None:
        """Forget partitions that are not there any more."""
        for known in (self._failures, self._success_ms):
            for tip in known.keys() - set(tips):
                del known[tip]
