"""The answers to probes of health over HTTP, beside the metrics.

A probe of liveness asks whether the process works at all: whether its event loop takes turns. It must hold
wherever a restart would make things worse, as while the logs are opened, and where every bound of calls and
connections of gRPC is reached. A probe of readiness asks whether the server serves, as gRPC's health does,
and whether its port is listened on, which gRPC's health cannot say.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

LIVE_PATH = "/healthz"
READY_PATH = "/readyz"

TURN_S = 5.0
"""An event loop that takes no turn for this long hangs. Probes mostly give up before."""


class ProbeAnswer(NamedTuple):
    """The answer to a probe."""

    status: str
    """The code of HTTP with its phrase."""
    text: str


OK = ProbeAnswer("200 OK", "ok")


def unavailable(text: str) -> ProbeAnswer:
    """The answer that something is wrong."""
    return ProbeAnswer("503 Service Unavailable", text)


_HANGS = unavailable(f"the event loop has taken no turn for {TURN_S:g} s")
NOT_SERVING = "the server does not serve: it starts or stops, or another one has its shards"
"""The most common reason against readiness."""


class HealthProbes:
    """Answers probes by their paths. Thread-safe."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, why_not: Callable[[], str], turn_s: float = TURN_S
    ) -> None:
        """`why_not` says why the server is not ready, empty if it is; any thread calls it. `turn_s` is the
        longest wait for a turn of the loop."""
        self._loop = loop
        self._why_not = why_not
        self._turn_s = turn_s
        self._answers: Mapping[str, Callable[[], ProbeAnswer]] = {
            LIVE_PATH: self._live,
            READY_PATH: self._ready,
        }

    def answer(self, path: str) -> ProbeAnswer | None:
        """The answer to a probe of this path; None if it is no path of a probe. Waits for a turn of the event
        loop."""
        find = self._answers.get(path)
        return None if find is None else find()

    def _live(self) -> ProbeAnswer:
        turned = threading.Event()
        try:
            self._loop.call_soon_threadsafe(turned.set)
        except RuntimeError:
            # The loop is closed.
            return _HANGS
        return OK if turned.wait(self._turn_s) else _HANGS

    def _ready(self) -> ProbeAnswer:
        live = self._live()
        if live is not OK:
            return live
        reason = self._why_not()
        return unavailable(reason) if reason else OK
