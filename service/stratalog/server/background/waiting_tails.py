"""The partitions that wait for a commit of their tails, and the time at which the next turn is due.

A turn begins

* `interval_ms` after the begin of the one before, so that an append which comes alone does not wait,
* or as soon as `buffer_bytes` wait; where a part of them waits, that part of the interval is left out. A
  producer that waits for its answers before it sends more would fill no object, however long the turn waited.
  So there is at most a turn for each interval, and one for each `buffer_bytes`. While an upload is under way,
  twice as many fill the buffer: a turn costs the same however much it has, and what comes sooner would mostly
  wait for that upload. They still make one object;
* but never sooner than the partitions that wait make more than `max_slices_per_s` slices in a second: slices
  stay in the metadata until compaction has merged them.

A partition that fails by itself is put off: it is tried again after a pause that doubles with each failure in
a row, or with its next append.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.types import TopicIdPartition
from stratalog.server.background.pass_outcome import Backlog
from stratalog.server.partitions.hosted_partition import HostedPartition

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
BUSY_FACTOR = 2
"""The largest object has so many buffers, and a turn waits for all of them while an upload is under way."""


class CommitSettings(NamedTuple):
    """When tails are committed."""

    interval_ms: int
    """Time between the begins of two turns."""
    buffer_bytes: int
    """A turn begins as soon as appends of so many bytes wait, and the sooner the more of them do. Twice as
    many while an upload is under way."""
    max_slices_per_s: int
    """The interval is longer where so many partitions wait that they would make more slices in a second."""
    timeout_ms: int
    """An append fails that is not committed after this long."""


class _PutOff(NamedTuple):
    partition: HostedPartition
    until_s: float


class WaitingTails:
    """The partitions that wait for a turn. Guarded by the lock of its `TailCommits`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[TopicIdPartition, HostedPartition] = {}
        self._size_bytes = 0
        self._since_ms = -1
        self._begin_s = clock.monotonic_s()
        """The begin of the last turn."""
        self._put_off: dict[TopicIdPartition, _PutOff] = {}
        self._failure_counts: dict[TopicIdPartition, int] = {}
        """Failures in a row."""

    @property
    def backlog(self) -> Backlog:
        """Those that wait for the next turn."""
        return Backlog(len(self._waiting), self._size_bytes, oldest_ms=self._since_ms)

    def add(self, partition: HostedPartition, size_bytes: int = 0) -> None:
        """Let a partition wait, with appends of so many bytes."""
        if not self._waiting:
            self._since_ms = self._clock.now_ms()
        tip = partition.topic_id_partition
        self._put_off.pop(tip, None)
        self._waiting[tip] = partition
        self._size_bytes += size_bytes

    def put_off(self, partition: HostedPartition) -> None:
        """Let a partition that has failed wait for a later turn."""
        tip = partition.topic_id_partition
        count = self._failure_counts.get(tip, 0)
        self._failure_counts[tip] = count + 1
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(count, 20))
        self._put_off[tip] = _PutOff(partition, self._clock.monotonic_s() + pause_s)

    def note_success(self, partitions: Iterable[HostedPartition]) -> None:
        """Forget earlier failures of partitions."""
        for partition in partitions:
            self._failure_counts.pop(partition.topic_id_partition, None)

    def take(self) -> list[HostedPartition]:
        """Begin a turn with all that wait, and those that were put off until now."""
        self._begin_s = self._clock.monotonic_s()
        due = [tip for tip, one in self._put_off.items() if one.until_s <= self._begin_s]
        taken = self._waiting | {tip: self._put_off.pop(tip).partition for tip in due}
        self._waiting, self._size_bytes = {}, 0
        return [*taken.values()]

    def due_s(self, settings: CommitSettings, *, is_hurried: bool, is_uploading: bool) -> float:
        """The monotonic time at which the next turn may begin; infinite if none waits. If it `is_hurried`,
        waiting for others to fill an object is left out. `is_uploading`: an upload is under way."""
        later_s = min((one.until_s for one in self._put_off.values()), default=math.inf)
        if not self._waiting:
            return later_s
        if is_hurried:
            return self._begin_s
        spacing_s = len(self._waiting) / settings.max_slices_per_s
        full_bytes = settings.buffer_bytes * (BUSY_FACTOR if is_uploading else 1)
        room = max(0.0, 1 - self._size_bytes / full_bytes)
        pause_s = max(spacing_s, room * settings.interval_ms / 1000)
        return min(later_s, self._begin_s + pause_s)
