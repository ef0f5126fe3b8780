"""The directory that holds the logs: who has it, whose it is, and how it was left.

Besides one directory for each partition it has::

    .lock                               held by the process that has the directory open
    meta.properties                     directory.id, store.id of the store that its logs are tiered to, and
                                        sibling.directories, the others of the same server
    recovery-point-offset-checkpoint    see `checkpoint`
    log-start-offset-checkpoint         and its .copy, see `start_checkpoint`
    cleaner-offset-checkpoint           and cleaner-horizon-checkpoint, see `cleaner_checkpoints`
    .spare-deletion, .spare-stop        space that is kept aside, see `spare_space`
    .kafka_cleanshutdown                there if the last process closed every log; removed before any change
    TOPIC-N.UUID-delete                 a deleted partition, to be removed
    TOPIC-N.UUID-future                 a copy of a partition that is to move here, see `log_move`
    TOPIC-N.UUID-REASON                 set aside, for a human: `stray` (see `stray_offsets`), `fenced`
    import.UUID-staging                 copies that an import makes, see `import_staging`; later, that it left
    claims-NNNN                         what this server has claimed of the shard of that number of its store
    scratch                             what uploads and compactions have no memory for, until they end

A partition's directory has, beside the files of the log::

    partition.metadata                  which topic it belongs to
    import.metadata                     it was taken over from a broker, see `import_mark`
    move.metadata                       it is the copy of a move, and of which directories, see `move_mark`
    move.void                           moves whose copies count for nothing, see `move_mark`

The marker of a clean shutdown is `{"version":0}`, or with `"left":["TOPIC-N"]` names directories of no topic
that nobody has closed, and those that were gone before they were closed.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import cast
from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import CorruptRecordError, DataDirectoryError, DataDirectoryInUseError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.meta_properties import (
    DIRECTORY_ID,
    META_FILE,
    META_VERSION,
    SIBLINGS,
    STORE_ID,
    VERSION,
    format_meta_properties,
    format_siblings,
    parse_meta_properties,
    parse_siblings,
)

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
DELETE_REASON = "delete"
FUTURE_REASON = "future"
STRAY_REASON = "stray"
_REMOVED_REASONS = (DELETE_REASON, FUTURE_REASON)
# A property that only a broker writes.
_CLUSTER_ID = "cluster.id"
# The longest name that all usual file systems take.
_MAX_NAME_BYTES = 255
# Of the number of a partition, here and in Kafka.
_MAX_PARTITION = 2**31 - 1
# What `path_beside` makes, and Kafka.
_NAME_BESIDE = re.compile(r"([A-Za-z0-9._-]+)\.[0-9a-f]{32}-([a-z]+)")
# No partition's name: these end with a number. And nobody else's: what has such a name is removed.
_STAGING = re.compile(r"import\.[0-9a-f]{32}-staging")


class DataDirectory:
    """One data directory, locked. Guarded by LogDirectories.guard; until that is there, by who opens it."""

    def __init__(self, filesystem: FileSystem, path: str, directory_id: UUID) -> None:
        """Create it where it is missing, and lock it. `directory_id`: for a new one.

        Raises DataDirectoryInUseError, DataDirectoryError, OSError.
        """
        self.path = path
        self._filesystem = filesystem
        _make_durable_directory(filesystem, path)
        lock = filesystem.try_lock(f"{path}/{LOCK_FILE}")
        if lock is None:
            raise DataDirectoryInUseError(
                "another process has this data directory open; stop it or use another directory", path=path
            )
        self._lock = lock
        # Names of directories that were set aside, as of the last look and since.
        self._set_aside_names: set[str] = set()
        # And of those besides that some process has put away, as of any look.
        self._put_away_names: set[str] = set()
        try:
            self._properties = read_properties(filesystem, path)
            self.was_bound = STORE_ID in self._properties
            """It belonged to a store before this process had it."""
            if not self._properties:
                self._write_properties({VERSION: META_VERSION, DIRECTORY_ID: str(directory_id)})
        except BaseException:
            lock.release()
            raise

    def release(self) -> None:
        self._lock.release()

    @property
    def directory_id(self) -> str:
        """Nobody else's, unless the directory was copied."""
        return self._properties[DIRECTORY_ID]

    @property
    def is_of_broker(self) -> bool:
        """A broker has used it."""
        return _CLUSTER_ID in self._properties

    @property
    def bound_store_id(self) -> str | None:
        """The store that it is tied to."""
        return self._properties.get(STORE_ID)

    def bind_store(self, store_id: str) -> None:
        """Tie the directory to a store for good. Raises DataDirectoryError where it is tied to another one,
        OSError."""
        bound_id = self.bound_store_id
        if bound_id is not None and bound_id != store_id:
            raise DataDirectoryError(
                "this data directory belongs to another object store; use that store, or another directory",
                path=self.path,
                store_id=bound_id,
                wanted_store_id=store_id,
            )
        if bound_id is None:
            self._write_properties({**self._properties, STORE_ID: store_id})

    @property
    def siblings(self) -> dict[str, str]:
        """The other directories that were used with this one: their last paths, by their ids."""
        return parse_siblings(self._properties.get(SIBLINGS, ""))

    def note_siblings(self, siblings: Mapping[str, str]) -> None:
        """Name these as the others, and no more. Durable when it returns. Raises OSError."""
        if siblings != self.siblings:
            self._write_properties({**self._properties, SIBLINGS: format_siblings(siblings)})

    def take_clean_shutdown(self) -> frozenset[str] | None:
        """Whether the last process closed every log: the names of those besides that it left alone, or None.
        Asked once: from now on a crash counts as a crash. Raises OSError."""
        path = f"{self.path}/{CLEAN_SHUTDOWN_FILE}"
        if not self._filesystem.exists(path):
            return None
        left = _parse_marker(self._filesystem.read_file(path))
        self._filesystem.unlink(path)
        self._filesystem.sync_directory(self.path)
        return left

    def mark_clean_shutdown(self, left: Iterable[TopicPartition] = ()) -> None:
        """Everything is closed and durable, but for these directories of no topic, or that are gone. Raises
        OSError."""
        document: dict[str, object] = {"version": 0}
        names = sorted(map(str, left))
        if names:
            document["left"] = names
        text = json.dumps(document, separators=(",", ":"))
        replace_file(self._filesystem, f"{self.path}/{CLEAN_SHUTDOWN_FILE}", text.encode())

    def partition_path(self, partition: TopicPartition) -> str:
        return f"{self.path}/{partition}"

    def partitions(self) -> list[TopicPartition]:
        """Those that have a directory, in order. Raises OSError."""
        names = self._directory_names()
        self._set_aside_names = set(filter(_is_set_aside, names))
        self._put_away_names.update(filter(_is_put_away, names))
        found = map(parse_partition_name, names)
        return sorted(partition for partition in found if partition is not None)

    def leftovers(self) -> list[str]:
        """Paths of deleted partitions that were not removed yet. Raises OSError."""
        return self._named_for(DELETE_REASON)

    def move_aside(self, partition: TopicPartition, unique: UUID, reason: str) -> str:
        """Give the partition's directory a name that no partition has; durable. Returns the path. Raises
        OSError."""
        target = self.path_beside(partition, unique, reason)
        self._filesystem.rename(self.partition_path(partition), target)
        if reason not in _REMOVED_REASONS:
            self._set_aside_names.add(posixpath.basename(target))
        self._filesystem.sync_directory(self.path)
        return target

    @property
    def set_aside_count(self) -> int:
        """Directories that were set aside for a human, as of the last look and since."""
        return len(self._set_aside_names)

    def set_aside(self) -> list[str]:
        """Their paths, as they are now, in order. Raises OSError."""
        self._set_aside_names = set(filter(_is_set_aside, self._directory_names()))
        return [f"{self.path}/{name}" for name in sorted(self._set_aside_names)]

    def set_aside_of(self, partition: TopicPartition, reason: str) -> list[str]:
        """Those that were this partition's, or, of the longest names, may have been; as of the last look and
        since."""
        return self._beside(partition, reason, self._set_aside_names)

    def _beside(self, partition: TopicPartition, reason: str, names: Iterable[str]) -> list[str]:
        unique = UUID(int=0)
        beside = posixpath.basename(self.path_beside(partition, unique, reason))
        prefix, suffix = beside.split(unique.hex)
        return [
            f"{self.path}/{name}"
            for name in sorted(names)
            if len(name) == len(beside) and name.startswith(prefix) and name.endswith(suffix)
        ]

    def put_away_of(self, partition: TopicPartition) -> list[str]:
        """What was this partition's, and was deleted or set aside, but for strays; as of any look at what is
        here."""
        reasons = {name.rpartition("-")[2] for name in self._put_away_names}
        return [path for reason in reasons for path in self._beside(partition, reason, self._put_away_names)]

    def take_back(self, path: str, partition: TopicPartition) -> None:
        """What was set aside is the partition's again; durable. Raises OSError."""
        self._filesystem.rename(path, self.partition_path(partition))
        self._set_aside_names.discard(posixpath.basename(path))
        self._filesystem.sync_directory(self.path)

    def path_beside(self, partition: TopicPartition, unique: UUID, reason: str) -> str:
        """A name that no partition has, for a directory that has to do with this one."""
        suffix = f".{unique.hex}-{reason}"
        return f"{self.path}/{str(partition)[: _MAX_NAME_BYTES - len(suffix)]}{suffix}"

    def staging_path(self, unique: UUID) -> str:
        """Of a directory for what an import makes before it is the partitions'."""
        path = f"{self.path}/import.{unique.hex}-staging"
        assert _is_staging(posixpath.basename(path))
        return path

    def staged(self) -> list[str]:
        """Paths of those directories, in order. Raises OSError."""
        return [f"{self.path}/{name}" for name in self._directory_names() if _is_staging(name)]

    def futures(self) -> list[str]:
        """Paths of copies of partitions that were to move here. Raises OSError."""
        return self._named_for(FUTURE_REASON)

    def _named_for(self, reason: str) -> list[str]:
        """What `path_beside` has named for that. What only looks like it is somebody else's, and told."""
        paths: list[str] = []
        for name in self._directory_names():
            if is_name_beside(name, reason):
                paths.append(f"{self.path}/{name}")
            elif name.endswith(f"-{reason}") and "." in name:
                logger.warning(
                    "a directory is named almost as those that a server removes, and is left alone; move it"
                    " away, path=`%s`",
                    f"{self.path}/{name}",
                )
        return paths

    def _directory_names(self) -> list[str]:
        names = self._filesystem.list_directory(self.path)
        return [name for name in names if self._filesystem.is_directory(f"{self.path}/{name}")]

    def _write_properties(self, properties: dict[str, str]) -> None:
        text = format_meta_properties(properties)
        replace_file(self._filesystem, f"{self.path}/{META_FILE}", text.encode())
        self._properties = properties


