"""One of the directories that hold logs: its partitions, and whether its disk works.

::

    live <--cordon, uncordon--> cordoned
      \\                           |
       +--------- failure --------+--> offline

A cordoned directory serves the logs that it has and gets no new ones. If cordons were altered at run time,
its manifest says whether it has one; otherwise the settings do. Offline is for good: see `DirectoryHealth`. A
directory that cannot be used when the process starts is offline from the beginning, and its partitions are
unknown then. So are those of a directory that is missing, see `MissingDirectories`.

The manifest says which partitions are here. A directory of a partition's name that it does not list is not
served and not removed: an operator has put it there, or a crash has cut off its creation, and it is empty.

For every log that is not open the directory knows whether it was closed in order, by the former process or
by this one; the next process need not recover such a log.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.directory_health import DirectoryHealth
from stratalog.log.disk_error import disk_error, disk_errors
from stratalog.manager.directories.directory_checkpoints import DirectoryCheckpoints
from stratalog.manager.directories.locked_directory import DELETE_REASON, LockedDirectory, reason_of
from stratalog.manager.directories.manifest import AsideEntry, ManifestFile, PartitionEntry, PartitionState
from stratalog.manager.directories.partition_metadata import read_partition_metadata
from stratalog.manager.directories.spare_space import SpareSpace

logger = logging.getLogger(__name__)


class DirectoryState(enum.Enum):
    """The states of the module's description."""

    LIVE = "live"
    CORDONED = "cordoned"
    OFFLINE = "offline"
    MISSING = "missing"


class LogDirectoryStatus(NamedTuple):
    """A log directory as an operator sees it."""

    path: str
    directory_id: str
    """From its meta.properties; empty if the directory could not be read."""
    state: DirectoryState
    reason: str
    """The reason why it is offline or missing; empty otherwise."""
    partition_count: int
    remaining_log_count: int
    """Number of logs that were found at the start and are not opened yet."""
    set_aside_count: int = 0
    """Number of directories for an operator to look at: of no topic, set aside, or left by an import."""


class _OpenFiles(NamedTuple):
    """The files of a directory that could be opened."""

    locked: LockedDirectory
    checkpoints: DirectoryCheckpoints
    spare: SpareSpace


def _finish_renames(filesystem: FileSystem, files: LockedDirectory) -> None:
    """Give each directory that is to be aside its name. Raises OSError if the disk fails."""
    manifest = files.manifest.now
    for name, aside in manifest.aside.items():
        target, source = f"{files.path}/{name}", files.partition_path(aside.partition)
        if filesystem.exists(target):
            continue
        is_left = aside.partition not in manifest.partitions and filesystem.exists(source)
        if not is_left or not _may_be_of(filesystem, source, aside):
            # The directory was removed, or an operator has moved it away.
            files.manifest.forget_aside(name)
            continue
        try:
            files.rename(source, target)
        except OSError as failure:
            if failure.errno in NO_SPACE and reason_of(name) == DELETE_REASON:
                filesystem.remove_tree(source)
                filesystem.sync_directory(files.path)
                files.manifest.forget_aside(name)
                continue
            logger.warning(
                "a directory cannot get the name that its manifest gives it, and is no partition meanwhile,"
                " path=`%s` name=`%s`: %s",
                source,
                name,
                failure,
            )


def _may_be_of(filesystem: FileSystem, path: str, aside: AsideEntry) -> bool:
    try:
        return read_partition_metadata(filesystem, path) in (None, aside.topic_id)
    except DataDirectoryError:
        return False


