"""Keeps the freed memory of a server within a bound, and returns it while the server is idle.

The allocator keeps freed memory for the next message, in one heap for each of some threads. Its own bound
holds for the end of a heap alone: one block that is in use there keeps all that is free below it. Messages,
objects on their way to the store and blocks of caches come and go in turns, so such a server would hold
several times what it uses. Therefore a task looks at the memory that the process holds. Where that has grown
by `MAX_GROWN_BYTES` since the last return, the allocator returns every free page. So it does after a short
growth where the process has been idle meanwhile: nothing waits for those pages then.

A return of 100 MiB costs some ten milliseconds of a processor, and as much again when they are needed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from stratalog.base.process_tuning import return_freed_memory

FREED_MEMORY_MS = 2_000
"""Time between looks."""
MAX_GROWN_BYTES = 64 << 20
"""The growth after which a busy process returns what is free."""
IDLE_PART = 0.05
"""A process is idle if it takes less than this part of a processor."""
IDLE_GROWN_BYTES = 2 << 20
"""The same for one that is idle: to look for free pages costs a little, too."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class FreedMemory:
    """Returns freed memory to the system. Belongs to one task."""

    def __init__(
        self,
        resident_bytes: Callable[[], int],
        processor_s: Callable[[], float],
        give_back: Callable[[], bool],
    ) -> None:
        """`give_back` returns free pages to the system, and False if that cannot be done."""
        self._resident_bytes = resident_bytes
        self._processor_s = processor_s
        self._give_back = give_back
        self._least_bytes = resident_bytes()
        """The least memory since the last return."""
        self._used_s = processor_s()
        self.return_count = 0

    def look(self) -> None:
        """Return freed memory if there may be too much of it. Every `FREED_MEMORY_MS`."""
        used_s = self._processor_s()
        is_idle = used_s - self._used_s < IDLE_PART * FREED_MEMORY_MS / 1000
        self._used_s = used_s
        held_bytes = self._resident_bytes()
        grown_bytes = held_bytes - self._least_bytes
        if grown_bytes > (IDLE_GROWN_BYTES if is_idle else MAX_GROWN_BYTES) and self._give_back():
            self.return_count += 1
            self._least_bytes = self._resident_bytes()
        self._least_bytes = min(self._least_bytes, held_bytes)


def freed_memory() -> FreedMemory | None:
    """That of this process; None where the system does not tell its memory."""
    try:
        _resident_bytes()
    except OSError:
        return None
    return FreedMemory(_resident_bytes, _processor_s, return_freed_memory)


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def _processor_s() -> float:
    """The time that the process has spent on processors."""
    taken = os.times()
    return taken.user + taken.system
