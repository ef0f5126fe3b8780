"""What a start makes of moves that the former process did not finish.

A partition that is in two directories has been moved, and the mark of one copy says of which directories it
took the place (see `move_mark`): what these have is removed, see `LeavingDirectory`. Where that cannot be
done, and where no mark tells copies apart, they are left as they are, and whoever opens the partition is
told. A directory that is offline or missing may hold an older copy as well: then the mark stays, for the
start that finds it.

A copy that is not the partition yet (`-future`) means nothing but that somebody wanted the move. It stays as
that wish, until a move of the partition begins, or a start finds that nobody has the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.data_directory import DELETE_REASON, FUTURE_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.moves.move_mark import read_move_mark, read_move_voids
from stratalog.manager.partitions.leaving_directory import LeavingDirectory
from stratalog.manager.partitions.lost_partitions import forget_left
from stratalog.manager.partitions.partition_metadata import read_partition_metadata

logger = logging.getLogger(__name__)


class WantedMove(NamedTuple):
    """A move that a former process has not finished."""

    partition: TopicPartition
    target_path: str
    """Of the log directory."""
    future_path: str
    """What is there of the copy."""


def settle_moves(
    filesystem: FileSystem, ids: IdGenerator, directories: Sequence[LogDirectory], *, is_all_known: bool
) -> tuple[WantedMove, ...]:
    """Remove the older copies of partitions that have moved; the moves that are still wanted. `is_all_known`:
    no other directory may hold what none of these does.

    A directory that fails meanwhile goes offline, and is left alone. Called once, before a log is opened.
    """
    holders: dict[TopicPartition, list[LogDirectory]] = {}
    for directory in directories:
        for partition in directory.partitions if directory.is_online else ():
            holders.setdefault(partition, []).append(directory)
    for partition, found in sorted(holders.items(), key=lambda item: item[0]):
        if len(found) > 1:
            try:
                keep_newest(filesystem, ids, partition, found)
            except (OSError, DataDirectoryError) as failure:
                logger.warning("it could not be settled where %s has moved to: %s", partition, failure)
    is_all_known = is_all_known and all(directory.is_online for directory in directories)
    wanted: list[WantedMove] = []
    for directory in directories:
        for path in _futures(directory):
            try:
                mark = read_move_mark(filesystem, path)
                holder = None if mark is None else _other_holder(holders, mark.partition, directory)
                if mark is not None and (holder is not None or not is_all_known):
                    wanted.append(WantedMove(mark.partition, directory.path, path))
                else:
                    discard_future(filesystem, path)
            except OSError as failure:
                logger.warning("the copy of a partition that was to move could not be settled: %s", failure)
    return tuple(wanted)


def _futures(directory: LogDirectory) -> list[str]:
    try:
        return directory.files.futures() if directory.is_online else []
    except (OSError, DataDirectoryError) as failure:
        logger.warning("copies of partitions that were to move could not be looked at: %s", failure)
        return []


def discard_future(filesystem: FileSystem, path: str) -> str:
    """Nobody wants the copy: give it a name that every start removes. Durable when it returns; the path that
    it has then. Raises OSError."""
    assert path.endswith(FUTURE_REASON)
    discarded_path = path.removesuffix(FUTURE_REASON) + DELETE_REASON
    filesystem.rename(path, discarded_path)
    filesystem.sync_directory(path.rpartition("/")[0])
    return discarded_path


def _other_holder(
    holders: dict[TopicPartition, list[LogDirectory]], partition: TopicPartition, directory: LogDirectory
) -> LogDirectory | None:
    """Where the partition is, if it is not in that directory already."""
    found = holders.get(partition, [])
    return None if directory in found else next(iter(found), None)


def keep_newest(
    filesystem: FileSystem, ids: IdGenerator, partition: TopicPartition, found: Sequence[LogDirectory]
) -> None:
    """Put away those copies that another one has taken the place of, if exactly one remains then. Raises
    DataDirectoryError, of what cannot be put away too, OSError."""
    paths = {directory.path: directory.partition_path(partition) for directory in found}
    marks = {directory.path: read_move_mark(filesystem, paths[directory.path]) for directory in found}
    voids = {directory.path: read_move_voids(filesystem, paths[directory.path]) for directory in found}
    topic_ids = {
        directory.path: read_partition_metadata(filesystem, paths[directory.path]) for directory in found
    }

    def is_void(copy: LogDirectory) -> bool:
        mark = marks[copy.path]
        return mark is not None and any(
            mark.move_id in voids[other.path] for other in found if other is not copy
        )

    def replaces(newer: LogDirectory, older: LogDirectory) -> bool:
        mark = marks[newer.path]
        # Another topic may have got the name where nobody knew of a copy.
        is_other_topic = len({topic_ids[newer.path], topic_ids[older.path]} - {None}) > 1
        return mark is not None and not is_other_topic and older.files.directory_id in mark.source_ids

    standing = [copy for copy in found if not is_void(copy)]
    newest = [copy for copy in standing if not any(replaces(other, copy) for other in standing)]
    if len(newest) != 1:
        return
    older = [copy for copy in found if copy is not newest[0] and (is_void(copy) or replaces(newest[0], copy))]
    if older:
        # Who was killed at the rename may not have made it durable, and the others go for good.
        filesystem.sync_directory(newest[0].path)
    for copy in older:
        _put_away(filesystem, ids, partition, copy, newest[0])


def _put_away(
    filesystem: FileSystem,
    ids: IdGenerator,
    partition: TopicPartition,
    copy: LogDirectory,
    newest: LogDirectory,
) -> None:
    """Raises DataDirectoryError."""
    path = copy.partition_path(partition)
    try:
        left_path = LeavingDirectory(filesystem, copy, partition, ids.uuid(), is_older_copy=True).put_away()
    except OSError as failure:
        raise DataDirectoryError(
            "this partition has moved, and its older copy, which nobody needs, cannot be put away; correct"
            " what the reason says, or remove the older copy, and restart the server",
            path=path,
            newer_path=newest.partition_path(partition),
            reason=str(failure),
        ) from failure
    copy.note_gone(partition)
    forget_left(copy, partition)
    logger.info(
        "the older copy of %s, which has moved to %s, is put away: %s",
        partition,
        newest.path,
        left_path or "the full disk had no room for another name, and it is removed",
    )
