"""A log directory that this process has locked: its identity, its manifest, its marker and the names in it.

Besides one directory for each partition it has::

    .lock                               held by the process that has the directory open
    manifest                            which partitions it has, see `manifest`
    meta.properties                     directory.id, and store.id of the store that its logs are tiered to
    recovery-point-offset-checkpoint    see `checkpoint`
    log-start-offset-checkpoint         for Kafka's tools; the manifest decides
    cleaner-offset-checkpoint           see `cleaner_checkpoints`
    .spare-deletion, .spare-stop        space that is kept aside, see `spare_space`
    .probe                              a question whether the disk answers, see `silent_disks`
    .kafka_cleanshutdown                the last process closed every log; removed before any change
    TOPIC-N.UUID-delete                 a deleted partition, to be removed if the manifest lists it
    TOPIC-N.UUID-stray                  set aside: no topic has its id; `fenced` and others are possible too
    import.UUID-staging                 copies that an import makes, see `import_staging`; later, that it left
    claims-NNNN                         claims of this server on the shard of that number
    seen-heads                          newest heads in the store that this server has seen
    scratch                             data of uploads and compactions that do not fit into memory
    cache                               ranges of objects that were read; may be deleted at any time

A partition's directory has, beside the files of the log::

    partition.metadata                  the topic's id, for Kafka's tools; the manifest decides

**A manifest that is missing or damaged** beside partitions takes the directory offline: without it a start
would show deleted records, or an older copy of a partition. An operator who accepts that stops the server,
writes `rebuild` into the file, and starts the server. The start then makes a manifest from the names of the
directories, the `partition.metadata` in each, and Kafka's checkpoint of log starts. Lost are the cordon, the
sibling directories, the marks of moves, the epochs of imports, and the log starts of strays: no other file
has them. Deleted directories that were not removed yet stay, unlisted. A log manager of a broker's files
makes its manifest in the same way, without the strays.

**The directory.id** is that of `meta.properties`. The manifest repeats it, so that a manifest of another
directory is refused; the directory is offline until its own manifest is put back.
"""

from __future__ import annotations

import logging
import posixpath
import re
from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import CorruptRecordError, DataDirectoryError, DataDirectoryInUseError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import LOG_START_OFFSET_FILE, OffsetCheckpoint
from stratalog.manager.directories.manifest import (
    MANIFEST_FILE,
    AsideEntry,
    Manifest,
    ManifestFile,
    PartitionEntry,
    parse_manifest,
    parse_partition_name,
    read_manifest,
)
from stratalog.manager.directories.meta_properties import (
    DIRECTORY_ID,
    META_FILE,
    META_VERSION,
    STORE_ID,
    VERSION,
    format_meta_properties,
    parse_meta_properties,
)
from stratalog.manager.directories.partition_metadata import read_partition_metadata

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
DELETE_REASON = "delete"
STRAY_REASON = "stray"
REBUILD = b"rebuild"
"""An operator writes this into a manifest to have it rebuilt."""
_LOST_BY_REBUILD = "the cordon, the other log directories, the marks of moves and the epochs of imports"
# Only a broker writes this property.
_CLUSTER_ID = "cluster.id"
# The longest name that all usual file systems take.
_MAX_NAME_BYTES = 255
# Names that `path_beside` makes, and Kafka.
_NAME_BESIDE = re.compile(r"([A-Za-z0-9._-]+)\.[0-9a-f]{32}-([a-z]+)")
# Not the name of a partition, which ends with a number. Only imports use such names, so they may be removed.
_STAGING = re.compile(r"import\.[0-9a-f]{32}-staging")


class ManifestError(DataDirectoryError):
    """The log directory's manifest cannot be used, so the directory is offline. Callers outside this package
    see the base class."""


