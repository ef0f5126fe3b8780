"""Bells, by which threads and the event loop wake each other at the least cost.

A bell is a pipe. A thread that ends a piece of work for the event loop has one more thing to do: to wait for
the next. Done one after the other, in Python, both cost the loop the interpreter's lock: the thread wants it
back for a moment between its ring and its wait, just when the loop has woken up and works on the answer. So a
thread does both in one step without the lock. A ring that nothing follows keeps the lock: the pipe never
makes it wait, and the thread that it wakes could not do anything yet. The steps are compiled if possible;
their twins in Python do the same, more slowly.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from stratalog.record.native.kernels import NATIVE

NO_BELL = -1
"""Stands for the writer of no bell."""
_RINGS_BYTES = 4096


class Steps(NamedTuple):
    """The calls of the system. All raise OSError."""

    ring: Callable[[int], None]
    """Rings the bell that has this writer. One that is full of rings that were not heard is rung."""
    hear: Callable[[int], None]
    """Takes the rings of the bell that has this reader, of which there is one."""
    ring_and_wait: Callable[[int, int], None]
    """Rings the bell that has this writer, unless it is `NO_BELL`, and returns once the bell that has this
    reader was rung."""


def _ring(writer: int) -> None:
    with suppress(BlockingIOError):
        os.write(writer, b"\0")


def _hear(reader: int) -> None:
    with suppress(BlockingIOError):
        os.read(reader, _RINGS_BYTES)


def _ring_and_wait(writer: int, reader: int) -> None:
    if writer != NO_BELL:
        _ring(writer)
    _hear(reader)


STEPS_IN_PYTHON = Steps(_ring, _hear, _ring_and_wait)


def _compiled() -> Steps | None:
    """The compiled steps, if they were built and the environment wants them."""
    if not NATIVE:
        return None
    try:
        module = importlib.import_module("stratalog.server._bells")
    except ImportError:
        return None
    return Steps(module.ring, module.hear, module.ring_and_wait)


STEPS = _compiled() or STEPS_IN_PYTHON


class Bell:
    """Wakes its one listener. Thread-safe, but that nothing may use it any more once it is closed.

    Rung several times before the listener hears it, it wakes the listener once.
    """

    __slots__ = ("_steps", "reader", "writer")

    def __init__(self, *, waits: bool) -> None:
        """The listener waits by `wait_behind`, or, without `waits`, looks by `hear` once it is rung. Raises
        OSError if the process has no descriptor left."""
        self._steps = STEPS
        self.reader, self.writer = os.pipe()
        """The descriptors of its two ends."""
        os.set_blocking(self.writer, False)
        os.set_blocking(self.reader, waits)

    def ring(self) -> None:
        """Wake the listener."""
        self._steps.ring(self.writer)

    def hear(self) -> None:
        """Take all rings so far. There is one."""
        self._steps.hear(self.reader)

    def wait_behind(self, rung: Bell | None) -> None:
        """Ring that bell, if one is given, and return once this one was rung."""
        self._steps.ring_and_wait(NO_BELL if rung is None else rung.writer, self.reader)

    def close(self) -> None:
        """Give back the descriptors."""
        os.close(self.reader)
        os.close(self.writer)
