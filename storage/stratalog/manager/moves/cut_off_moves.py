"""Settles, at a start, the moves that the former process did not finish.

The manifests decide, see `log_move`. A live entry with a lower number is an older copy and is put away. A
source that names its target is the partition again if the target has only an incoming copy. If the target is
missing or offline, or does not list the partition, the partition stays offline when it is opened.

An incoming copy means that the move is wanted. The entry stays until a move of the partition begins, or until
a start finds that no directory has the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import PartitionState
from stratalog.manager.partitions.put_away import PutAway

logger = logging.getLogger(__name__)


class WantedMove(NamedTuple):
    """A move that a former process has not finished."""

    partition: TopicPartition
    target_path: str
    """Path of the log directory."""


def settle_moves(directories: DirectorySet, away: PutAway) -> tuple[WantedMove, ...]:
    """Put away older copies, and return the moves that are still wanted. Called once, before a log is opened.

    A directory that fails meanwhile goes offline, and is left alone.
    """
    listed: dict[TopicPartition, list[LogDirectory]] = {}
    for directory in directories.online():
        for partition in directory.entries:
            listed.setdefault(partition, []).append(directory)
    wanted: list[WantedMove] = []
    for partition, found in sorted(listed.items(), key=lambda item: item[0]):
        if len(found) > 1 or _is_begun(found[0], partition):
            try:
                wanted += _settle(directories, away, partition, found)
            except (OSError, DataDirectoryError) as failure:
                logger.warning("a move of %s could not be settled: %s", partition, failure)
    return tuple(wanted)


def _is_begun(directory: LogDirectory, partition: TopicPartition) -> bool:
    entry = directory.entries[partition]
    return entry.state is PartitionState.INCOMING or bool(entry.moving_to)


def _settle(
    directories: DirectorySet, away: PutAway, partition: TopicPartition, found: Sequence[LogDirectory]
) -> list[WantedMove]:
    """Settle the copies of one partition that a crash left, and list the moves to resume. Raises
    DataDirectoryError, OSError."""
    entries = {directory: directory.entries[partition] for directory in found}
    holders = [one for one, entry in entries.items() if entry.state is not PartitionState.INCOMING]
    for holder in holders:
        entry = entries[holder]
        newer = [
            one
            for one in holders
            if (entries[one].topic_id, entries[one].move_number > entry.move_number) == (entry.topic_id, True)
        ]
        if newer:
            with directories.guard:
                holder.note_gone(partition)
            away.put_away_older(holder, partition, has_readers=False)
            logger.info("the older copy of %s, which has moved to %s, is put away", partition, newer[0].path)
        elif entry.moving_to and _has_not_moved(directories, partition, entry.moving_to):
            holder.spare.writing(partial(holder.manifest.change, partition, moving_to=""))
    copies = [one for one in found if one not in holders]
    if holders or not directories.is_all_known:
        return [WantedMove(partition, one.path) for one in copies]
    for one in copies:
        away.discard_copy(one, partition, entries[one].topic_id)
    return []


def _has_not_moved(directories: DirectorySet, partition: TopicPartition, target_id: str) -> bool:
    """Whether that directory has only an incoming copy of the partition."""
    for directory in directories.online():
        if directory.directory_id == target_id:
            entry = directory.entry(partition)
            return entry is not None and entry.state is PartitionState.INCOMING
    return False
