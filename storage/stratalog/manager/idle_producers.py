"""Forgets idle producers of all logs when these know nearly as many together as they may.

Each look takes one log after the other, under that log's lock alone, and first the producers that have been
idle for longest. It comes back while the room is nearly full, because producers become idle with time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from stratalog.base.scheduler import ScheduledTask, Scheduler
from stratalog.log.producers.producer_room import IDLE_MS, ProducerRoom
from stratalog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

LOOK_PERIOD_MS = 10_000
"""Time between the looks at a room that is nearly full: shorter than clients wait for an append."""

_IDLE_STEPS_MS = (16 * IDLE_MS, 4 * IDLE_MS, IDLE_MS)


class IdleProducers:
    """The looks for idle producers. Thread-safe: `_lock` guards whether one waits or runs; nothing else is
    called under it but the scheduler."""

    def __init__(
        self, scheduler: Scheduler, room: ProducerRoom, logs: Callable[[], Sequence[UnifiedLog]]
    ) -> None:
        """`logs` returns the open logs, which count in the room."""
        self._scheduler = scheduler
        self._room = room
        self._logs = logs
        self._lock = threading.Lock()
        self._next_look: ScheduledTask | None = None
        self._is_closed = False
        self._was_full = False
        room.ask_when_nearly_full(self._begin)

    def _begin(self) -> None:
        with self._lock:
            if self._next_look is None and not self._is_closed:
                self._next_look = self._scheduler.once("forget idle producers", self._look)

    def _look(self) -> None:
        try:
            forgotten_count = self._forget()
            if forgotten_count:
                logger.info("forgot %d idle producers to make room for new ones", forgotten_count)
            self._tell_if_full()
        finally:
            with self._lock:
                self._next_look = None
                if self._room.is_nearly_full and not self._is_closed:
                    self._next_look = self._scheduler.once(
                        "forget idle producers", self._look, LOOK_PERIOD_MS
                    )

    def _forget(self) -> int:
        forgotten_count = 0
        for idle_ms in _IDLE_STEPS_MS:
            for log in self._logs():
                surplus_count = self._room.surplus_count
                if not surplus_count:
                    return forgotten_count
                forgotten_count += log.forget_idle_producers(idle_ms, surplus_count)
        return forgotten_count

    def _tell_if_full(self) -> None:
        is_full = self._room.is_full
        if is_full and not self._was_full:
            logger.warning(
                "the partitions know %d producers, as many as they may (max-producer-count), and too few"
                " are idle: new ones are refused for now; look for a client that takes an id for each append",
                self._room.count,
            )
        self._was_full = is_full

    def close(self) -> None:
        """Begin no further look."""
        with self._lock:
            self._is_closed = True
            if self._next_look is not None:
                self._next_look.cancel()
