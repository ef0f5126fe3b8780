"""Sends the parts of a job's outputs while more are written: one part is on its way at a time, so that memory
holds it and those that are gathered. The last part of an output waits for the one before on its own thread,
because nothing more is gathered behind it, and the job has the commit to judge."""

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
        return self._begin(send)

    def begin_behind(self, send: Callable[[], None]) -> CallBeside[None]:
        """Send a part once the one before is there, and wait for neither. Its result has the error of that
        one, too. Raises as `begin` if it has ended."""
        before = self._under_way

        def send_behind() -> None:
            if before is not None:
                before.result()
            send()

        return self._begin(send_behind)

    def _begin(self, send: Callable[[], None]) -> CallBeside[None]:
        self._under_way = sent = CallBeside(self._run_beside, send)
        if sent.has_ended:
            self._wait()
        return sent

    def _wait(self) -> None:
        before, self._under_way = self._under_way, None
        if before is not None:
            before.result()