class LogDirectory:
    """A log directory of this process, online or offline. Guarded by DirectorySet.guard, but for `health`,
    `checkpoints`, `manifest` and `spare`, which are thread-safe."""

    def __init__(self, health: DirectoryHealth, *, is_cordoned: bool = False) -> None:
        """A directory whose partitions are unknown until `open`. `is_cordoned`: if its manifest has no
        cordon."""
        self.health = health
        self._is_cordoned_by_default = is_cordoned
        self._opened: _OpenFiles | None = None
        self.partitions = set[TopicPartition]()
        """Live partitions, and those that are about to be created here."""
        self.strays = set[TopicPartition]()
        """Partitions that no topic wants, and that keep their names."""
        self.unlisted = set[TopicPartition]()
        """Partitions that the manifest does not list, and that have a directory of their name."""
        self.was_clean = False
        """The former process closed all logs here, as far as `begin` has found."""
        # Logs that are not open now: the last process that had them closed them in order, or did not.
        self._clean = set[TopicPartition]()
        self._unclean = set[TopicPartition]()
        self._awaited = set[TopicPartition]()

    def open(self, filesystem: FileSystem, new_id: UUID, *, written_by_broker: bool = False) -> None:
        """Lock the directory, read its files, and finish renames that a crash has cut off. `new_id`: the id
        of a new directory. `written_by_broker`: see `LockedDirectory`.

        Raises DataDirectoryInUseError, DataDirectoryError, OSError; the directory is not locked then.
        """
        locked = LockedDirectory(filesystem, self.path, new_id, written_by_broker=written_by_broker)
        try:
            spare = SpareSpace(filesystem, self.path)
            checkpoints = DirectoryCheckpoints(filesystem, self.path, spare, locked.manifest)
            _finish_renames(filesystem, locked)
            listed = locked.manifest.now.partitions
            self.unlisted = locked.partition_names() - listed.keys()
            for staged in locked.staged():
                # It may have the only copies of a broker's files: only an import or an operator removes it.
                logger.warning(
                    "an import was cut off, and left copies that no topic has; import again, which replaces"
                    " them, or remove them, path=`%s`",
                    staged,
                )
            if self.health.reason is not None:
                # The disk has answered too late: the process goes on without the directory.
                raise self.health.os_error(self.path)
        except BaseException:
            locked.release()
            raise
        self._opened = _OpenFiles(locked, checkpoints, spare)
        self.partitions = {key for key, entry in listed.items() if entry.state is PartitionState.LIVE}
        self.strays = {key for key, entry in listed.items() if entry.state is PartitionState.STRAY}
        self._unclean = set(self.partitions)
        self._awaited = set(self.partitions)

    def begin(self) -> None:
        """Find out how the former process left the directory, and remove its marker. Raises OSError."""
        if self.files.take_clean_shutdown():
            self.was_clean = True
            present = self.files.partition_names()
            # The marker says nothing of a lost partition, which may come back.
            self._unclean = self.partitions - present
            self._clean = self.partitions & present

    @property
    def path(self) -> str:
        return self.health.path

    @property
    def is_online(self) -> bool:
        return self.health.reason is None

    @property
    def is_known(self) -> bool:
        """The directory could be used at the start, so its partitions are known."""
        return self._opened is not None

    @property
    def directory_id(self) -> str:
        """The id of the directory; empty if it could not be read."""
        return "" if self._opened is None else self._opened.locked.directory_id

    @property
    def files(self) -> LockedDirectory:
        """The locked directory. Raises DataDirectoryError if it is offline."""
        return self._online().locked

    @property
    def manifest(self) -> ManifestFile:
        """The manifest of the directory. Raises DataDirectoryError where the directory is offline."""
        return self._online().locked.manifest

    @property
    def checkpoints(self) -> DirectoryCheckpoints:
        """The checkpoints of the directory. Raises DataDirectoryError where the directory is offline."""
        return self._online().checkpoints

    @property
    def spare(self) -> SpareSpace:
        """The spare space of the directory. Raises DataDirectoryError where the directory is offline."""
        return self._online().spare

    def _online(self) -> _OpenFiles:
        self.require_online()
        assert self._opened is not None
        return self._opened

    def require_online(self) -> None:
        """Check that the directory is online. Raises DataDirectoryError."""
        refusal = self.health.refusal()
        if refusal is not None:
            raise refusal

    def partition_path(self, partition: TopicPartition) -> str:
        return f"{self.path}/{partition}"

    @property
    def entries(self) -> Mapping[TopicPartition, PartitionEntry]:
        """The partitions that the manifest lists. Works for an offline directory, too; empty if it could not
        be read."""
        return {} if self._opened is None else self._opened.locked.manifest.now.partitions

    def entry(self, partition: TopicPartition) -> PartitionEntry | None:
        """The partition's entry of the manifest; None if it is not here. As `entries`."""
        return self.entries.get(partition)

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """The topic of the partition that is here, or None. Works for an offline directory, too."""
        entry = self.entry(partition)
        return None if entry is None else entry.topic_id

    def move_number(self, partition: TopicPartition) -> int:
        """The move number of the partition: the copy with the higher one is newer. -1 if it is not here."""
        entry = self.entry(partition)
        return -1 if entry is None else entry.move_number

    @property
    def altered_cordon(self) -> bool | None:
        """The cordon that the manifest has; None where it has none, or the directory could not be read."""
        return None if self._opened is None else self._opened.locked.manifest.now.cordoned

    @property
    def is_cordoned(self) -> bool:
        """The directory takes no new partitions."""
        return self.is_cordoned_under(self.altered_cordon)

    def cordon(self, is_cordoned: bool | None) -> None:
        """Take no new partitions from now on, or take them again; None: as the settings say. Durable when it
        returns. Raises DataDirectoryError, with the former cordon in force."""
        refusal = self.cordon_refusal(is_cordoned)
        if refusal is not None:
            raise refusal
        if self.is_online:
            with disk_errors(self.path):
                self.spare.writing(lambda: self.manifest.set_cordoned(is_cordoned))

    def is_cordoned_under(self, altered: bool | None) -> bool:
        """Whether the directory takes no new partitions if the manifest has this cordon."""
        return self._is_cordoned_by_default if altered is None else altered

    def cordon_refusal(self, is_cordoned: bool | None) -> DataDirectoryError | None:
        """The error of a change that `cordon` cannot write because the directory is offline."""
        if self.is_online or self.is_cordoned_under(is_cordoned) == self.is_cordoned:
            return None
        return DataDirectoryError(
            "the log directory is offline, so its cordon cannot be altered; repair its disk, restart the"
            " server and try again. Until then it takes no new partitions",
            path=self.path,
            reason=self.health.reason,
        )

    @property
    def status(self) -> LogDirectoryStatus:
        """The state of the directory now."""
        state = DirectoryState.CORDONED if self.is_cordoned else DirectoryState.LIVE
        return LogDirectoryStatus(
            path=self.path,
            directory_id=self.directory_id,
            state=state if self.is_online else DirectoryState.OFFLINE,
            reason=self.health.reason or "",
            partition_count=len(self.partitions),
            remaining_log_count=len(self._awaited),
            set_aside_count=len(self.strays | self.unlisted)
            + (0 if self._opened is None else self._opened.locked.set_aside_count),
        )

    def is_clean(self, partition: TopicPartition) -> bool:
        """Whether the partition's log is not open, and was closed in order."""
        return partition in self._clean

    def note_tried(self, partition: TopicPartition) -> None:
        """Note that a caller has tried to open the log."""
        self._awaited.discard(partition)

    def note_opened(self, partition: TopicPartition) -> None:
        """Note that the log is open."""
        self.note_gone(partition)
        self.partitions.add(partition)

    def note_let_go(self, partition: TopicPartition, *, is_clean: bool) -> None:
        """Note that the log is no longer open, and stays here."""
        (self._clean if is_clean else self._unclean).add(partition)

    def note_gone(self, partition: TopicPartition) -> None:
        """Note that the partition is no longer here."""
        for known in (self.partitions, self.strays, self.unlisted, self._clean, self._unclean, self._awaited):
            known.discard(partition)

    def note_stray(self, partition: TopicPartition) -> None:
        """Note that the directory belongs to no topic, and stays."""
        self.note_gone(partition)
        self.strays.add(partition)

    @property
    def unopened(self) -> Iterable[TopicPartition]:
        """Partitions that are not open, in order."""
        return sorted(self._clean | self._unclean)

    def set_aside(self, guard: AbstractContextManager[object]) -> list[str]:
        """Paths for an operator to look at: of no topic, set aside, or left by an import. Raises
        DataDirectoryError, OSError.

        `guard` is that of all directories. It is not held while the disk is read: one that hangs would hold
        up the others.
        """
        with guard:
            noted = self.strays | self.unlisted
        gone = noted - self.files.partition_names()
        paths = self.files.set_aside()
        with guard:
            self.strays -= gone
            self.unlisted -= gone
            return [*map(self.partition_path, sorted(self.strays | self.unlisted)), *paths]

    def note_start_over(self) -> None:
        """Note the end of the start: logs that are not open by now belong to no topic."""
        self._awaited.clear()

    def mark_clean_shutdown(self) -> None:
        """Write the marker, unless a log of a topic was not closed in order. Raises OSError."""
        if not self._unclean:
            self.files.mark_clean_shutdown()

    def release(self) -> None:
        """Unlock the directory, also one that is offline."""
        if self._opened is not None:
            self._opened.locked.release()


def unusable(path: str, failure: OSError) -> DataDirectoryError:
    """The error for a directory that the operating system refuses."""
    if failure.errno in NO_SPACE:
        return disk_error(failure, path)
    return DataDirectoryError(
        "the log directory cannot be used; it must be a directory that this user may write to",
        path=path,
        reason=str(failure),
    )