def read_properties(filesystem: FileSystem, path: str) -> dict[str, str]:
    """The properties of a data directory, none where it is new. Raises DataDirectoryError where they are
    damaged, OSError."""
    try:
        properties = parse_meta_properties(filesystem.read_file(f"{path}/{META_FILE}").decode())
        parse_siblings(properties.get(SIBLINGS, ""))
        return properties
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, CorruptRecordError):
        raise DataDirectoryError(
            f"{META_FILE} is damaged or of another version; restore it, or use another directory",
            path=path,
        ) from None


def sibling_paths(filesystem: FileSystem, path: str) -> list[str]:
    """The log directories that were used together with this one, those that are where they were last. Raises
    DataDirectoryError where properties are damaged, OSError."""
    siblings = parse_siblings(read_properties(filesystem, path).get(SIBLINGS, ""))
    return [
        last_path
        for directory_id, last_path in siblings.items()
        if read_properties(filesystem, last_path).get(DIRECTORY_ID) == directory_id
    ]


def _make_durable_directory(filesystem: FileSystem, path: str) -> None:
    """Create the directory where it is missing, so that a crash does not take it away with all that is in
    it."""
    unsynced = [posixpath.dirname(path)]
    while not filesystem.exists(unsynced[-1]):
        unsynced.append(posixpath.dirname(unsynced[-1]))
    filesystem.make_directories(path)
    # The parent is synced even if the directory was there: a process that was killed may have just made it.
    for parent in reversed(unsynced):
        filesystem.sync_directory(parent)


