"""Sends the parts of a job's outputs while more are written: one part is on its way at a time, so that memory
holds it and those that are gathered."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.call_beside import CallBeside
from stratalog.base.scheduler import RunBeside


class PartSends:
    """The part that is on its way. Not thread-safe: guarded by the job."""

    def __init__(self, run_beside: RunBeside) -> None:
        self._run_beside = run_beside
        self._under_way: CallBeside[None] | None = None

    def begin(self, send: Callable[[], None]) -> CallBeside[None]:
        """Begin to send a part, once the one before is there. Raises the error of that one, and of this one
        if it has ended; so the next call, or who takes the result, learns of each error."""
        self._wait()
        self._under_way = sent = CallBeside(self._run_beside, send)
        if sent.has_ended:
            self._wait()
        return sent

    def _wait(self) -> None:
        before, self._under_way = self._under_way, None
        if before is not None:
            before.result()
