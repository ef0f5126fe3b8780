"""The time of an event loop that passes faster than it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest


class SlowTime:
    """The time of the running loop, which a test moves on. Belongs to the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self.passed_s = 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self.passed_s)

    def pass_s(self, duration_s: float) -> Callable[[], None]:
        """A function that lets so much time pass."""

        def passing() -> None:
            self.passed_s += duration_s

        return passing
