"""A file that asks before each sync: a test counts them there, or lets them wait."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.filesystem import AppendFile


class HookedSyncFile:
    """All but `sync` is the file's own. As thread-safe as the file and `before_sync` are."""

    def __init__(self, file: AppendFile, before_sync: Callable[[], None]) -> None:
        self._file = file
        self._before_sync = before_sync
        self.path = file.path
        self.append = file.append
        self.read_at = file.read_at
        self.read_into = file.read_into
        self.size = file.size
        self.truncate = file.truncate
        self.reserve = file.reserve
        self.close = file.close

    def sync(self) -> None:
        self._before_sync()
        self._file.sync()
