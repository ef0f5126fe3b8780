"""Settles, at the end of a start, partitions that are in a log directory and that no topic wants.

They come from a store that was put back to an older state, or from a topic whose deletion the store has
forgotten. If no topic of the store has the id, the partition is set aside as `TOPIC-N.UUID-stray`. It is
never deleted: an operator looks at it. If the store knows the topic later, `LogOpener` takes it back.

A stray keeps its name, and its manifest entry says `stray`, where it may be needed under that name:

* it is of an import or a move that was cut off, which goes on by its name;
* its log directory belonged to no store before this start;
* a log directory is missing or offline, so an operator is about to repair something;
* the catalog knows its topic, which has no such partition.

In both cases it no longer counts: not when a new partition is placed, and not when a start asks whether all
logs were closed. A stray that a topic wants later is recovered like a log that was not closed.

Directories that are named like a partition, and that the manifest does not list, stay where they are.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.locked_directory import REBUILD, STRAY_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import MANIFEST_FILE, PartitionState
from stratalog.manager.directories.partition_metadata import format_topic_id
from stratalog.manager.partitions.put_away import PutAway

logger = logging.getLogger(__name__)


class PartitionClaim(enum.Enum):
    """The relation of the store's catalog to a partition that is on a disk."""

    WANTED = "a topic has a partition of this name"
    KNOWN = "the catalog knows its topic, which has no such partition"
    NONE = "no topic has this name and this id"


ClaimOf = Callable[[TopicPartition, UUID | None], PartitionClaim]


class _Doubt(NamedTuple):
    """The reason why a directory keeps its name, and advice for an operator."""

    reason: str
    advice: str


class StrayPartitions:
    """Used once, by the thread that ends a start, under the guard of the directories."""

    def __init__(
        self,
        directories: DirectorySet,
        away: PutAway,
        claim_of: ClaimOf,
        is_moving: Callable[[TopicPartition], bool],
    ) -> None:
        """`is_moving` says whether a move of the partition is still wanted."""
        self._directories = directories
        self._away = away
        self._claim_of = claim_of
        self._is_moving = is_moving

    def settle(self) -> None:
        """Set strays aside, or let them keep their names, and log each. A log directory that fails meanwhile
        goes offline and is left alone."""
        for directory in self._directories.online():
            try:
                for partition in sorted({*directory.unopened, *directory.strays}):
                    self._settle(directory, partition)
            except DataDirectoryError as failure:
                logger.warning("strays could not be looked at: %s", failure)
                continue
            for partition in sorted(directory.unlisted):
                self._warn(
                    directory,
                    partition,
                    _Doubt(
                        f"the {MANIFEST_FILE} of its log directory does not list it",
                        f"to use it, stop the server and write `{REBUILD.decode()}` into that file",
                    ),
                )

    def _settle(self, directory: LogDirectory, partition: TopicPartition) -> None:
        """Settle one stray partition. Raises DataDirectoryError if the directory is offline."""
        topic_id = directory.topic_id(partition)
        if self._claim_of(partition, topic_id) is PartitionClaim.WANTED:
            return
        path = directory.partition_path(partition)
        doubt = self._doubt(directory, partition)
        if doubt is None:
            try:
                stray_path = self._away.put_away(directory, partition, STRAY_REASON)
            except DataDirectoryError as failure:
                directory.require_online()
                doubt = _Doubt(f"it could not be set aside: {failure}", "see to the disk")
            else:
                if stray_path is not None and topic_id is not None:
                    logger.warning(
                        "a directory is named like a partition, and no topic of the store has its id: it was"
                        " set aside for you to look at; move it away, or remove it. A topic of its id and"
                        " name gets it back when it is opened, path=`%s` former_path=`%s` topic_id=`%s`",
                        stray_path,
                        path,
                        format_topic_id(topic_id),
                    )
                return
        try:
            directory.manifest.change(partition, state=PartitionState.STRAY)
        except OSError as failure:
            directory.require_online()
            logger.info("the manifest cannot name a stray, path=`%s`: %s", path, failure)
        directory.note_stray(partition)
        self._warn(directory, partition, doubt)

    def _warn(self, directory: LogDirectory, partition: TopicPartition, doubt: _Doubt) -> None:
        logger.warning(
            "a directory is named like a partition, and no topic has it; it was not set aside, because %s;"
            " %s, or move it away, path=`%s`",
            doubt.reason,
            doubt.advice,
            directory.partition_path(partition),
        )

    def _doubt(self, directory: LogDirectory, partition: TopicPartition) -> _Doubt | None:
        """The reason why the directory may be needed under its name; None if there is none, or it is gone."""
        if not self._has(directory.partition_path(partition)):
            return None
        entry = directory.manifest.entry(partition)
        if self._claim_of(partition, None if entry is None else entry.topic_id) is PartitionClaim.KNOWN:
            return _Doubt(PartitionClaim.KNOWN.value, "remove it if the topic was deleted")
        if entry is not None and entry.import_epoch is not None:
            return _Doubt("it is of an import that was cut off", "import its topic again")
        if self._is_moving(partition):
            return _Doubt("a move of it was cut off", "look for its other copy")
        if not directory.files.was_bound:
            return _Doubt("the log directory belonged to no store before", "see whose it is")
        if not self._directories.is_all_known:
            return _Doubt("a log directory is missing or offline", "start the server with all of them")
        return None

    def _has(self, path: str) -> bool:
        try:
            return self._directories.filesystem.exists(path)
        except OSError:
            # Unknown counts as there.
            return True
