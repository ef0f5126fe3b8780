"""The log directories of a process: opened together, and each by itself from then on.

A directory is known by its path, by the place that the path leads to, and by the id in its meta.properties.
A start is refused if two paths lead to one directory, if one directory lies in another, or if one is a copy
of another that lacks a part. It is also refused if a directory belongs to another process or another store,
or has unreadable properties: the operator has named the wrong directory. A directory that the operating
system refuses, or whose disk does not answer, is offline, and the start goes on while another one works. The
owner of the threads that open logs gives one up that hangs meanwhile, see `SilentDisks`.

A partition has one directory: the one that has it, or else the one with the fewest partitions among those
that take new ones. A partition that is found nowhere may be in a directory that could not be read, or that is
missing. So it is not begun anew elsewhere, unless the caller knows that it has never been opened.
"""

from __future__ import annotations

import logging
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

from stratalog.base.disk_calls import DIRECT_DISK_CALLS, DiskCalls, Result
from stratalog.base.errors import DataDirectoryError, InvalidRequestError
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicPartition
from stratalog.log.directory_health import DirectoryHealth
from stratalog.log.disk_error import disk_error
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import ManifestError, read_properties
from stratalog.manager.directories.log_directory import LogDirectory, LogDirectoryStatus, unusable
from stratalog.manager.directories.meta_properties import DIRECTORY_ID
from stratalog.manager.directories.missing_directories import MissingDirectories, log_missing
from stratalog.manager.directories.watched_filesystem import WatchedFileSystem

logger = logging.getLogger(__name__)


