"""The openings of logs that run beside each other: which of them remain, and how far they are.

An opening ends by its own thread, or is given up because its disk does not answer: one of the two, decided
under a lock. A thread whose opening was given up learns that at its end.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from stratalog.base.clock import Clock
from stratalog.base.types import TopicPartition
from stratalog.log.recovery.log_recovery import LoadProgress

logger = logging.getLogger(__name__)

REPORT_PERIOD_S = 5.0
MIB = 1 << 20


class OpeningProgress:
    """Logs, and waits for, openings that take long. Thread-safe: `_changed` guards it; one thread waits."""

    def __init__(
        self,
        clock: Clock,
        partitions: Iterable[TopicPartition],
        place_of: Callable[[TopicPartition], str | None],
    ) -> None:
        """`place_of` returns the log directory of a partition, or None."""
        self._clock = clock
        self._place_of = place_of
        self._changed = threading.Condition()
        self._remaining = dict.fromkeys(partitions)
        self._log_count = len(self._remaining)
        self._given_up: set[TopicPartition] = set()
        self._walks: dict[TopicPartition, LoadProgress] = {}
        self.has_failed = False
        """An opening has failed, and so have all of them: none needs to begin any more."""
        self._told_s = clock.monotonic_s()

    def walked(self, partition: TopicPartition, progress: LoadProgress) -> None:
        """Note the progress of a recovery."""
        with self._changed:
            if partition in self._remaining:
                self._walks[partition] = progress

    def end(self, partition: TopicPartition, *, has_failed: bool = False) -> bool:
        """Note the end of an opening, which is a failure of all of them if it `has_failed`. Returns False if
        it was given up: what it has opened is not wanted any more."""
        with self._changed:
            if partition in self._given_up:
                return False
            self._walks.pop(partition, None)
            del self._remaining[partition]
            self.has_failed |= has_failed
            if has_failed or not self._remaining:
                self._changed.notify_all()
            return True

    def give_up(self, partition: TopicPartition, leave: Callable[[TopicPartition], None]) -> bool:
        """Give up an opening, and call `leave` with it before its thread can come to its end. Returns False
        if it has ended."""
        with self._changed:
            if partition not in self._remaining:
                return False
            self._walks.pop(partition, None)
            del self._remaining[partition]
            self._given_up.add(partition)
            leave(partition)
            return True

    def is_given_up(self, partition: TopicPartition) -> bool:
        return partition in self._given_up

    def remaining(self) -> list[TopicPartition]:
        """The openings that have not ended, in their order."""
        with self._changed:
            return [*self._remaining]

    def places(self) -> set[str]:
        """The log directories of the openings that remain."""
        return set(filter(None, map(self._place_of, self.remaining())))

    def wait(self, until_s: float) -> bool:
        """Wait until this monotonic time, the first failure, or the end of all. Returns False if all have
        ended."""
        with self._changed:
            had_failed = self.has_failed
            while self._remaining and self.has_failed == had_failed:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    break
                self._clock.wait(self._changed, left_s)
            return bool(self._remaining)

    def tell(self, silences_s: Mapping[str, float]) -> bool:
        """Log how many remain, and where, if it is time for that; returns whether it is. `silences_s`: the
        log directories without an answer, and since when, in seconds."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            if not self._remaining or now_s - self._told_s < REPORT_PERIOD_S:
                return False
            self._told_s = now_s
            remaining, walks = [*self._remaining], sorted(self._walks.items())
        counts = Counter(self._place_of(partition) or "no log directory yet" for partition in remaining)
        places = ", ".join(
            f"{count} in {place}" + _silence(silences_s.get(place, 0))
            for place, count in sorted(counts.items())
        )
        steps = "".join(
            f"; of {partition} {walk.remaining_segment_count} segments, {walk.remaining_bytes // MIB} MiB"
            for partition, walk in walks
        )
        logger.info("opening logs: %d of %d remain, %s%s", len(remaining), self._log_count, places, steps)
        return True


def _silence(silent_s: float) -> str:
    return f" (whose disk has not answered for {silent_s:.0f} s)" if silent_s else ""
