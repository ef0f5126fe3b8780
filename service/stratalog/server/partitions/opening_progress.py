"""How far the opening of many logs is, told to the log of the process while it takes long.

Whoever starts a server after a crash sees that it works, on what, and how much is left. An opening that is
quick says nothing.
"""

from __future__ import annotations

import logging
import threading

from stratalog.base.clock import Clock
from stratalog.base.types import TopicPartition
from stratalog.log.recovery.log_recovery import LoadProgress

logger = logging.getLogger(__name__)

REPORT_PERIOD_S = 5.0
MIB = 1 << 20


class OpeningProgress:
    """Thread-safe: `_lock` guards the counts. One opening."""

    def __init__(self, clock: Clock, log_count: int) -> None:
        self._clock = clock
        self._log_count = log_count
        self._lock = threading.Lock()
        self._remaining_count = log_count
        self._walks: dict[TopicPartition, LoadProgress] = {}
        self._told_s = clock.monotonic_s()

    def walked(self, partition: TopicPartition, progress: LoadProgress) -> None:
        """The partition's log is being recovered, and is that far."""
        with self._lock:
            self._walks[partition] = progress
            self._tell()

    def finished(self, partition: TopicPartition) -> None:
        """The partition can be served, or is known to be offline."""
        with self._lock:
            self._walks.pop(partition, None)
            self._remaining_count -= 1
            assert self._remaining_count >= 0
            self._tell()

    def _tell(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._remaining_count == 0 or now_s - self._told_s < REPORT_PERIOD_S:
            return
        self._told_s = now_s
        walks = "".join(
            f"; of {partition} {walk.remaining_segment_count} segments, {walk.remaining_bytes // MIB} MiB"
            for partition, walk in sorted(self._walks.items())
        )
        logger.info("opening logs: %d of %d remain%s", self._remaining_count, self._log_count, walks)
