"""A server of its own for the demonstration: `stratalog server start` as a child process on a free port."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click

from stratalog.base.clock import SystemClock

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

_LISTENING = re.compile(r"listening on (\S+:\d+)")


class ServerProcess:
    """Starts, stops and kills one server at a time over the same directories. Not thread-safe."""

    def __init__(self, data_dir: Path, store_url: str, log_path: Path) -> None:
        self.data_dir = data_dir
        self.store_url = store_url
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """HOST:PORT of the running server."""
        assert self._process is not None, "the server runs"
        return self._address

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server runs"
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it listens. Raises click.ClickException with what it said where it did not."""
        assert self._process is None, "one server at a time"
        begin = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "stratalog.cli",
                    "server",
                    "start",
                    "--data-dir",
                    str(self.data_dir),
                    "--listen",
                    "127.0.0.1:0",
                    "--store",
                    self.store_url,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + START_TIMEOUT_S
        while clock.monotonic_s() < deadline_s:
            said = self.log_path.read_bytes()[begin:].decode(errors="replace")
            listening = _LISTENING.search(said)
            if listening:
                self._address = listening.group(1)
                return
            if self._process.poll() is not None:
                self._process = None
                raise click.ClickException("the server did not start: " + said.strip()[-1000:])
            clock.sleep(0.02)
        self.kill()
        raise click.ClickException(
            f"the server did not listen within {START_TIMEOUT_S:.0f} s; see {self.log_path}"
        )

    def stop(self) -> None:
        """Ask it to shut down and wait; nothing where none runs."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL); nothing where none runs."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
