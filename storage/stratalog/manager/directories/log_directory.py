"""One of the directories that hold logs: which ones, what is known of them, and whether its disk works.

::

    live <--cordon, uncordon--> cordoned
      \\                           |
       +--------- failure --------+--> offline

A cordoned directory serves the logs that it has and gets no new ones. Offline is for good: see
`DirectoryHealth`. A directory that cannot be used when the process starts is offline from the beginning, and
nobody knows then which partitions are in it. So it is with one that is missing, see `SiblingDirectories`.

Of every log that is not open it is known whether the next process may take it for closed: one that the former
process closed and that nobody has touched since, or touched only to close it in order.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.directory_health import DirectoryHealth
from stratalog.log.disk_error import disk_error
from stratalog.manager.directories.data_directory import DataDirectory
from stratalog.manager.directories.directory_checkpoints import DirectoryCheckpoints
from stratalog.manager.directories.spare_space import SpareSpace

logger = logging.getLogger(__name__)


class DirectoryState(enum.Enum):
    """See the module's description."""

    LIVE = "live"
    CORDONED = "cordoned"
    OFFLINE = "offline"
    MISSING = "missing"


class LogDirectoryStatus(NamedTuple):
    """What an operator should know of a log directory."""

    path: str
    directory_id: str
    """Of its meta.properties; empty where they could not be read."""
    state: DirectoryState
    reason: str
    """Why it is offline or missing; empty where it is neither."""
    partition_count: int
    remaining_log_count: int
    """Logs that were found at the start and have not been opened yet."""
    set_aside_count: int = 0
    """Directories of partitions that are no topic's, or were set aside, and what imports left: for a human to
    look at."""


class OpenedDirectory(NamedTuple):
    """What a start found in a directory that can be used."""

    files: DataDirectory
    checkpoints: DirectoryCheckpoints
    spare: SpareSpace
    partitions: tuple[TopicPartition, ...]

    @staticmethod
    def open(filesystem: FileSystem, path: str, new_id: UUID) -> OpenedDirectory:
        """Lock it, and read all that is known.

        Raises DataDirectoryInUseError, DataDirectoryError, OSError.
        """
        files = DataDirectory(filesystem, path, new_id)
        try:
            spare = SpareSpace(filesystem, path)
            checkpoints = DirectoryCheckpoints(filesystem, path, spare)
            partitions = tuple(files.partitions())
            for staged in files.staged():
                # Its files may be the last names of a broker's: the next import removes it, or a human.
                logger.warning(
                    "an import was cut off, and left what it had staged, which no topic has; import again,"
                    " which replaces it, or remove it, path=`%s`",
                    staged,
                )
            return OpenedDirectory(files, checkpoints, spare, partitions)
        except BaseException:
            files.release()
            raise


