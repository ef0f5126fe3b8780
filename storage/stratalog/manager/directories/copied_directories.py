"""A log directory that is a copy of one which is still where it was last: it must have all that that has.

Whoever moves a directory to another disk copies it and names the new path; what its siblings know of the id
is the old one. As long as the old directory is there it can be asked: where it has a partition that none of
the directories of this start has, the copy is not whole (its `meta.properties` alone, say), and the partition
would begin anew.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.manager.directories.data_directory import parse_partition_name, read_properties
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.meta_properties import DIRECTORY_ID

logger = logging.getLogger(__name__)


def require_whole_copies(filesystem: FileSystem, directories: Sequence[LogDirectory]) -> None:
    """Raises DataDirectoryError for a copy that lacks what its original has. `directories`: those of this
    start that work."""
    last_paths = {
        directory_id: path
        for directory in directories
        for directory_id, path in directory.files.siblings.items()
    }
    held = {str(partition) for directory in directories for partition in directory.partitions}
    for directory in directories:
        last_path = last_paths.get(directory.directory_id)
        if last_path is None or last_path == directory.path:
            continue
        lacking = _lacking(filesystem, directory, last_path, held)
        if lacking:
            raise DataDirectoryError(
                "this log directory is a copy of another one that is still there, and lacks partitions that"
                " the other one has; start with the other one, or copy all that is in it, or, if nothing"
                " in it is needed any more, remove the other one's meta.properties",
                path=directory.path,
                other_path=last_path,
                directory_id=directory.directory_id,
                partitions=", ".join(lacking[:5]),
                partition_count=len(lacking),
            )


def _lacking(
    filesystem: FileSystem, directory: LogDirectory, last_path: str, held: set[str]
) -> Sequence[str]:
    """Names of partitions that the directory's original at that path has, and nobody else, in order."""
    try:
        if filesystem.real_path(last_path) == filesystem.real_path(directory.path):
            return ()
        if read_properties(filesystem, last_path).get(DIRECTORY_ID) != directory.directory_id:
            return ()
        names = filesystem.list_directory(last_path)
        partitions = [
            name
            for name in names
            if parse_partition_name(name) is not None and filesystem.is_directory(f"{last_path}/{name}")
        ]
    except (OSError, DataDirectoryError) as failure:
        # It is not there any more, or nobody can tell.
        logger.info(
            "the former place of a log directory cannot be looked at, path=`%s`: %s", last_path, failure
        )
        return ()
    return sorted(name for name in partitions if name not in held)
