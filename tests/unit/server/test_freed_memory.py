"""Freed memory goes back where it has grown, and soon where the server is idle."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stratalog.server.freed_memory import FREED_MEMORY_MS, IDLE_GROWN_BYTES, IDLE_PART, FreedMemory

MIB = 1 << 20
BUSY_S = 2 * IDLE_PART * FREED_MEMORY_MS / 1000


class Process:
    """A process of 100 MiB, which uses all of them."""

    def __init__(self, *, can_return: bool = True) -> None:
        self.used_bytes = self.held_bytes = 100 * MIB
        self.processor_s = 0.0
        self.return_count = 0
        self._can_return = can_return
        self.memory = FreedMemory(lambda: self.held_bytes, lambda: self.processor_s, self._give_back)

    def _give_back(self) -> bool:
        self.return_count += 1
        if self._can_return:
            self.held_bytes = self.used_bytes
        return self._can_return

    def look(self, held_bytes: int, *, used_bytes: int = 100 * MIB, is_busy: bool = True) -> int:
        """Look at a process that holds, and uses, so much now; returns what it holds then."""
        self.held_bytes, self.used_bytes = held_bytes, used_bytes
        self.processor_s += BUSY_S if is_busy else BUSY_S / 10
        self.memory.look()
        return self.held_bytes


def test_a_busy_process_keeps_what_it_has_freed_up_to_a_bound() -> None:
    process = Process()
    assert process.look(164 * MIB) == 164 * MIB
    assert process.look(165 * MIB) == 100 * MIB
    # Of what it uses now nothing can go back, so it is not tried again before it has grown as much once more.
    assert process.look(300 * MIB, used_bytes=300 * MIB) == 300 * MIB
    assert process.look(364 * MIB, used_bytes=300 * MIB) == 364 * MIB
    assert process.return_count == process.memory.return_count == 2
    # It has let go of some itself.
    assert process.look(120 * MIB) == 120 * MIB
    assert process.look(185 * MIB) == 100 * MIB


def test_an_idle_process_keeps_little() -> None:
    process = Process()
    grown_bytes = 101 * MIB + IDLE_GROWN_BYTES
    assert process.look(grown_bytes) == grown_bytes
    assert process.look(grown_bytes, is_busy=False) == 100 * MIB
    assert process.look(100 * MIB + IDLE_GROWN_BYTES, is_busy=False) > 100 * MIB
    assert process.return_count == 1


def test_a_library_that_cannot_return_memory_does_no_harm() -> None:
    process = Process(can_return=False)
    for _ in range(3):
        assert process.look(500 * MIB) == 500 * MIB
    assert process.memory.return_count == 0


SCRIPT = """
import ctypes
from stratalog.base.process_tuning import keep_freed_memory, return_freed_memory, share_one_heap
from stratalog.server.freed_memory import freed_memory
if not (keep_freed_memory() and share_one_heap()):
    raise SystemExit
memory = freed_memory()
assert memory is not None
held = [bytes([1]) * (1 << 20) for _ in range(200)]
small = [bytes(1_000) for _ in range(1_000)]
before = memory._resident_bytes()
del held
# What lies behind is in use, so the allocator keeps all of it.
assert memory._resident_bytes() > before - (20 << 20)
memory.look()
assert memory._resident_bytes() < before - (150 << 20), (before, memory._resident_bytes())
assert memory.return_count == 1
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc and /proc")
def test_free_pages_of_this_process_go_back() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
