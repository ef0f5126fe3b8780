"""A partition whose directory is gone behind our back: it does not begin anew as if it had never been.

A log directory whose checkpoints have an entry of a partition has had the partition's directory, durably: the
name is synced before the entry is written, and the entry goes when it is deleted, set aside or moved. Where
the entry is there and the directory is not, somebody has lost it (it was left out of a copy of the log
directory, say). If it had records that the store has not, as far as the checkpoints know, the partition stays
offline. So it does where the log directory was not closed in order: the entry tells what the partition had at
least, and a later stop in order does not tell more. Whoever makes an empty directory of its name says that it
may begin anew.

An entry may also be left of a partition that was put away, where the process ended before the entry could be
written. So what a start finds put away counts as what the entry speaks of, or, of one that was set aside for
another topic, what was noted in it; entries of what no topic wants go at the end of a start, and those of a
partition that is in another directory when it is opened.

Where a log directory that was used before has no checkpoint at all nobody can tell, and the log says so.
"""

from __future__ import annotations

import logging

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.disk_error import disk_errors
from stratalog.manager.directories.log_directories import LogDirectories
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.partitions.stray_offsets import has_noted

logger = logging.getLogger(__name__)


def require_not_lost(directories: LogDirectories, partition: TopicPartition, tiered_end_offset: int) -> None:
    """No directory has the partition, which is not new. Raises DataDirectoryError where one has had records
    of it that the store has not. `tiered_end_offset`: 0 where the store has none."""
    online = directories.online()
    for directory in online:
        with disk_errors(directory.path):
            _require_not_lost(directories, directory, partition, tiered_end_offset)
    for directory in online:
        _tell(directory, partition, tiered_end_offset)


def _require_not_lost(
    directories: LogDirectories, directory: LogDirectory, partition: TopicPartition, tiered_end_offset: int
) -> None:
    """Raises DataDirectoryError, OSError."""
    end_offset = directory.checkpoints.known_end(partition)
    if end_offset is None or directory.files.put_away_of(partition):
        return
    if has_noted(directories.filesystem, directory, partition):
        forget_left(directory, partition)
        return
    known: dict[str, object] = {
        "path": directory.partition_path(partition),
        "known_end_offset": end_offset,
        "tiered_end_offset": tiered_end_offset,
    }
    if not directory.was_closed(partition):
        raise DataDirectoryError(
            "the partition's directory is gone from its log directory, which was not closed in order, so that"
            " it may have had more records than its checkpoints know of, which are nowhere else; put it back"
            " and restart the server, or, to go on without these records, make an empty directory at its path"
            " and restart the server",
            **known,
        )
    if end_offset > tiered_end_offset:
        raise DataDirectoryError(
            "the partition's directory is gone from its log directory, whose checkpoints know of records"
            " that are nowhere else; put it back and restart the server, or, to go on without these"
            " records, make an empty directory at its path and restart the server",
            **known,
        )


def _tell(directory: LogDirectory, partition: TopicPartition, tiered_end_offset: int) -> None:
    """What a human should know who has lost the partition's directory and does not know it."""
    end_offset = directory.checkpoints.known_end(partition)
    if end_offset is not None:
        was_put_away = bool(directory.files.put_away_of(partition))
        logger.warning(
            "the directory of %s is gone from its log directory, and the partition begins anew where its"
            " tiered data ends; %s, path=`%s` known_end_offset=`%d` tiered_end_offset=`%d`",
            partition,
            "it was put away, and lies beside it"
            if was_put_away
            else "what it had, if anything, is in the store",
            directory.partition_path(partition),
            end_offset,
            tiered_end_offset,
        )
    elif directory.files.was_bound and not directory.checkpoints.were_written:
        logger.warning(
            "%s is in no log directory, and begins anew where its tiered data ends; one that was used before"
            " has no %s, see that it was copied as a whole, path=`%s` tiered_end_offset=`%d`",
            partition,
            RECOVERY_POINT_FILE,
            directory.path,
            tiered_end_offset,
        )


def forget_elsewhere(
    directories: LogDirectories, partition: TopicPartition, holder: LogDirectory | None
) -> None:
    """The partition is in `holder`, or nowhere: what checkpoints of other directories know of it is left of a
    move, or of one that is gone."""
    for directory in directories.online():
        if directory is not holder:
            forget_left(directory, partition)


def forget_left(directory: LogDirectory, partition: TopicPartition) -> None:
    """An entry, if there is one, speaks of nothing. Where that cannot be written now, the next write of the
    checkpoint does."""
    try:
        if directory.checkpoints.known_end(partition) is not None:
            directory.checkpoints.forget(partition)
    except (OSError, DataDirectoryError) as failure:
        logger.info("a checkpoint still has an entry of %s, which is not there: %s", partition, failure)
