"""The operating system's clocks: waits that are longer than it takes."""

from __future__ import annotations

import threading

import pytest

from stratalog.base.clock import SystemClock


def test_a_wait_is_as_long_as_the_system_takes_at_most() -> None:
    changed, begun = threading.Condition(), threading.Event()
    outcomes: list[bool] = []

    def wait() -> None:
        with changed:
            begun.set()
            outcomes.append(SystemClock().wait(changed, 2.0**63))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert begun.wait(30)
    with changed:
        changed.notify_all()
    waiting.join(30)
    assert outcomes == [True]


def test_a_sleep_is_as_long_as_the_system_takes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr("time.sleep", asked.append)
    SystemClock().sleep(2.0**63)
    assert asked == [threading.TIMEOUT_MAX]