class LockedDirectory:
    """One log directory. Guarded by DirectorySet.guard, or by the thread that opens it; `manifest` is
    thread-safe."""

    def __init__(
        self, filesystem: FileSystem, path: str, directory_id: UUID, *, written_by_broker: bool = False
    ) -> None:
        """Create the directory if it is missing, and lock it. `directory_id`: id of a new one.
        `written_by_broker`: if there is no manifest, make one from the partitions in the directory.

        Raises DataDirectoryInUseError, DataDirectoryError (ManifestError), OSError.
        """
        self.path = path
        self._filesystem = filesystem
        _make_durable_directory(filesystem, path)
        lock = filesystem.try_lock(f"{path}/{LOCK_FILE}")
        if lock is None:
            raise DataDirectoryInUseError(
                "another process has this log directory open; stop it or use another directory", path=path
            )
        self._lock = lock
        self.set_aside_count = 0
        """Number of directories that `set_aside` found, with later renames."""
        try:
            self._properties = read_properties(filesystem, path)
            self.was_bound = STORE_ID in self._properties
            """The directory belonged to a store before this process opened it."""
            self.manifest = self._open_manifest(str(directory_id), written_by_broker=written_by_broker)
            """The partitions of the directory."""
            if not self._properties:
                found_id = self.manifest.now.directory_id
                self._write_properties({VERSION: META_VERSION, DIRECTORY_ID: found_id})
            self.set_aside()
        except BaseException:
            lock.release()
            raise

    def _open_manifest(self, new_id: str, *, written_by_broker: bool) -> ManifestFile:
        """Open the manifest, or write a new one. Raises ManifestError, DataDirectoryError if meta.properties
        is lost, OSError."""
        directory_id = self._properties.get(DIRECTORY_ID, new_id)
        is_ours = bool(self._properties) and _CLUSTER_ID not in self._properties
        try:
            data = self._filesystem.read_file(f"{self.path}/{MANIFEST_FILE}")
        except FileNotFoundError:
            if not written_by_broker and (is_ours or (not self._properties and self.partition_names())):
                raise self._manifest_error("it is missing") from None
            partitions = self._found_partitions() if written_by_broker else {}
            # Before meta.properties: a directory of ours that lacks a manifest has lost it.
            return self._made(Manifest(directory_id, partitions=partitions))
        # If the last process was killed its name may not be durable, and later steps rely on its contents.
        self._filesystem.sync_directory(self.path)
        if data.strip() == REBUILD:
            file = self._made(
                Manifest(directory_id, partitions=self._found_partitions(), aside=self._found_strays())
            )
            logger.warning(
                "rebuilt the manifest from the partitions' files, because it contained `%s`; check cordons"
                " and moves: lost are %s, path=`%s` partition_count=`%d`",
                REBUILD.decode(),
                _LOST_BY_REBUILD,
                f"{self.path}/{MANIFEST_FILE}",
                len(file.now.partitions),
            )
            return file
        try:
            manifest = parse_manifest(data)
        except CorruptRecordError as failure:
            raise self._manifest_error(str(failure)) from failure
        if not self._properties and manifest.partitions:
            raise DataDirectoryError(
                f"{META_FILE} is lost; write it again, with version=1, this directory.id and the store.id of"
                " the server's other log directories",
                path=self.path,
                directory_id=manifest.directory_id,
            )
        if self._properties and manifest.directory_id != directory_id:
            raise ManifestError(
                f"the manifest is that of another log directory; put back the manifest of the directory.id in"
                f" this directory's {META_FILE}, and start the server again",
                path=f"{self.path}/{MANIFEST_FILE}",
                directory_id=directory_id,
                found_id=manifest.directory_id,
            )
        return ManifestFile(self._filesystem, self.path, manifest)

    def _manifest_error(self, reason: str) -> ManifestError:
        return ManifestError(
            "a log directory's manifest, which says what is in it, cannot be used; stop the server, restore"
            f" the manifest from a backup or write `{REBUILD.decode()}` into it, and start the server:"
            f" `{REBUILD.decode()}` makes a new one from the partitions' files; records that were deleted may"
            f" be back, and {_LOST_BY_REBUILD} are lost",
            path=f"{self.path}/{MANIFEST_FILE}",
            reason=reason,
        )

    def _made(self, manifest: Manifest) -> ManifestFile:
        file = ManifestFile(self._filesystem, self.path, manifest)
        file.create()
        return file

    def _found_partitions(self) -> dict[TopicPartition, PartitionEntry]:
        """Entries made from the partitions' directories, without those that have no readable topic id.
        Raises OSError."""
        starts = OffsetCheckpoint(self._filesystem, f"{self.path}/{LOG_START_OFFSET_FILE}").read()
        found = {
            partition: self._found_topic_id(str(partition)) for partition in sorted(self.partition_names())
        }
        return {
            partition: PartitionEntry(topic_id, log_start_offset=starts.get(partition, 0))
            for partition, topic_id in found.items()
            if topic_id is not None
        }

    def _found_strays(self) -> dict[str, AsideEntry]:
        """Entries made from the directories of strays, so that a topic gets its log back. Left out are those
        with no readable topic id, or with a name that was cut. Raises OSError."""
        found: dict[str, AsideEntry] = {}
        for name in sorted(self._directory_names()):
            match = _NAME_BESIDE.fullmatch(name)
            partition = parse_partition_name(match[1]) if match and match[2] == STRAY_REASON else None
            topic_id = self._found_topic_id(name) if partition else None
            if partition and topic_id:
                found[name] = AsideEntry(partition, topic_id, log_start_offset=0, recovery_point=0)
        return found

    def _found_topic_id(self, name: str) -> UUID | None:
        try:
            return read_partition_metadata(self._filesystem, f"{self.path}/{name}")
        except DataDirectoryError as failure:
            logger.warning("a directory is left out of the manifest: %s", failure)
            return None

    def release(self) -> None:
        self._lock.release()

    @property
    def directory_id(self) -> str:
        """The id of the directory, by meta.properties: unique, unless the directory was copied."""
        return self._properties[DIRECTORY_ID]

    @property
    def bound_store_id(self) -> str | None:
        """The store that the directory is tied to."""
        return self._properties.get(STORE_ID)

    def bind_store(self, store_id: str) -> None:
        """Tie the directory to a store for good. Raises DataDirectoryError if it is tied to another one,
        OSError."""
        bound_id = self.bound_store_id
        if bound_id is not None and bound_id != store_id:
            raise DataDirectoryError(
                "this log directory belongs to another object store; use that store, or another directory",
                path=self.path,
                store_id=bound_id,
                wanted_store_id=store_id,
            )
        if bound_id is None:
            self._write_properties({**self._properties, STORE_ID: store_id})

    def take_clean_shutdown(self) -> bool:
        """Remove the marker; returns whether the last process closed every log. Raises OSError."""
        path = f"{self.path}/{CLEAN_SHUTDOWN_FILE}"
        if not self._filesystem.exists(path):
            return False
        self._filesystem.unlink(path)
        self._filesystem.sync_directory(self.path)
        return True

    def mark_clean_shutdown(self) -> None:
        """Write the marker: every log is closed and durable. Raises OSError."""
        replace_file(self._filesystem, f"{self.path}/{CLEAN_SHUTDOWN_FILE}", b'{"version":0}')

    def partition_path(self, partition: TopicPartition) -> str:
        return f"{self.path}/{partition}"

    def partition_names(self) -> set[TopicPartition]:
        """Partitions after which directories here are named, in the manifest or not. Raises OSError."""
        found = map(parse_partition_name, self._directory_names())
        return {partition for partition in found if partition is not None}

    def leftovers(self) -> list[str]:
        """Paths of deleted partitions that were not removed yet, in order. Warns about directories that have
        such a name, and that the manifest does not list. Raises OSError."""
        paths: list[str] = []
        for name in self._directory_names():
            if reason_of(name) != DELETE_REASON:
                continue
            path = f"{self.path}/{name}"
            if name in self.manifest.now.aside:
                paths.append(path)
            else:
                logger.warning(
                    "a directory is named as those that a server removes, and is left alone, because the"
                    " manifest does not list it; move it away, or remove it, path=`%s`",
                    path,
                )
        return paths

    def rename(self, source: str, target: str) -> None:
        """Rename a directory in this one. Durable when it returns; may be repeated after a failure. Raises
        OSError."""
        self.rename_unsynced(source, target)
        self.sync()

    def rename_unsynced(self, source: str, target: str) -> None:
        """Rename a directory as `rename` does; durable after `sync`. Raises OSError."""
        if self._filesystem.exists(source):
            self._filesystem.rename(source, target)
            self.set_aside_count += self._is_set_aside(posixpath.basename(target))
            self.set_aside_count -= self._is_set_aside(posixpath.basename(source))

    def sync(self) -> None:
        """Make all renames durable. Raises OSError."""
        self._filesystem.sync_directory(self.path)

    def set_aside(self) -> list[str]:
        """Paths of directories for an operator to look at, in order: those that were set aside, those that
        have such a name without being listed, and copies that an import has left. Raises OSError."""
        names = sorted(filter(self._is_set_aside, self._directory_names()))
        self.set_aside_count = len(names)
        return [f"{self.path}/{name}" for name in names]

    def _is_set_aside(self, name: str) -> bool:
        reason, is_listed = reason_of(name), name in self.manifest.now.aside
        return _is_staging(name) or (reason is not None and not (reason == DELETE_REASON and is_listed))

    def path_beside(self, partition: TopicPartition, unique: UUID, reason: str) -> str:
        """A name for the partition's directory that no partition has."""
        suffix = f".{unique.hex}-{reason}"
        return f"{self.path}/{str(partition)[: _MAX_NAME_BYTES - len(suffix)]}{suffix}"

    def staging_path(self, unique: UUID) -> str:
        """The path of a directory for the copies of an import."""
        path = f"{self.path}/import.{unique.hex}-staging"
        assert _is_staging(posixpath.basename(path))
        return path

    def staged(self) -> list[str]:
        """Paths of the directories with copies of imports, in order. Raises OSError."""
        return [f"{self.path}/{name}" for name in self._directory_names() if _is_staging(name)]

    def _directory_names(self) -> list[str]:
        names = self._filesystem.list_directory(self.path)
        return [name for name in names if self._filesystem.is_directory(f"{self.path}/{name}")]

    def _write_properties(self, properties: dict[str, str]) -> None:
        text = format_meta_properties(properties)
        replace_file(self._filesystem, f"{self.path}/{META_FILE}", text.encode())
        self._properties = properties


