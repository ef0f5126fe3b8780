"""A file that asks before each sync: a test counts them there, or lets them wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stratalog.base.filesystem import AppendFile
from stratalog.base.wrapped_filesystem import WrappedFile

Result = TypeVar("Result")


class HookedSyncFile(WrappedFile):
    """All but `sync` is the file's own. As thread-safe as the file and `before_sync` are."""

    def __init__(self, file: AppendFile, before_sync: Callable[[], None]) -> None:
        super().__init__(file)
        self._before_sync = before_sync

    def _run(self, name: str, operation: Callable[[], Result]) -> Result:
        if name == "sync":
            self._before_sync()
        return operation()
