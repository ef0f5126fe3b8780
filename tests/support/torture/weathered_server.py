"""A server whose disk is slow and whose object store fails while a file says so: a program, and its weather.

    python -m tests.support.torture.weathered_server WEATHER_DIR server start ...

It takes the arguments of `stratalog` behind its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from stratalog.base.clock import SystemClock
from stratalog.base.filesystem import AppendFile
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.wrapped_filesystem import WrappedFile, WrappedFileSystem
from stratalog.cli.main import stratalog
from stratalog.objectstore.open_store import open_store
from stratalog.server import app
from stratalog.server.configuration.settings import ServerSettings
from stratalog.testing.faulty_object_store import FaultyObjectStore, StoreTrace
from stratalog.testing.store_faults import Fault, Operation
from tests.support.service.server_process import ServerProcess

Result = TypeVar("Result")

SYNC_S = 0.05
"""A slow disk takes so much longer for each fsync."""
_LOOK_S = 0.05


class Weather:
    """The files that say what is wrong. Immutable but for the files, hence thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.slow_disk = directory / "slow-disk"
        self.failing_store = directory / "failing-store"

    @property
    def is_calm(self) -> bool:
        return not self.slow_disk.exists() and not self.failing_store.exists()


class WeatheredProcess(ServerProcess):
    """A server under a weather. Not thread-safe."""

    def __init__(self, directory: Path, weather: Weather, *, options: Sequence[str] = ()) -> None:
        """Its data lie below `directory`."""
        super().__init__(f"{directory}/data", options=options)
        self._program = ("-m", __name__, str(weather.slow_disk.parent), "server", "start")


class _Sign:
    """Whether a file is there, looked up now and then. Thread-safe: a look too many does no harm."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_s = 0.0
        self._is_there = False

    def __bool__(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_S:
            self._looked_s = now_s
            self._is_there = self._path.exists()
        return self._is_there


class _SlowFile(WrappedFile):
    __slots__ = ("_sign",)

    def __init__(self, inner: AppendFile, sign: _Sign) -> None:
        super().__init__(inner)
        self._sign = sign

    def _run(self, name: str, operation: Callable[[], Result]) -> Result:
        if name == "sync" and self._sign:
            time.sleep(SYNC_S)
        return operation()


class _SlowDisk(WrappedFileSystem):
    """The operating system's disk. Thread-safe."""

    def __init__(self, sign: _Sign) -> None:
        super().__init__(PosixFileSystem())
        self._sign = sign

    def _run(
        self, name: str, path: str, operation: Callable[[], Result], target: str | None = None
    ) -> Result:
        if name == "sync_directory" and self._sign:
            time.sleep(SYNC_S)
        return operation()

    def _opened(self, path: str, file: AppendFile) -> AppendFile:
        return _SlowFile(file, self._sign)


class _NoTrace(StoreTrace):
    """Keeps nothing: a soak has millions of requests. Thread-safe as the trace."""

    def end(self, operation: Operation, fault: Fault, outcome: str) -> None:
        pass


class _WeatheredServer(app.Server):
    """The server of the command line over such a disk and such a store. Belongs to the event loop."""

    def __init__(self, weather: Weather, settings: ServerSettings, **rest: Any) -> None:
        disk = _SlowDisk(_Sign(weather.slow_disk))
        failing, chance = _Sign(weather.failing_store), Random(1)

        def plan(operation: Operation) -> Fault:
            if not failing:
                return Fault.NONE
            return (
                chance.choice((Fault.FAILS, Fault.LANDS_UNKNOWN)) if operation.verb == "PUT" else Fault.FAILS
            )

        opened = open_store(
            settings.effective_store_url, filesystem=disk, clock=SystemClock(), ids=SystemIdGenerator()
        )
        store = FaultyObjectStore(opened, chance, plan, trace=_NoTrace())
        super().__init__(settings, filesystem=disk, store=store, **rest)


def main(weather_directory: str, *arguments: str) -> None:
    """Run the command of `stratalog`."""
    app.Server = partial(_WeatheredServer, Weather(Path(weather_directory)))  # type: ignore[misc,assignment]  # the one that `serve` makes
    stratalog(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
