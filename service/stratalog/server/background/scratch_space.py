"""Where uploads and compactions put what does not fit into memory: in the first log directory that works.

Nothing in there outlives a process, so it does not matter which directory it is. One whose disk fails while
it is used ends that upload or compaction with an error; the next one finds the directory offline and takes
another. A full disk takes no directory, and an upload may be what frees it: most need no file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.remote.objects.spool import clear_spool_directory

logger = logging.getLogger(__name__)


class ScratchSpace:
    """Thread-safe: it keeps nothing."""

    def __init__(self, filesystem: FileSystem, online: Callable[[], Sequence[str]]) -> None:
        """`filesystem` notices where a disk fails; `online` are the log directories that work."""
        self._filesystem = filesystem
        self._online = online

    def place(self, name: str) -> str:
        """A directory of that name, empty: nobody else may use the name now. Where all disks are full it is
        not there; whoever needs a file in it has to make it. Raises DataDirectoryError where no log directory
        can have one."""
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
            "no log directory takes scratch files; repair a disk or correct the rights, and try again",
            path="" if first is None else first[0],
            reason="no log directory works" if first is None else str(first[1]),
        )


def scratch_error(failure: OSError) -> DataDirectoryError:
    """What whoever asked for an upload or a compaction is told: logs have errors of their own."""
    return DataDirectoryError(
        "scratch files cannot be written or read, and what was not committed was given up; free space or"
        " repair the disk, and try again",
        path=str(failure.filename or ""),
        reason=str(failure),
    )
