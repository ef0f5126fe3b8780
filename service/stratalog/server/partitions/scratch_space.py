"""Scratch directories for uploads and compactions that do not fit into memory, on the first working disk.

Scratch files do not outlive the process, so any log directory will do. If its disk fails, that upload or
compaction ends with an error, and the next one finds the directory offline and takes another. A full disk
refuses even a directory, and an upload may be what frees space: most uploads need no file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.remote.objects.spool import clear_spool_directory

logger = logging.getLogger(__name__)


class ScratchSpace:
    """Chooses a directory for the scratch files of uploads and compactions. Thread-safe: it keeps nothing."""

    def __init__(self, filesystem: FileSystem, online: Callable[[], Sequence[str]]) -> None:
        """`filesystem` notices failing disks; `online` returns the log directories that work."""
        self._filesystem = filesystem
        self._online = online

    def place(self, name: str) -> str:
        """Returns the path of an empty directory of that name, which one caller uses at a time. If all disks
        are full the directory does not exist, and a caller that needs a file creates it. Raises
        DataDirectoryError if no log directory can have one."""
        first: tuple[str, OSError] | None = None
        full_path: str | None = None
        for directory in self._online():
            # No topic can have this name for a directory: a partition's ends with a hyphen and a number.
            path = f"{directory}/scratch/{name}"
            try:
                clear_spool_directory(self._filesystem, path)
            except OSError as failure:
                if failure.errno in NO_SPACE:
                    full_path = full_path or path
                    continue
                logger.warning("scratch files cannot be put into `%s`: %s", path, failure)
                first = first or (path, failure)
            else:
                return path
        if full_path is not None:
            return full_path
        raise DataDirectoryError(
            "no log directory takes scratch files; repair a disk or correct its permissions, and try again",
            path="" if first is None else first[0],
            reason="no log directory works" if first is None else str(first[1]),
        )


def scratch_error(failure: OSError) -> DataDirectoryError:
    """The error of an upload or a compaction whose scratch file failed; logs have their own errors."""
    return DataDirectoryError(
        "scratch files cannot be written or read, so the work was given up before its commit; free space"
        " or repair the disk, and try again",
        path=str(failure.filename or ""),
        reason=str(failure),
    )