class LogDirectory:
    """Guarded by LogDirectories.guard, but for `health`, `checkpoints` and `spare`, which are thread-safe."""

    def __init__(
        self, health: DirectoryHealth, opened: OpenedDirectory | None, *, is_cordoned: bool = False
    ) -> None:
        """`opened`: None where the directory cannot be used."""
        self.health = health
        self.is_cordoned = is_cordoned
        self.partitions = set(opened.partitions if opened is not None else ())
        """Those that have a directory here, or are about to get one, but for `strays`."""
        self.strays: set[TopicPartition] = set()
        """Named like partitions, and of no topic, see `StrayPartitions`."""
        self.was_clean = False
        """The former process closed all logs here; as far as `begin` has found."""
        self._opened = opened
        # Those of which checkpoints know, whose directory is gone, and which were not closed in order; see
        # `lost_partitions`.
        self._lost: set[TopicPartition] = set()
        # Not open now: closed in order by whoever had them last, or not.
        self._clean: set[TopicPartition] = set()
        self._unclean = set(self.partitions)
        self._awaited = set(self.partitions)

    def begin(self) -> None:
        """This process has the directory: find out how the former one left it. From now on a crash counts as
        a crash. Raises OSError."""
        left = self.files.take_clean_shutdown()
        self._lost = {
            partition
            for partition in self.checkpoints.partitions() - self.partitions
            if left is None or str(partition) in left
        }
        if left is not None:
            self.was_clean = True
            self._unclean = {partition for partition in self.partitions if str(partition) in left}
            self._clean = self.partitions - self._unclean

    @property
    def path(self) -> str:
        return self.health.path

    @property
    def is_online(self) -> bool:
        return self.health.reason is None

    @property
    def is_known(self) -> bool:
        """It could be used at the start, so that it is known which partitions are in it."""
        return self._opened is not None

    @property
    def directory_id(self) -> str:
        """Of its meta.properties; empty where they could not be read."""
        return "" if self._opened is None else self._opened.files.directory_id

    @property
    def files(self) -> DataDirectory:
        """The directory itself. Raises DataDirectoryError where it is offline."""
        self.require_online()
        assert self._opened is not None
        return self._opened.files

    @property
    def checkpoints(self) -> DirectoryCheckpoints:
        """Raises DataDirectoryError where the directory is offline."""
        self.require_online()
        assert self._opened is not None
        return self._opened.checkpoints

    @property
    def spare(self) -> SpareSpace:
        """Raises DataDirectoryError where the directory is offline."""
        self.require_online()
        assert self._opened is not None
        return self._opened.spare

    def require_online(self) -> None:
        """Raises DataDirectoryError."""
        refusal = self.health.refusal()
        if refusal is not None:
            raise refusal

    def partition_path(self, partition: TopicPartition) -> str:
        return f"{self.path}/{partition}"

    @property
    def status(self) -> LogDirectoryStatus:
        """As it is now."""
        state = DirectoryState.CORDONED if self.is_cordoned else DirectoryState.LIVE
        return LogDirectoryStatus(
            self.path,
            self.directory_id,
            state if self.is_online else DirectoryState.OFFLINE,
            self.health.reason or "",
            len(self.partitions),
            len(self._awaited),
            len(self.strays) + (0 if self._opened is None else self._opened.files.set_aside_count),
        )

    def is_clean(self, partition: TopicPartition) -> bool:
        """The partition's log is not open, and was closed in order by whoever had it last."""
        return partition in self._clean

    def was_closed(self, partition: TopicPartition) -> bool:
        """Whoever had the partition last has closed it in order, if it was here: checkpoints know all that it
        had."""
        return partition not in self._lost

    def note_tried(self, partition: TopicPartition) -> None:
        """Somebody has tried to open the log."""
        self._awaited.discard(partition)

    def note_opened(self, partition: TopicPartition) -> None:
        """The log is open."""
        self.partitions.add(partition)
        self.strays.discard(partition)
        self._lost.discard(partition)
        self._clean.discard(partition)
        self._unclean.discard(partition)

    def note_let_go(self, partition: TopicPartition, *, is_clean: bool) -> None:
        """The log is not open any more, and stays here."""
        (self._clean if is_clean else self._unclean).add(partition)

    def note_gone(self, partition: TopicPartition) -> None:
        """The partition has no directory here any more."""
        for known in (self.partitions, self.strays, self._clean, self._unclean, self._awaited):
            known.discard(partition)

    def note_stray(self, partition: TopicPartition) -> None:
        """The directory is no topic's, and stays."""
        self.note_gone(partition)
        self.strays.add(partition)

    @property
    def unopened(self) -> Iterable[TopicPartition]:
        """Those that are not open, in order."""
        return sorted(self._clean | self._unclean)

    def set_aside(self) -> list[str]:
        """Paths of what a human should look at: what is no topic's, and what was set aside. Raises
        DataDirectoryError, OSError."""
        return [*map(self.partition_path, sorted(self.strays)), *self.files.set_aside()]

    def note_start_over(self) -> None:
        """Whatever was not opened until now belongs to no topic."""
        self._awaited.clear()

    def mark_clean_shutdown(self) -> None:
        """All open logs were closed in order: say so, unless others were not that are a topic's. Raises
        OSError."""
        if not self._unclean:
            # However many starts do not come to open them: no stop in order makes the checkpoints know more.
            self.files.mark_clean_shutdown(self.strays | self._lost)

    def release(self) -> None:
        """Let another process have it. What is offline is released as well."""
        if self._opened is not None:
            self._opened.files.release()


def unusable(path: str, failure: OSError) -> DataDirectoryError:
    """What whoever configured the directory is told."""
    if failure.errno in NO_SPACE:
        return disk_error(failure, path)
    return DataDirectoryError(
        "the data directory cannot be used; it must be a directory that this user may write to",
        path=path,
        reason=str(failure),
    )