class DirectorySet:
    """The log directories of one process. Thread-safe. `guard` guards the state of each `LogDirectory`. A
    thread that holds it does not wait for a log. `on_all_failed` may be called under any lock."""

    def __init__(
        self, filesystem: FileSystem, paths: Sequence[str], on_all_failed: Callable[[], None]
    ) -> None:
        """Use `open`."""
        self.guard = threading.RLock()
        self._altering = threading.Lock()
        """Held by an alteration of cordons, which waits for disks."""
        self._on_all_failed = on_all_failed
        self._failure_lock = threading.Lock()
        self._has_told = True
        self._listeners: list[Callable[[str], None]] = []
        self._healths = [DirectoryHealth(path, self._tell_failed) for path in paths]
        self._watched = WatchedFileSystem(filesystem, self._healths)
        self.filesystem: FileSystem = self._watched
        """The file system for the logs: it notices when a disk fails."""
        self.disk_calls: DiskCalls = DIRECT_DISK_CALLS
        """Waits for their disks. The owner of the threads sets it before the first call."""
        self._directories: tuple[LogDirectory, ...] = ()
        self._missing = MissingDirectories(())

    @staticmethod
    def open(
        filesystem: FileSystem,
        ids: IdGenerator,
        paths: Sequence[str],
        cordoned: Sequence[str],
        on_all_failed: Callable[[], None],
        *,
        written_by_broker: bool = False,
        disk_calls: DiskCalls = DIRECT_DISK_CALLS,
    ) -> DirectorySet:
        """Lock all, and read their files. `cordoned`: those of `paths` that take no new partitions, unless
        their manifests say otherwise.
        `on_all_failed` is called once, when the last directory goes offline later on. `written_by_broker`:
        see `LogManagerSettings`. `disk_calls` waits for the disks, here and in what the calling thread does
        until `end_start`: a directory that does not answer is offline.

        Raises DataDirectoryInUseError, DataDirectoryError, with no directory locked but one that does not
        answer.
        """
        assert set(cordoned) <= set(paths)
        directories = DirectorySet(filesystem, paths, on_all_failed)
        _require_apart(directories._find_each(filesystem, disk_calls))
        try:
            first_failure = directories._open_each(
                ids, cordoned, disk_calls, written_by_broker=written_by_broker
            )
            directories._require_one_store()
            directories._missing = MissingDirectories(directories._directories)
            # Last, because a start that was refused must not count as a crash.
            begin_failure = directories._begin_each(disk_calls)
            if not directories.online():
                failure = first_failure or begin_failure
                assert failure is not None
                raise failure
        except BaseException:
            directories.release()
            raise
        with directories._failure_lock:
            directories._has_told = False
        if disk_calls is not DIRECT_DISK_CALLS:
            directories._watched.begin_start(partial(directories._on_disk, disk_calls))
        log_missing(directories.missing())
        return directories

    def _find_each(self, filesystem: FileSystem, disk_calls: DiskCalls) -> Mapping[str, str]:
        """The place that each path leads to, of those directories whose disks answer; the others are offline
        from here on. Side by side, so that one waits for no other."""
        paths = [health.path for health in self._healths]
        answers = disk_calls.run_each({path: partial(_place_of, filesystem, path) for path in paths})
        for path, silence in answers.silences.items():
            self._note_silence(path, silence)
        return {path: place for path in paths if (place := answers.results.get(path)) is not None}

    def _note_silence(self, path: str, silence: DataDirectoryError) -> None:
        self.give_up(path, str(silence.fields["waited_s"]))

    def give_up(self, path: str, waited_s: str) -> None:
        """Take a directory offline whose disk does not answer a start. Calls those of `tell_failures_to`."""
        self._health_of(path).fail(
            f"its disk did not answer for {waited_s} s when the server started; find out why, and start the"
            " server again"
        )

    def answer_count(self, path: str) -> int:
        """A number that changes while the disk of this directory answers operations. Takes no lock."""
        return self._health_of(path).answer_count

    def _health_of(self, path: str) -> DirectoryHealth:
        [health] = [one for one in self._healths if one.path == path]
        return health

    def _on_disk(self, disk_calls: DiskCalls, path: str, work: Callable[[], Result]) -> Result:
        """The result of work on a directory, which goes offline if its disk does not answer. Raises what the
        work raises, OSError."""
        health = self._health_of(path)
        answers = disk_calls.run_each({path: work}, lambda _: health.answer_count)
        for silence in answers.silences.values():
            self._note_silence(path, silence)
            raise health.os_error(path)
        return answers.results[path]

    def _open_each(
        self, ids: IdGenerator, cordoned: Sequence[str], disk_calls: DiskCalls, *, written_by_broker: bool
    ) -> DataDirectoryError | None:
        """Open the directories that can be used; returns the first failure of the others."""
        first_failure: DataDirectoryError | None = None
        paths_by_id: dict[str, str] = {}
        for health in self._healths:
            directory = LogDirectory(health, is_cordoned=health.path in cordoned)
            self._directories = (*self._directories, directory)
            try:
                # Before the lock: a second name of a directory must not look like another process.
                read = partial(read_properties, self.filesystem, health.path)
                found_id = self._on_disk(disk_calls, health.path, read).get(DIRECTORY_ID, "")
                if found_id in paths_by_id:
                    raise DataDirectoryError(
                        "two log directories have the same directory.id, so they are one directory under two"
                        " names, or one is a copy of the other; leave one of them out",
                        path=health.path,
                        other_path=paths_by_id[found_id],
                        directory_id=found_id,
                    )
                open_it = partial(
                    directory.open, self.filesystem, ids.uuid(), written_by_broker=written_by_broker
                )
                self._on_disk(disk_calls, health.path, open_it)
                paths_by_id[directory.directory_id] = health.path
            except (OSError, ManifestError) as failure:
                error = failure if isinstance(failure, ManifestError) else unusable(health.path, failure)
                if len(self._healths) == 1:
                    # There is no other directory to go on with.
                    raise error from failure
                first_failure = first_failure or error
                health.fail(str(failure))
        return first_failure

    def _begin_each(self, disk_calls: DiskCalls) -> DataDirectoryError | None:
        """Begin each directory that could be opened; returns the first failure."""
        first_failure: DataDirectoryError | None = None
        for directory in self.online():
            try:
                self._on_disk(disk_calls, directory.path, directory.begin)
            except OSError as failure:
                first_failure = first_failure or unusable(directory.path, failure)
                directory.health.fail(str(failure))
        return first_failure

    def end_start(self) -> None:
        """From now on the thread of the start waits for a disk as others do."""
        self._watched.end_start()

    def release(self) -> None:
        """Unlock all of them."""
        for directory in self._directories:
            directory.release()

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._directories)

    def online(self) -> list[LogDirectory]:
        """The directories that work."""
        return [directory for directory in self._directories if directory.is_online]

    def at(self, path: str) -> LogDirectory:
        """The directory of this path. Raises InvalidRequestError if there is none."""
        for directory in self._directories:
            if directory.path == path:
                return directory
        # A caller without access to this machine sees the others where they are described.
        raise InvalidRequestError(
            "there is no log directory of this path; name one that `stratalog log-dirs describe` shows",
            path=path,
        )

    def of(self, log: UnifiedLog) -> LogDirectory:
        """The directory that the log is in."""
        return self.at(log.local_log.log_dir)

    def holders(self, partition: TopicPartition) -> list[LogDirectory]:
        """The directories that list the partition, online or not. There are several if an older topic had the
        name, or if an older copy could not be put away yet."""
        with self.guard:
            return [
                directory
                for directory in self._directories
                if partition in directory.partitions or partition in directory.strays
            ]

    def holder(self, partition: TopicPartition) -> LogDirectory | None:
        """The directory that has the partition, online or not; None if none is known to have it."""
        return next(iter(self.holders(partition)), None)

    def place_of(self, partition: TopicPartition) -> str | None:
        """The path of the directory that has the partition, or None. Takes no lock, which a thread that waits
        for a disk may hold."""
        found = (directory.path for directory in self._directories if partition in directory.partitions)
        return next(found, None)

    def silences(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, DataDirectoryError]:
        """The errors of partitions that a directory lists which does not answer, as `require_answers` raises
        them. Asks each directory once."""
        found = {one: tuple(self.holders(one)) for one in partitions}
        silent: dict[LogDirectory, DataDirectoryError] = {}
        for directory in dict.fromkeys(chain.from_iterable(found.values())):
            try:
                self._require_answer(directory)
            except DataDirectoryError as failure:
                silent[directory] = failure
        return {
            partition: silent[directory]
            for partition, holders in found.items()
            for directory in reversed(holders)
            if directory in silent
        }

    def require_answers(self, partition: TopicPartition) -> None:
        """Raise DataDirectoryError if a directory that lists the partition does not answer: what an older
        topic has left there cannot be put away."""
        for directory in self.holders(partition):
            self._require_answer(directory)

    def _require_answer(self, directory: LogDirectory) -> None:
        if directory.is_online:
            self.disk_calls.run(directory.path, partial(self.filesystem.exists, directory.path))

    def require_not_offline(self, partition: TopicPartition) -> None:
        """Raise DataDirectoryError if the partition is in a directory that is offline."""
        for directory in self._directories:
            if not directory.is_online and partition in directory.partitions | directory.strays:
                raise DataDirectoryError(
                    "the partition is in a log directory that is offline; repair the disk and restart the"
                    " server",
                    path=directory.partition_path(partition),
                    reason=directory.health.reason,
                )

    def statuses(self) -> tuple[LogDirectoryStatus, ...]:
        """The state of each directory, in the order of the settings."""
        with self.guard:
            return tuple(directory.status for directory in self._directories)

    def missing(self) -> tuple[LogDirectoryStatus, ...]:
        """The directories that were used with these before, and are not here, at their last paths."""
        with self.guard:
            return self._missing.all()

    @property
    def is_all_known(self) -> bool:
        """No directory is offline or missing, so a partition that none lists is nowhere."""
        return all(directory.is_online for directory in self._directories) and not self.missing()

    def forget(self, directory_id: str) -> str:
        """Give up a missing directory: partitions that are nowhere else begin anew when they are opened next.
        Returns its last path. Raises InvalidRequestError if no missing directory has this id,
        DataDirectoryError."""
        try:
            with self.guard:
                return self._missing.forget(directory_id)
        except OSError as failure:
            raise disk_error(failure, str(failure.filename or self._directories[0].path)) from failure

    def require_nowhere(self, partition: TopicPartition) -> None:
        """Raise DataDirectoryError if the partition, which no readable directory has, may be in another
        one."""
        for missing in self.missing():
            raise DataDirectoryError(
                "the partition may be in a log directory that is missing; start the server with it, its disk"
                " mounted, or go on without what is in it by `stratalog log-dirs forget ID` and a restart",
                path=f"{missing.path}/{partition}",
                directory_id=missing.directory_id,
                reason=missing.reason,
            )
        for directory in self._directories:
            if not directory.is_known:
                raise DataDirectoryError(
                    "the partition may be in a log directory that is offline; repair the disk and restart the"
                    " server, or start it without that directory and let `stratalog log-dirs forget` give up"
                    " what is in it",
                    path=directory.partition_path(partition),
                    reason=directory.health.reason,
                )

    def emptiest(self) -> LogDirectory:
        """The directory for a new partition. Raises DataDirectoryError if none takes new partitions."""
        online = self.online()
        open_ones = [directory for directory in online if not directory.is_cordoned]
        if not online:
            self._directories[0].require_online()
        # If none answers, the creation in the first one says so.
        answering = [one for one in open_ones if not self.disk_calls.is_silent(one.path)]
        open_ones = answering or open_ones
        if not open_ones:
            raise DataDirectoryError(
                "no log directory takes new partitions, all that work are cordoned; uncordon one",
                path=self._directories[0].path,
            )
        return min(open_ones, key=lambda directory: len(directory.partitions))

    def altered_cordons(self) -> tuple[str, ...] | None:
        """Paths of the cordoned directories; None where no manifest has a cordon, so the settings hold."""
        if all(directory.altered_cordon is None for directory in self._directories):
            return None
        return tuple(directory.path for directory in self._directories if directory.is_cordoned)

    def alter_cordons(self, paths: Sequence[str] | None) -> None:
        """Let these directories take no new partitions from now on, and all others take them; None: as the
        settings say. Durable when it returns.

        Raises InvalidRequestError if a path is not that of a log directory, DataDirectoryError if a directory
        that would change is offline: then nothing has changed. If a disk refuses the change, it holds for the
        directories before that one, and the error names them. A crash may leave the same. If a disk does not
        answer the change, it may hold for its directory later.
        """
        with self._altering:
            chosen = None if paths is None else {self.at(path) for path in paths}
            wanted = {one: None if chosen is None else one in chosen for one in self._directories}
            for directory, is_cordoned in wanted.items():
                refusal = directory.cordon_refusal(is_cordoned)
                if refusal is not None:
                    raise refusal
            altered: list[str] = []
            for directory, is_cordoned in wanted.items():
                try:
                    self._cordon(directory, is_cordoned)
                except DataDirectoryError as failure:
                    raise DataDirectoryError(
                        "a log directory refuses its cordon; the directories in `altered` have theirs by now,"
                        " the others have not; mend what the reason says, and alter it again",
                        path=directory.path,
                        altered=", ".join(altered) or "none",
                        reason=str(failure),
                    ) from failure.__cause__
                altered.append(directory.path)

    def _cordon(self, directory: LogDirectory, is_cordoned: bool | None) -> None:
        """Write the cordon of a directory. One that does not answer is left out, as one that is offline, if
        it has that cordon by the settings. Raises DataDirectoryError; if the disk does not answer, it may get
        the cordon later."""
        try:
            self.disk_calls.run(directory.path, partial(directory.cordon, is_cordoned))
        except DataDirectoryError:
            is_left_out = directory.is_cordoned_under(is_cordoned) == directory.is_cordoned
            if not is_left_out or not self.disk_calls.is_silent(directory.path):
                raise
            logger.warning(
                "a log directory does not answer, so its manifest does not say that its cordon stays as it"
                " is, path=`%s`",
                directory.path,
            )

    @property
    def bound_store_id(self) -> str | None:
        """The store that the directories are tied to, as far as they can be read."""
        with self.guard:
            found = (directory.files.bound_store_id for directory in self.online())
            return next((store_id for store_id in found if store_id is not None), None)

    def bind_store(self, store_id: str) -> None:
        """Tie all directories that work to a store for good, and to each other: later starts notice which of
        them is absent. Raises DataDirectoryError if one is tied to another store, or cannot be written."""
        with self.guard:
            online = self.online()
            # Directories that are tied already come first: they refuse a wrong store.
            for directory in sorted(online, key=lambda one: one.files.bound_store_id is None):
                try:
                    directory.files.bind_store(store_id)
                except OSError as failure:
                    # A failed disk is offline by now; the other directories stay in use.
                    if directory.is_online:
                        raise disk_error(failure, directory.path) from failure
            self._missing.note_present()

    def _require_one_store(self) -> None:
        bound: dict[str, str] = {}
        for directory in self.online():
            store_id = directory.files.bound_store_id
            if store_id is not None:
                bound[store_id] = directory.path
        if len(bound) > 1:
            (store_id, path), (other_id, other_path), *_ = bound.items()
            raise DataDirectoryError(
                "the log directories belong to different object stores; use only those of one store",
                path=path,
                store_id=store_id,
                other_path=other_path,
                other_store_id=other_id,
            )

    def tell_failures_to(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the path of each directory that goes offline from now on, once, under any
        lock."""
        self._listeners.append(listener)

    def _tell_failed(self, failed: DirectoryHealth) -> None:
        for listener in self._listeners:
            listener(failed.path)
        with self._failure_lock:
            if self._has_told or any(health.reason is None for health in self._healths):
                return
            self._has_told = True
        logger.critical("the last log directory has failed: there is no disk left to serve from")
        self._on_all_failed()


def _place_of(filesystem: FileSystem, path: str) -> str | None:
    """The place that the path leads to, once its disk has answered; None if the system refuses that, which
    opening the directory reports."""
    # What was read before is in memory, and says nothing of the disk.
    with suppress(OSError):
        filesystem.sync_directory(path)
    try:
        return filesystem.real_path(path)
    except OSError:
        return None


def _require_apart(real_paths: Mapping[str, str]) -> None:
    """Raise DataDirectoryError if two paths lead to one directory, or one leads into another directory."""
    known: dict[str, str] = {}
    for path, real_path in real_paths.items():
        for other_real_path, other_path in known.items():
            if other_real_path == real_path:
                raise DataDirectoryError(
                    "two log directories are one and the same; leave one of them out",
                    path=path,
                    other_path=other_path,
                    real_path=real_path,
                )
            if posixpath.commonpath([real_path, other_real_path]) in (real_path, other_real_path):
                raise DataDirectoryError(
                    "log directories must not lie one inside the other; put them beside each other",
                    path=path,
                    other_path=other_path,
                )
        known[real_path] = path
