"""Which log directories belong together, so that one that is missing is noticed.

Each directory's manifest names all others that were ever used together with it, by their ids, and the last
path of each. A start that has not all of them misses one: it was left out, or its disk is not mounted
and an empty directory stands in its place. What the missing one holds nobody knows, so it counts as one that
is offline. The list grows by itself, and shrinks only when somebody says that a directory does not come back.
A directory that was away then names it still, and brings the question up again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from stratalog.base.errors import InvalidRequestError
from stratalog.manager.directories.log_directory import DirectoryState, LogDirectory, LogDirectoryStatus

logger = logging.getLogger(__name__)

MISSING_REASON = "the server was started without it, or another disk is in its place"


class SiblingDirectories:
    """Guarded by DirectorySet.guard. Where an unreadable directory lies, and one that is missing was last,
    the two are one: it is offline, not missing."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        """What the lists of those that work say."""
        self._directories = directories
        self._last_paths: dict[str, str] = {}
        for directory in directories:
            if directory.is_online:
                # A change is written to all lists: where they differ the first one is as good as any.
                self._last_paths = {**directory.manifest.now.siblings, **self._last_paths}
        self._present_ids = frozenset(directory.directory_id for directory in directories) - {""}
        unreadable_paths = {directory.path for directory in directories if not directory.is_known}
        absent = {key: path for key, path in self._last_paths.items() if key not in self._present_ids}
        self._unreadable_ids = frozenset(
            directory_id
            for directory_id, path in absent.items()
            if path in unreadable_paths and [*absent.values()].count(path) == 1
        )

    def missing(self) -> tuple[LogDirectoryStatus, ...]:
        """Those that this process was started without, where they were last."""
        return tuple(
            LogDirectoryStatus(path, directory_id, DirectoryState.MISSING, MISSING_REASON, 0, 0)
            for directory_id, path in self._last_paths.items()
            if directory_id not in self._present_ids | self._unreadable_ids
        )

    def note(self) -> None:
        """Let each directory that works name all others. Durable when it returns.

        One that cannot be written is logged, and does not keep the others from being used: another start
        notes it.
        """
        present = {one.directory_id: one.path for one in self._directories if one.directory_id}
        self._last_paths |= present
        for directory in self._directories:
            if not directory.is_online:
                continue
            try:
                self._write(directory)
            except OSError as failure:
                logger.warning(
                    "a log directory cannot note which others it is used with, so one that is left out later"
                    " may go unnoticed, path=`%s`: %s",
                    directory.path,
                    failure,
                )

    def forget(self, directory_id: str) -> str:
        """Give up a missing directory: partitions in it may begin anew, and copies that were moving to it
        count again. Durable when it returns; returns the directory's last path. Raises InvalidRequestError
        where none is missing that has this id, OSError.
        """
        missing = {one.directory_id: one.path for one in self.missing()}
        if directory_id not in missing:
            raise InvalidRequestError(
                "no log directory of this id is missing, and only one that is missing can be forgotten;"
                " `stratalog log-dirs describe` shows ids",
                directory_id=directory_id,
                missing_ids=", ".join(missing) or "none",
            )
        kept_path = self._last_paths.pop(directory_id)
        try:
            for directory in self._directories:
                if directory.is_online:
                    self._write(directory, forgotten_id=directory_id)
        except OSError:
            # Some name it still, and so does the next start: as if nobody had asked.
            self._last_paths[directory_id] = kept_path
            raise
        return kept_path

    def _write(self, directory: LogDirectory, forgotten_id: str = "") -> None:
        """Raises OSError."""
        own_id, manifest = directory.directory_id, directory.manifest
        with manifest.lock:
            moved = {
                partition: entry._replace(moving_to="")
                for partition, entry in manifest.now.partitions.items()
                if entry.moving_to and entry.moving_to == forgotten_id
            }
            siblings = {key: path for key, path in self._last_paths.items() if key != own_id}
            manifest.update(siblings=siblings, partitions=moved)


def log_missing(missing: Iterable[LogDirectoryStatus]) -> None:
    """Tell whoever reads the log of the process."""
    for one in missing:
        logger.error(
            "a log directory is missing: %s; partitions that are nowhere else stay offline. Start the server"
            " with it, its disk mounted, or let `stratalog log-dirs forget %s` give up what is in it,"
            " last_path=`%s`",
            one.reason,
            one.directory_id,
            one.path,
        )
