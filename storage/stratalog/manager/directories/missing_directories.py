"""Notices a log directory that is missing.

The manifest of each directory names all others that were ever used together with it, by id, with the last
path of each. A start that lacks one of them counts it as missing: it was left out, or its disk is not mounted
and an empty directory is in its place. Its partitions are unknown, so it counts like a directory that is
offline. The list grows by itself. It shrinks only when an operator forgets a directory. A directory that was
away at that time still names the forgotten one, which is missing again then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from stratalog.base.errors import InvalidRequestError
from stratalog.manager.directories.log_directory import DirectoryState, LogDirectory, LogDirectoryStatus

logger = logging.getLogger(__name__)

MISSING_REASON = "the server was started without it, or another disk is in its place"


class MissingDirectories:
    """The log directories that were used with those of this process, and that are missing. Guarded by
    DirectorySet.guard. An unreadable directory at the last path of a missing one is that one: it is offline,
    not missing."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        """Read the lists of the directories that work."""
        self._directories = directories
        self._last_paths: dict[str, str] = {}
        for directory in directories:
            if directory.is_online:
                # A change is written to all lists. If they differ, the first one is as good as any.
                self._last_paths = {**directory.manifest.now.siblings, **self._last_paths}

    def all(self) -> tuple[LogDirectoryStatus, ...]:
        """The directories that this process was started without, at their last paths."""
        present_ids = {directory.directory_id for directory in self._directories}
        unreadable_paths = {directory.path for directory in self._directories if not directory.is_known}
        return tuple(
            LogDirectoryStatus(
                path=path,
                directory_id=directory_id,
                state=DirectoryState.MISSING,
                reason=MISSING_REASON,
                partition_count=0,
                remaining_log_count=0,
            )
            for directory_id, path in self._last_paths.items()
            if directory_id not in present_ids and path not in unreadable_paths
        )

    def note_present(self) -> None:
        """Let each directory that works name all others. Durable when it returns.

        A directory that cannot be written is logged; a later start writes it.
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
        """Give up a missing directory: its partitions may begin anew, and the sources of moves to it count
        again. Durable when it returns; returns the directory's last path. Raises InvalidRequestError if no
        missing directory has this id, OSError.
        """
        missing = {one.directory_id: one.path for one in self.all()}
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
            # Some lists still name it, so the next start would count it as missing.
            self._last_paths[directory_id] = kept_path
            raise
        return kept_path

    def _write(self, directory: LogDirectory, forgotten_id: str = "") -> None:
        """Write the siblings of one directory. Raises OSError."""
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
    """Write an error for each of them to the process's log."""
    for one in missing:
        logger.error(
            "a log directory is missing: %s; partitions that are nowhere else stay offline. Start the server"
            " with it, its disk mounted, or let `stratalog log-dirs forget %s` give up what is in it,"
            " last_path=`%s`",
            one.reason,
            one.directory_id,
            one.path,
        )
