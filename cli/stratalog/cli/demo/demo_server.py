"""A server of its own for the demonstration: `stratalog server start` as a child process on a free port."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from stratalog.base.clock import SystemClock

START_TIMEOUT_S = 90.0
"""Longer than a server waits for a store that does not answer, so that it can say so itself."""
STOP_TIMEOUT_S = 60.0

_TAIL_CHARACTERS = 1000
_LISTENING = re.compile(r"listening on (\S+:\d+)")
_ERROR = re.compile(r"^error: (.*)", re.MULTILINE)


class DemoServer:
    """Starts and stops one server at a time over the same directories. Not thread-safe."""

    # A group of its own: Ctrl-C at the terminal is for this process, which then stops the server. A server
    # takes a second signal for impatience.
    _process_group: int | None = 0

    def __init__(self, data_dir: Path, store_url: str, log_path: Path) -> None:
        """`log_path` is where it writes all its output, of one start behind that of another."""
        self._program: Sequence[str] = ("-m", "stratalog.cli", "server", "start")
        self._options = ["--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--store", store_url]
        self._log_path = log_path
        self._log_begin = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""
        self.has_listened = False
        """Whether any start so far got as far as to answer requests."""

    @property
    def address(self) -> str:
        assert self._process is not None, "the server runs"
        return self._address

    @property
    def said(self) -> str:
        return self._log_path.read_bytes()[self._log_begin :].decode(errors="replace")

    def start(self, *options: str) -> None:
        """Start, with these options, too, and wait until it listens. Raises click.ClickException with what it
        said where it did not.
        """
        assert self._process is None, "one server at a time"
        with self._log_path.open("ab") as log:
            self._log_begin = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, *self._program, *self._options, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._process_group,
            )
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + START_TIMEOUT_S
        while clock.monotonic_s() < deadline_s:
            listening = _LISTENING.search(self.said)
            if listening:
                self._address = listening.group(1)
                self.has_listened = True
                return
            if self._process.poll() is not None:
                self._process = None
                raise click.ClickException("the server did not start: " + self._reason())
            clock.sleep(0.02)
        self._kill()
        # The log itself may be about to be deleted.
        raise click.ClickException(
            f"the server did not listen within {START_TIMEOUT_S:.0f} s; the last that it said: {self._tail()}"
        )

    def stop(self) -> int:
        """Ask it to shut down and wait; returns its exit code, 0 if none runs."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return self._kill()
        self._process = None
        return code

    def _reason(self) -> str:
        """The error that it ended with, or what else it said last."""
        errors = _ERROR.findall(self.said)
        return errors[-1] if errors else self._tail()

    def _tail(self) -> str:
        return self.said.strip()[-_TAIL_CHARACTERS:] or "nothing"

    def _kill(self) -> int:
        assert self._process is not None, "the server runs"
        self._process.kill()
        code = self._process.wait()
        self._process = None
        return code
