"""The seam to another process that executes jobs: its start, its messages and its end.

The address of the store goes through the pipe, and credentials in the environment, so that neither is among
the arguments that every user of the machine may read.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from multiprocessing.connection import Pipe

from stratalog.base.errors import LogStoreError
from stratalog.compaction.job_execution import JobOrder
from stratalog.server.job_processes.messages import OTHER_SOFTWARE, STOP, Answer, Hello

_WORKER = "stratalog.server.job_processes.job_worker"
PATIENCE_S = 5.0
"""Time for which an idle process may take to end before it is killed."""


class JobProcess:
    """A process that executes one job at a time. Not thread-safe: guarded by its user."""

    def __init__(self, hello: Hello, software: str) -> None:
        """Start it. `software`: the digest of the server's. Raises LogStoreError if the system has no room
        for another process."""
        self.order_count = 0
        """Orders that it was sent."""
        self._pipe, theirs = Pipe()
        try:
            # -P: what lies in the working directory is no module.
            self._child = subprocess.Popen(
                (sys.executable, "-P", "-m", _WORKER, str(theirs.fileno()), software),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        except OSError as failure:
            self._pipe.close()
            raise LogStoreError(
                "no process can be started for a compaction job; give the machine room for one",
                reason=str(failure),
            ) from None
        finally:
            theirs.close()
        self._send(hello)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._child.poll() is not None

    def give(self, order: JobOrder) -> None:
        """Let it begin a job. Raises LogStoreError if it has ended."""
        self.order_count += 1
        self._send(order)

    def stop(self) -> None:
        """Ask it to end the job at work. Raises LogStoreError if it has ended."""
        self._send(STOP)

    def answer(self, timeout_s: float) -> Answer | None:
        """The next message; None if there is none in time. Raises LogStoreError if it has ended."""
        try:
            found: Answer | None = self._pipe.recv() if self._pipe.poll(timeout_s) else None
        except (EOFError, OSError):
            raise self._lost() from None
        return found

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """Close the pipe, at which it ends by itself, and kill it if it does not in time. Returns its exit
        code, that of a signal negative."""
        self._pipe.close()
        try:
            self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
        return self._child.wait()

    def _send(self, message: Hello | JobOrder | str) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._lost() from None

    def _lost(self) -> LogStoreError:
        code = self.end()
        if code == OTHER_SOFTWARE:
            return LogStoreError(
                "the software on the disk was changed below the server, which still runs the former one, so"
                " no compaction job begins; restart the server"
            )
        return LogStoreError(
            "the process that executed the job has ended before it, and the job has not happened; if the"
            " kernel killed it for want of memory (SIGKILL), lower remote.compaction.job.memory.bytes",
            pid=self.pid,
            ended_by=signal.Signals(-code).name if code < 0 else f"exit code {code}",
        )
