"""`manifest`: lists the partitions of a log directory, its cordon, and the other directories of the server.

One file in each log directory. It decides; names of directories and Kafka's files follow it::

    1c291ca3                                        CRC-32C of the rest, eight hexadecimal digits
    manifest 1                                      the version
    directory 66OiJamjSDoWdGb695vWvA                directory.id of meta.properties, which decides
    cordoned yes                                    no new partitions; absent where it was not altered
    sibling hT0dKZTUQYWRW1R1pmXqAA /disk-b/logs     another directory of the server, and its last path
    partition orders-0 AAAAAAAAAAAAAAAAAAAABw live 105823 2 - - 1700086400000
    aside orders-1.UUID-stray orders-1 AAAAAAAAAAAAAAAAAAAACQ 0 17 -

Fields are separated by a space; ids of directories, paths and names are percent-encoded.

A `partition` line names the partition, its topic, its state, its log start, its move number, the directory
that it is moving to, the epoch under which an import took it over, and the time of the cleaner's next clean
for kept tombstones (`-`: none). The states::

    live        the partition's log
    incoming    a move from another directory was accepted, and its copy may be on its way; `log_move` says
                how it becomes live
    stray       no topic wants it, and it keeps its name; see `stray_partitions`

`cordoned` is the part of `cordoned.log.dirs` that concerns this directory, if the key was altered at run
time: `yes` or `no`. Without it the configuration of the start decides.

Of two live entries of one partition the one with the higher move number is the partition.

An `aside` line names a directory that has lost its partition's name, or is about to: the partition and topic
that it was, its log start, its recovery point and its import epoch. The end of its name says why: `delete`,
`stray`, `fenced`. The line is written before the rename, so a start finishes a rename that a crash has cut
off. It stays while the directory is there. A start removes the deleted directories that are listed, and no
others.

A change replaces the whole file, so it happens or does not. A directory that serves partitions always has the
file. The log start is Kafka's too (`log-start-offset-checkpoint`), but for Kafka's tools: this file decides.
For a tiered partition with a commit the shard's metadata decide, and the start in this file is a copy. It is
ahead only of a store that does not answer: it counts then, too, and the next contact commits it.
"""

from __future__ import annotations

import enum
import re
import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

from crc32c import crc32c

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.partition_metadata import format_topic_id, parse_topic_id

MANIFEST_FILE = "manifest"
MANIFEST_VERSION = 1
_CRC_DIGITS = 8
_TITLE = f"manifest {MANIFEST_VERSION}"
# The number of a partition, here and in Kafka.
_MAX_PARTITION = 2**31 - 1
# Names of files are bytes; those that are not UTF-8 have their own stand-ins in a text.
_ANY_NAME = "surrogateescape"
_NONE = "-"
_YES_OR_NO = {True: "yes", False: "no"}
_OFFSET = re.compile("0|[1-9][0-9]{0,18}")

Key = TypeVar("Key")
Entry = TypeVar("Entry")


class PartitionState(enum.Enum):
    """The states of the module's description."""

    LIVE = "live"
    INCOMING = "incoming"
    STRAY = "stray"


class PartitionEntry(NamedTuple):
    """A directory that has a partition's name."""

    topic_id: UUID
    state: PartitionState = PartitionState.LIVE
    log_start_offset: int = 0
    move_number: int = 0
    moving_to: str = ""
    """directory.id of the target of a move that may be done; empty where there is none."""
    import_epoch: int | None = None
    """Epoch under which an import took the partition over from a broker; None if none did. It stays."""
    horizon_ms: int | None = None
    """The delete horizon of the log below the cleaner's offset, see `CleanerCheckpoints`. None if unknown."""


class AsideEntry(NamedTuple):
    """A directory that has lost a partition's name."""

    partition: TopicPartition
    topic_id: UUID
    log_start_offset: int
    recovery_point: int
    import_epoch: int | None = None


class Manifest(NamedTuple):
    """The contents of a manifest. Immutable, hence thread-safe."""

    directory_id: str
    siblings: Mapping[str, str] = {}
    """Last paths of the other directories, by their ids."""
    partitions: Mapping[TopicPartition, PartitionEntry] = {}
    aside: Mapping[str, AsideEntry] = {}
    """By the directory's name."""
    cordoned: bool | None = None
    """Whether the directory takes no new partitions; None: as the configuration of the start says."""


def _sealed(manifest: Manifest, partition_lines: Iterable[str], aside_lines: Iterable[str]) -> bytes:
    text = "\n".join(
        [
            _TITLE,
            f"directory {_quoted(manifest.directory_id)}",
            *([] if manifest.cordoned is None else [f"cordoned {_YES_OR_NO[manifest.cordoned]}"]),
            *(f"sibling {_quoted(key)} {_quoted(path)}" for key, path in manifest.siblings.items()),
            *partition_lines,
            *aside_lines,
            "",
        ]
    ).encode()
    return f"{crc32c(text):0{_CRC_DIGITS}x}\n".encode() + text


