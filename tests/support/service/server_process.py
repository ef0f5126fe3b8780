"""A real server in a process of its own, for tests that kill it.

Example::

    with ServerProcess(data_dir) as server:
        Client(server.address)
        server.kill()      # as kill -9
        server.start()     # again, on the same directory
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.cli.demo.demo_server import DemoServer


class ServerProcess(DemoServer):
    """The demonstration's server, with what only tests do to one. Not thread-safe."""

    # A signal to the process group of a test run ends its servers, too.
    _process_group = None

    def __init__(
        self, data_dir: str, *, store_url: str = "", options: Sequence[str] = (), log_path: str = ""
    ) -> None:
        """`options` are further options of the command. `log_path`: of what it writes, beside the data
        directory otherwise. Starts with `start`, or as a context manager."""
        super().__init__(Path(data_dir), store_url, Path(log_path or f"{data_dir}.log"))
        self.add_options(*options)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server runs"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that has ended by itself; None while it runs."""
        assert self._process is not None, "the server was started"
        return self._process.poll()

    def add_options(self, *options: str) -> None:
        """Further options for the next start; of an option that comes again the last counts."""
        self._options += options

    def kill(self) -> None:
        """Kill the server as `kill -9` does, if it runs: nothing is flushed, nothing is said."""
        if self._process is not None:
            self._kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
