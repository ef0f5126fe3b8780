"""The seam to another process that executes jobs: its start, its messages and its end.

The address of the store goes through the pipe, and credentials in the environment, so that neither is among
the arguments that every user of the machine may read.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from multiprocessing.connection import Pipe

from stratalog.base.errors import LogStoreError
from stratalog.compaction.job_execution import JobOrder
from stratalog.server.job_processes.messages import OTHER_SOFTWARE, STOP, Answer, Hello

_WORKER = "stratalog.server.job_processes.job_worker"
PATIENCE_S = 5.0
"""Time for which an idle process may take to end before it is killed."""

MESSAGE_PATIENCE_S = 60.0
"""Time for which the rest of a message may not move through the pipe, before the process is killed."""


class JobProcess:
    """A process that executes one job at a time. Not thread-safe: guarded by its user."""

    def __init__(self, hello: Hello, software: str) -> None:
        """Start it. `software`: the digest of the server's. Raises LogStoreError if the system has no room
        for another process."""
        self.order_count = 0
        """Orders that it was sent."""
        self._pipe, theirs = Pipe()
        _limit_waits(self._pipe.fileno())
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
        """Let it begin a job. Raises LogStoreError if it has ended, or does not take the order."""
        self.order_count += 1
        self._send(order)

    def stop(self) -> None:
        """Ask it to end the job at work. Raises LogStoreError if it has ended."""
        self._send(STOP)

    def answer(self, timeout_s: float) -> Answer | None:
        """The next message; None if there is none in time. Raises LogStoreError if it has ended, or stops
        within a message."""
        try:
            found: Answer | None = self._pipe.recv() if self._pipe.poll(timeout_s) else None
        except BlockingIOError:
            raise self._hung() from None
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
        try:
            return self._child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            # It hangs in the kernel, by a disk, and is gone once that lets go of it.
            return -signal.SIGKILL

    def _send(self, message: Hello | JobOrder | str) -> None:
        try:
            self._pipe.send(message)
        except BlockingIOError:
            raise self._hung() from None
        except OSError:
            raise self._lost() from None

    def _hung(self) -> LogStoreError:
        self.end(0)
        return LogStoreError(
            "the process for compaction jobs has stopped in the middle of a message and was killed, and the"
            " job has not happened; find out if someone stopped it, or if a disk hangs",
            pid=self.pid,
            waited_s=MESSAGE_PATIENCE_S,
        )

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


def _limit_waits(pipe: int) -> None:
    """Let a send or receive that does not move for `MESSAGE_PATIENCE_S` end with BlockingIOError."""
    patience = struct.pack("ll", *divmod(round(1_000_000 * MESSAGE_PATIENCE_S), 1_000_000))
    # The options are those of the pipe's end, of which this is a second handle.
    with socket.socket(fileno=os.dup(pipe)) as handle:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