def _partition_line(partition: TopicPartition, entry: PartitionEntry) -> str:
    return (
        f"partition {_quoted(str(partition))} {format_topic_id(entry.topic_id)} {entry.state.value}"
        f" {entry.log_start_offset} {entry.move_number} {_quoted(entry.moving_to) or _NONE}"
        f" {_text_or_none(entry.import_epoch)} {_text_or_none(entry.horizon_ms)}"
    )


def _aside_line(name: str, entry: AsideEntry) -> str:
    return (
        f"aside {_quoted(name)} {_quoted(str(entry.partition))} {format_topic_id(entry.topic_id)}"
        f" {entry.log_start_offset} {entry.recovery_point} {_text_or_none(entry.import_epoch)}"
    )


def _text_or_none(number: int | None) -> str:
    return _NONE if number is None else str(number)


def parse_manifest(data: bytes) -> Manifest:
    """Parse a manifest. Raises CorruptRecordError where the data are damaged or of another version."""
    checksum, _, text = data.partition(b"\n")
    if checksum != f"{crc32c(text):0{_CRC_DIGITS}x}".encode():
        raise CorruptRecordError("the manifest does not match its checksum")
    title, *lines = text.decode("ascii", errors="replace").splitlines()
    if title != _TITLE:
        raise CorruptRecordError(
            "the manifest is of another version; run the version that wrote it", title=title
        )
    try:
        return _parsed(lines)
    except ValueError as failure:
        raise CorruptRecordError("the manifest is damaged", reason=str(failure)) from failure


def read_manifest(filesystem: FileSystem, directory: str) -> Manifest:
    """The manifest of that log directory. Raises DataDirectoryError where it is damaged or of another
    version, OSError."""
    path = f"{directory}/{MANIFEST_FILE}"
    try:
        return parse_manifest(filesystem.read_file(path))
    except CorruptRecordError as failure:
        raise DataDirectoryError(
            "a log directory's manifest is damaged or of another version; start the server, whose log says"
            " how to go on",
            path=path,
            reason=str(failure),
        ) from failure


def _parsed(lines: Iterable[str]) -> Manifest:
    """Parse the lines of a manifest. Raises ValueError."""
    directory_ids: list[str] = []
    siblings: dict[str, str] = {}
    partitions: dict[TopicPartition, PartitionEntry] = {}
    aside: dict[str, AsideEntry] = {}
    cordoned: bool | None = None
    for line in lines:
        match line.split(" "):
            case ["directory", directory_id]:
                directory_ids.append(_unquoted(directory_id))
            case ["cordoned", "yes" | "no" as answer]:
                cordoned = answer == "yes"
            case ["sibling", directory_id, path]:
                siblings[_unquoted(directory_id)] = _unquoted(path)
            case ["partition", name, topic_id, state, start, number, moving_to, epoch, horizon]:
                partitions[_partition(name)] = PartitionEntry(
                    parse_topic_id(topic_id),
                    state=PartitionState(state),
                    log_start_offset=_offset(start),
                    move_number=_offset(number),
                    moving_to="" if moving_to == _NONE else _unquoted(moving_to),
                    import_epoch=_number_or_none(epoch),
                    horizon_ms=_number_or_none(horizon),
                )
            case ["aside", name, partition, topic_id, start, recovery_point, epoch]:
                aside[_unquoted(name)] = AsideEntry(
                    _partition(partition),
                    parse_topic_id(topic_id),
                    _offset(start),
                    _offset(recovery_point),
                    _number_or_none(epoch),
                )
            case _:
                raise ValueError(f"unknown line {line}")
    [directory_id] = directory_ids
    return Manifest(directory_id, siblings, partitions, aside, cordoned)


