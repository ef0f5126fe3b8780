"""A real server in a process of its own, for tests that kill it.

Example::

    with ServerProcess(data_dir) as server:
        Client(server.address)
        server.kill()      # as kill -9
        server.start()     # again, on the same directory
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

STOP_TIMEOUT_S = 60.0


class ServerProcess:
    """One `stratalog server start`, on a free port of the loopback interface. Not thread-safe."""

    def __init__(self, data_dir: str, *, store_url: str = "", options: Sequence[str] = ()) -> None:
        """`options` are further options of the command. Starts with `start`, or as a context manager."""
        self._options = ["--data-dir", data_dir, "--listen", "127.0.0.1:0", *options]
        if store_url:
            self._options += ["--store", store_url]
        self._process: subprocess.Popen[str] | None = None
        self._errors: list[str] = []
        self.address = ""
        """HOST:PORT while it runs."""

    @property
    def errors(self) -> str:
        """What it wrote to standard error since it was started last; whole once it has ended."""
        return "".join(self._errors)

    def add_options(self, *options: str) -> None:
        """Further options for the next start; of an option that comes again the last counts."""
        self._options += options

    def start(self) -> None:
        """Return once requests are answered. Raises RuntimeError with the process's errors where it ends
        instead.
        """
        assert self._process is None, "it runs already"
        arguments = ["server", "start", *self._options]
        program = f"import sys; from stratalog.cli.main import main; sys.argv[1:] = {arguments!r}; main()"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._errors = []
        # Its output must be read while it runs, and a test has no scheduler.
        self._reader = threading.Thread(  # noqa: TID251
            target=self._read_errors, args=(self._process,), daemon=True
        )
        self._reader.start()
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        if len(words) < 3:
            code = self._ended()
            raise RuntimeError(f"the server did not start, exit code {code}: {self.errors}")
        self.address = words[2]

    def kill(self) -> None:
        """As `kill -9`: nothing is flushed, nothing is said."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._ended()

    def stop(self) -> int:
        """As SIGTERM: a clean shutdown. Returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._ended()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

    def _ended(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        code = self._process.wait(STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)
        self._process.stdout.close()
        self._process.stderr.close()
        self._process = None
        return code

    def _read_errors(self, process: subprocess.Popen[str]) -> None:
        # Read all the time: a pipe that is full would stop the server.
        assert process.stderr is not None
        for line in process.stderr:
            self._errors.append(line)
