"""Which of a shard's uploaders has a partition: one for rolled segments, and one for tails that callers wait
for.

Each slice begins at the tiered end, so two uploaders of one partition would spoil each other's objects. Of
different partitions they run side by side: a waiting tail does not wait for a backlog of segments that are
not its own. Only tails take precedence: a pass over segments ends with the object that it builds once a tail
waits for one of its partitions.

A partition is taken until its uploader has told the log what became of its last commit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from stratalog.base.clock import Clock
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition

_LOOK_S = 0.1
"""Time between two looks of a waiting thread at the stop signal."""


class UploadTurns:
    """The partitions that uploaders have. Thread-safe: `_changed` guards the holders."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._holders: dict[TopicIdPartition, object] = {}
        self._wanted: dict[TopicIdPartition, object] = {}
        """Those that the uploader with precedence asked for last, and did not get."""

    def take(self, tips: Iterable[TopicIdPartition], holder: object) -> set[TopicIdPartition]:
        """Take those of the partitions that no other uploader has; returns them."""
        with self._changed:
            return self._take(tips, holder)

    def take_first(self, tips: Iterable[TopicIdPartition], holder: object) -> set[TopicIdPartition]:
        """Take partitions with precedence, as `take`: until the next call no other uploader gets the
        partitions that are left. One holder calls this."""
        with self._changed:
            wanted = set(tips)
            self._wanted.clear()
            taken = self._take(wanted, holder)
            self._wanted.update(dict.fromkeys(wanted - taken, holder))
            return taken

    def take_all(self, tips: Iterable[TopicIdPartition], holder: object, stop: StopSignal) -> None:
        """Take all of the partitions, as soon as no other uploader has one. Raises StoppingError, with those
        taken that were free."""
        left = set(tips)
        with self._changed:
            while left:
                left -= self._take(left, holder)
                if left:
                    stop.check()
                    self._clock.wait(self._changed, _LOOK_S)

    def is_wanted(self, holder: object) -> bool:
        """Whether an uploader with precedence waits for a partition that this one has."""
        with self._changed:
            return any(self._holders.get(tip) is holder for tip in self._wanted)

    def release(self, tips: Iterable[TopicIdPartition], holder: object) -> None:
        """Let go of those of the partitions that the uploader has."""
        with self._changed:
            for tip in tips:
                if self._holders.get(tip) is holder:
                    del self._holders[tip]
            self._changed.notify_all()

    def _take(self, tips: Iterable[TopicIdPartition], holder: object) -> set[TopicIdPartition]:
        """Called with `_changed` held."""
        return {
            tip
            for tip in tips
            if self._wanted.get(tip, holder) is holder and self._holders.setdefault(tip, holder) is holder
        }