def parse_partition_name(name: str) -> TopicPartition | None:
    """The partition whose directory has that name; None where it is another kind of directory."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit() or str(int(number)) != number:
        return None
    return TopicPartition(topic, int(number)) if int(number) <= _MAX_PARTITION else None


def _partition(text: str) -> TopicPartition:
    partition = parse_partition_name(_unquoted(text))
    if partition is None:
        raise ValueError(f"not a partition's name: {text}")
    return partition


def _offset(text: str) -> int:
    if _OFFSET.fullmatch(text) is None:
        raise ValueError(f"not an offset: {text}")
    return int(text)


def _number_or_none(text: str) -> int | None:
    return None if text == _NONE else _offset(text)


def _quoted(text: str) -> str:
    return quote(text, errors=_ANY_NAME)


def _unquoted(text: str) -> str:
    found = unquote(text, errors=_ANY_NAME)
    if not found:
        raise ValueError("an empty name")
    return found


class ManifestFile:
    """The manifest of one log directory; the `HorizonStore` of its cleaner. Thread-safe. Lock order: a log's
    locks before this class's."""

    def __init__(self, filesystem: FileSystem, directory: str, manifest: Manifest) -> None:
        """`manifest`: the file's contents, or those that `create` writes."""
        self._filesystem = filesystem
        self._path = f"{directory}/{MANIFEST_FILE}"
        self.lock = threading.RLock()
        """Held for each change. A caller that derives an entry from the former one takes it first."""
        self._manifest = manifest
        # A line is formatted only when its entry changes: there may be many thousands.
        self._lines = {key: _partition_line(key, entry) for key, entry in manifest.partitions.items()}
        self._aside_lines = {name: _aside_line(name, entry) for name, entry in manifest.aside.items()}
        # The file may have other contents than `now`: an update has failed after it began to rename, or an
        # entry was forgotten.
        self._is_outdated = False

    @property
    def now(self) -> Manifest:
        """The manifest as of the last change that succeeded."""
        return self._manifest

    def entry(self, partition: TopicPartition) -> PartitionEntry | None:
        return self._manifest.partitions.get(partition)

    def create(self) -> None:
        """Write the file for the first time. Durable when it returns. Raises OSError."""
        self._is_outdated = True
        self.update()

    def update(
        self,
        *,
        siblings: Mapping[str, str] | None = None,
        partitions: Mapping[TopicPartition, PartitionEntry | None] | None = None,
        aside: Mapping[str, AsideEntry | None] | None = None,
    ) -> None:
        """Change these entries, all or none of them; None removes one. Durable when it returns. Nothing is
        written if nothing changes. Raises OSError: `now` stays as it was, and the next update writes the
        file again. `now` has the very objects that were given last, so a caller that noted an entry can tell
        whether another one has noted an equal one since."""
        with self.lock:
            now = self._manifest
            changed = now._replace(
                siblings=now.siblings if siblings is None else dict(siblings),
                partitions=_changed(now.partitions, partitions or {}),
                aside=_changed(now.aside, aside or {}),
            )
            changed_lines = {
                key: None if entry is None else _partition_line(key, entry)
                for key, entry in (partitions or {}).items()
            }
            changed_aside_lines = {
                name: None if entry is None else _aside_line(name, entry)
                for name, entry in (aside or {}).items()
            }
            self._write(
                changed,
                _changed(self._lines, changed_lines),
                _changed(self._aside_lines, changed_aside_lines),
            )

    def set_cordoned(self, cordoned: bool | None) -> None:
        """Set that field; otherwise as `update`."""
        with self.lock:
            self._write(self._manifest._replace(cordoned=cordoned), self._lines, self._aside_lines)

    def _write(
        self, changed: Manifest, lines: dict[TopicPartition, str], aside_lines: dict[str, str]
    ) -> None:
        if changed != self._manifest or self._is_outdated:
            data = _sealed(changed, lines.values(), aside_lines.values())
            replace_file(self._filesystem, self._path, data, before_rename=self._note_outdated)
            self._is_outdated = False
        self._manifest, self._lines, self._aside_lines = changed, lines, aside_lines

    def _note_outdated(self) -> None:
        self._is_outdated = True

    def change(self, partition: TopicPartition, **fields: object) -> None:
        """Change fields of the partition's entry, if it has one; as `update`."""
        with self.lock:
            entry = self.entry(partition)
            if entry is None:
                return
            changed = entry._replace(**fields)  # type: ignore[arg-type]  # the fields are those of the entry
            # Mostly nothing changes, and an update compares all entries.
            if changed != entry or self._is_outdated:
                self.update(partitions={partition: changed})

    def horizon_of(self, partition: TopicPartition) -> int | None:
        """The time of the log's next clean for kept tombstones; None if it is unknown."""
        entry = self.entry(partition)
        return None if entry is None else entry.horizon_ms

    def set_horizon(self, partition: TopicPartition, horizon_ms: int | None) -> None:
        """Set that time, if the partition is listed; as `update`."""
        self.change(partition, horizon_ms=horizon_ms)

    def forget_aside(self, name: str) -> None:
        """Drop the entry, which the next update leaves out: the directory is gone."""
        with self.lock:
            if name in self._manifest.aside:
                self._manifest = self._manifest._replace(aside=_changed(self._manifest.aside, {name: None}))
                del self._aside_lines[name]
                self._is_outdated = True


def _changed(now: Mapping[Key, Entry], changes: Mapping[Key, Entry | None]) -> dict[Key, Entry]:
    changed = dict(now)
    for key, entry in changes.items():
        if entry is None:
            changed.pop(key, None)
        else:
            changed[key] = entry
    return changed
