"""Signals of a command: Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that it cleans up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from stratalog.base.stop_signal import StopSignal

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does, until the process ends."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


@contextmanager
def interrupted_by_signals() -> Generator[None]:
    """Do as `interrupt_on_signals` while the block runs; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def stopped_by_signals(stop: StopSignal) -> Generator[None]:
    """Let the first signal set `stop` while the block runs, and a second one raise KeyboardInterrupt; without
    effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set:
            raise KeyboardInterrupt
        stop.set()

    former = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_held_back() -> Generator[None]:
    """Hold back interrupts while the block runs, and raise them at its end, whatever it raises. For code that
    would turn an interrupt into another error. Main thread only.
    """
    received: list[int] = []
    former = {
        number: signal.signal(number, lambda number, _frame: received.append(number)) for number in _SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if received:
            raise KeyboardInterrupt


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
