"""What a start makes of directories that are named like a partition and are no topic's.

They come from a store that was put back to an older state, from a topic whose deletion was forgotten by now,
or from a human who put them there. One whose id no topic of the store has is set aside under a name that no
partition has, `TOPIC-N.UUID-stray`, and is never deleted: a human looks at it. If the store knows the topic
later after all, whoever opens the partition gets it back, see `LogLoading`.

Where it is not certain that the directory is a log of this store that nobody looks for, it stays where it is:

* it does not say of which topic it is, or nobody can read that;
* it is of an import or a move that was cut off, which goes on by its name;
* its log directory was a broker's, or belonged to no store before this start;
* a log directory is missing or offline: somebody is about to repair something;
* the catalog knows its topic, which has no such partition.

Either way it counts for nothing from then on: not when a new partition is placed, and not when it is asked
whether all logs were closed. The marker of a clean shutdown names those that stay, so that a later start
takes none of them for closed.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.data_directory import STRAY_REASON
from stratalog.manager.directories.log_directories import LogDirectories
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.moves.move_mark import MOVE_MARK_FILE, MOVE_VOID_FILE
from stratalog.manager.partitions.import_mark import IMPORT_MARK_FILE
from stratalog.manager.partitions.lost_partitions import forget_left
from stratalog.manager.partitions.partition_metadata import (
    PARTITION_METADATA_FILE,
    format_topic_id,
    read_partition_metadata,
)
from stratalog.manager.partitions.stray_offsets import has_stray_offsets, note_stray_offsets

logger = logging.getLogger(__name__)


class PartitionClaim(enum.Enum):
    """What the store's catalog says of a partition that is on a disk."""

    WANTED = "a topic has a partition of this name"
    KNOWN = "the catalog knows its topic, which has no such partition"
    NONE = "no topic has this name and this id"


ClaimOf = Callable[[TopicPartition, UUID | None], PartitionClaim]


class _Doubt(NamedTuple):
    """Why a directory stays where it is, and what a human can do."""

    reason: str
    advice: str


class StrayPartitions:
    """Used once, by the thread that ends a start, under the guard of the directories."""

    def __init__(
        self,
        filesystem: FileSystem,
        ids: IdGenerator,
        directories: LogDirectories,
        claim_of: ClaimOf,
        is_moving: Callable[[TopicPartition], bool],
    ) -> None:
        """`is_moving`: a move of the partition is still wanted."""
        self._filesystem = filesystem
        self._ids = ids
        self._directories = directories
        self._claim_of = claim_of
        self._is_moving = is_moving

    def settle(self) -> None:
        """Set aside what is no topic's, or leave it and say so. A directory that fails meanwhile is offline
        then, and is left alone."""
        for directory in self._directories.online():
            try:
                for partition in directory.unopened:
                    self._settle(directory, partition)
                self._forget_left(directory)
            except DataDirectoryError as failure:
                logger.warning("strays could not be looked at: %s", failure)

    def _forget_left(self, directory: LogDirectory) -> None:
        """What checkpoints know of partitions that are not here and that nobody wants is left of what was put
        away, and would be believed of a later one of the name. But of a stray that has no note nothing else
        knows."""
        if directory.files.is_of_broker:
            return
        for partition in sorted(directory.checkpoints.partitions() - directory.partitions - directory.strays):
            strays = directory.files.set_aside_of(partition, STRAY_REASON)
            if self._claim_of(partition, None) is PartitionClaim.WANTED:
                continue
            try:
                is_noted = has_stray_offsets(self._filesystem, strays)
            except OSError:
                continue
            if is_noted:
                forget_left(directory, partition)

    def _settle(self, directory: LogDirectory, partition: TopicPartition) -> None:
        path = directory.partition_path(partition)
        topic_id: UUID | None = None
        doubt: _Doubt | None = None
        try:
            topic_id = read_partition_metadata(self._filesystem, path)
        except (DataDirectoryError, OSError) as failure:
            doubt = _Doubt(f"its {PARTITION_METADATA_FILE} cannot be read: {failure}", "restore that file")
        claim = self._claim_of(partition, topic_id)
        if claim is PartitionClaim.WANTED:
            return
        if doubt is None:
            doubt = self._doubt(directory, partition, topic_id, claim)
        if doubt is None:
            try:
                note_stray_offsets(self._filesystem, directory, partition)
                stray_path = directory.files.move_aside(partition, self._ids.uuid(), STRAY_REASON)
            except OSError as failure:
                doubt = _Doubt(f"it could not be set aside: {failure}", "see to the disk")
            else:
                directory.note_gone(partition)
                assert topic_id is not None
                logger.warning(
                    "a directory is named like a partition, and no topic of the store has its id: it was set"
                    " aside for you to look at; move it away, or remove it. A topic of its id and name gets"
                    " it back when it is opened, path=`%s` former_path=`%s` topic_id=`%s`",
                    stray_path,
                    path,
                    format_topic_id(topic_id),
                )
                return
        directory.require_online()
        directory.note_stray(partition)
        logger.warning(
            "a directory is named like a partition and is no topic's, and stays where it is, because %s; %s,"
            " or move it away, path=`%s`",
            doubt.reason,
            doubt.advice,
            path,
        )

    def _doubt(
        self, directory: LogDirectory, partition: TopicPartition, topic_id: UUID | None, claim: PartitionClaim
    ) -> _Doubt | None:
        """Why it is not certain that nobody looks for the directory under its name; None where it is."""
        if claim is PartitionClaim.KNOWN:
            return _Doubt(claim.value, "remove it if the topic was deleted")
        if topic_id is None:
            return _Doubt(f"it has no {PARTITION_METADATA_FILE}", "restore that file if it is a partition")
        path = directory.partition_path(partition)
        if self._has(path, IMPORT_MARK_FILE):
            return _Doubt("it is of an import that was cut off", "import it again")
        if self._is_moving(partition) or self._has(path, MOVE_MARK_FILE) or self._has(path, MOVE_VOID_FILE):
            return _Doubt("a move of it was cut off", "look for its other copy")
        if directory.files.is_of_broker:
            return _Doubt("the log directory was a broker's", "use `stratalog import` for a broker's topics")
        if not directory.files.was_bound:
            return _Doubt("the log directory belonged to no store before", "see whose it is")
        if not self._directories.is_all_known:
            return _Doubt("a log directory is missing or offline", "start the server with all of them")
        return None

    def _has(self, path: str, name: str) -> bool:
        try:
            return self._filesystem.exists(f"{path}/{name}")
        except OSError:
            # Nobody knows: as if it were there.
            return True