def is_name_beside(name: str, reason: str) -> bool:
    """Whether the name is one that `path_beside` makes for that reason."""
    match = _NAME_BESIDE.fullmatch(name)
    if match is None or match[2] != reason:
        return False
    # The partition's number is missing only where there was no room for it.
    return parse_partition_name(match[1]) is not None or len(name) == _MAX_NAME_BYTES


def _is_staging(name: str) -> bool:
    return _STAGING.fullmatch(name) is not None


def _is_set_aside(name: str) -> bool:
    """For a human to look at: with what an import has staged, who has this lock was not that import."""
    if _is_staging(name):
        return True
    match = _NAME_BESIDE.fullmatch(name)
    return match is not None and match[2] not in _REMOVED_REASONS and is_name_beside(name, match[2])


def _is_put_away(name: str) -> bool:
    """It was deleted, or set aside by whoever had it open."""
    match = _NAME_BESIDE.fullmatch(name)
    return match is not None and match[2] not in (FUTURE_REASON, STRAY_REASON)


def _parse_marker(data: bytes) -> frozenset[str] | None:
    """The names in it; None where it is damaged: nobody knows then what was closed. A broker's is empty."""
    if not data:
        return frozenset()
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            return None
        left = cast("dict[str, object]", document).get("left", [])
        return frozenset(map(str, cast("list[object]", left))) if isinstance(left, list) else None
    except (ValueError, RecursionError):
        # The latter where it is nested too deep.
        return None


def parse_partition_name(name: str) -> TopicPartition | None:
    """The partition whose directory has that name; None where it is another kind of directory."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit() or str(int(number)) != number:
        return None
    return TopicPartition(topic, int(number)) if int(number) <= _MAX_PARTITION else None