def read_properties(filesystem: FileSystem, path: str) -> dict[str, str]:
    """The properties of a log directory, none if it is new. Raises DataDirectoryError if they are damaged,
    OSError."""
    try:
        return parse_meta_properties(filesystem.read_file(f"{path}/{META_FILE}").decode())
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, CorruptRecordError):
        raise DataDirectoryError(
            f"{META_FILE} is damaged or of another version; restore it, or use another directory",
            path=path,
        ) from None


def sibling_paths(filesystem: FileSystem, path: str) -> list[str]:
    """Paths of the log directories that were used with this one and are still at their last paths. Raises
    DataDirectoryError if a file is damaged, OSError."""
    try:
        siblings = read_manifest(filesystem, path).siblings
    except FileNotFoundError:
        return []
    return [
        last_path
        for directory_id, last_path in siblings.items()
        if read_properties(filesystem, last_path).get(DIRECTORY_ID) == directory_id
    ]


def _make_durable_directory(filesystem: FileSystem, path: str) -> None:
    """Create the directory if it is missing. Its name is durable when it returns."""
    unsynced = [posixpath.dirname(path)]
    while not filesystem.exists(unsynced[-1]):
        unsynced.append(posixpath.dirname(unsynced[-1]))
    filesystem.make_directories(path)
    # A process that was killed may have just made the directory, so its parent is synced in any case.
    for parent in reversed(unsynced):
        filesystem.sync_directory(parent)


def reason_of(name: str) -> str | None:
    """The reason of a name that `path_beside` makes; None for another name."""
    match = _NAME_BESIDE.fullmatch(name)
    # The partition's number is missing only where there was no room for it.
    if match and (parse_partition_name(match[1]) is not None or len(name) == _MAX_NAME_BYTES):
        return match[2]
    return None


def _is_staging(name: str) -> bool:
    return _STAGING.fullmatch(name) is not None
