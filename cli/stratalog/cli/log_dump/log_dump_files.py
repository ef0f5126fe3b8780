"""The files of a log, recognised by their names.

Segments, their indexes and producer snapshots are named after an offset, and may bear the suffix of a step
that a crash has interrupted. The others have fixed names, in a partition's directory or in the data
directory above it.
"""

from __future__ import annotations

import enum
import os
import re
from typing import NamedTuple

from stratalog.base.filesystem import FileSystem
from stratalog.cleaner.cleaner_checkpoints import CLEANER_HORIZON_FILE, CLEANER_OFFSET_FILE
from stratalog.log.checkpoint import LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE
from stratalog.log.producers.producer_snapshot import SNAPSHOT_SUFFIX
from stratalog.manager.directories.meta_properties import META_FILE
from stratalog.manager.directories.start_checkpoint import LOG_START_COPY_FILE
from stratalog.manager.partitions.import_mark import IMPORT_MARK_FILE
from stratalog.manager.partitions.partition_metadata import PARTITION_METADATA_FILE
from stratalog.remote.metadata.ownership.claims import is_claims_name
from stratalog.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEAL_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    parse_name_offset,
    parse_segment_name,
)

# Kafka's own, which this project does not write.
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
QUORUM_STATE_FILE = "quorum-state"

_OFFSET_NAME = re.compile(r"([0-9]{20})(\.[a-z]+)(\.deleted|\.swap|\.cleaned)?", re.ASCII)
# Of Kafka's metadata log: what a cluster begins with; and where a snapshot ends, and in which epoch.
_BOOTSTRAP_SNAPSHOT_NAME = "bootstrap.checkpoint"
_METADATA_SNAPSHOT_NAME = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint(\.part|\.deleted)?", re.ASCII)


class FileKind(enum.Enum):
    """What a file holds, in words. In the order in which a directory is dumped."""

    SEGMENT = "segment"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTION_INDEX = "transaction index"
    SEAL = "seal of a segment"
    PRODUCER_SNAPSHOT = "producer snapshot"
    METADATA_SNAPSHOT = "metadata snapshot"
    LEADER_EPOCHS = "leader epochs"
    PARTITION_METADATA = "partition metadata"
    IMPORT_MARK = "mark of an import"
    QUORUM_STATE = "quorum state"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_COPY = "copy of a checkpoint"
    HORIZON_CHECKPOINT = "checkpoint of times"
    META_PROPERTIES = "properties of a data directory"
    CLAIMS = "claims of a shard"

    @property
    def has_batches(self) -> bool:
        """Is one batch after the other."""
        return self in {FileKind.SEGMENT, FileKind.METADATA_SNAPSHOT}

    @property
    def is_index(self) -> bool:
        """Has entries that say something about the segment beside it."""
        return self in {FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX}


_KINDS_BY_SUFFIX = {
    LOG_SUFFIX: FileKind.SEGMENT,
    OFFSET_INDEX_SUFFIX: FileKind.OFFSET_INDEX,
    TIME_INDEX_SUFFIX: FileKind.TIME_INDEX,
    TRANSACTION_INDEX_SUFFIX: FileKind.TRANSACTION_INDEX,
    SEAL_SUFFIX: FileKind.SEAL,
    SNAPSHOT_SUFFIX: FileKind.PRODUCER_SNAPSHOT,
}
_KINDS_BY_NAME = {
    LEADER_EPOCH_FILE: FileKind.LEADER_EPOCHS,
    PARTITION_METADATA_FILE: FileKind.PARTITION_METADATA,
    IMPORT_MARK_FILE: FileKind.IMPORT_MARK,
    QUORUM_STATE_FILE: FileKind.QUORUM_STATE,
    RECOVERY_POINT_FILE: FileKind.CHECKPOINT,
    LOG_START_OFFSET_FILE: FileKind.CHECKPOINT,
    HIGH_WATERMARK_FILE: FileKind.CHECKPOINT,
    CLEANER_OFFSET_FILE: FileKind.CHECKPOINT,
    LOG_START_COPY_FILE: FileKind.CHECKPOINT_COPY,
    CLEANER_HORIZON_FILE: FileKind.HORIZON_CHECKPOINT,
    META_FILE: FileKind.META_PROPERTIES,
}
_RANKS = {kind: rank for rank, kind in enumerate(FileKind)}


class LogFile(NamedTuple):
    """A file of a log. `offset` is that of its name: a base offset, or a snapshot's end; None without one."""

    path: str
    kind: FileKind
    offset: int | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def name_offset(self) -> int:
        """Of a kind that is named after one."""
        assert self.offset is not None
        return self.offset

    def beside(self, suffix: str) -> str:
        """Path of another file of the same segment, in the same state."""
        match = _OFFSET_NAME.fullmatch(self.name)
        assert match is not None
        return f"{os.path.dirname(self.path)}/{match[1]}{suffix}{match[3] or ''}"


def log_file_of(path: str) -> LogFile | None:
    """What the file at `path` is; None where its name says nothing."""
    name = os.path.basename(path)
    if name in _KINDS_BY_NAME:
        return LogFile(path, _KINDS_BY_NAME[name])
    if is_claims_name(name):
        return LogFile(path, FileKind.CLAIMS)
    if name == _BOOTSTRAP_SNAPSHOT_NAME:
        return LogFile(path, FileKind.METADATA_SNAPSHOT)
    match = _METADATA_SNAPSHOT_NAME.fullmatch(name)
    kind: FileKind | None = FileKind.METADATA_SNAPSHOT
    if match is None:
        match = _OFFSET_NAME.fullmatch(name)
        kind = _KINDS_BY_SUFFIX.get(match[2]) if match else None
    offset = parse_name_offset(match[1]) if match else None
    return None if kind is None or offset is None else LogFile(path, kind, offset)


def is_segment_name(name: str) -> bool:
    """Whether a file of that name is a segment that is in use."""
    parsed = parse_segment_name(name)
    return parsed is not None and parsed[1] == LOG_SUFFIX


def log_files_in(filesystem: FileSystem, directory: str) -> list[LogFile]:
    """Those of a directory: by offset and kind, then those without an offset. Raises OSError."""
    paths = [f"{directory}/{name}" for name in filesystem.list_directory(directory)]
    found = [log_file_of(path) for path in paths if not filesystem.is_directory(path)]
    return sorted((file for file in found if file is not None), key=_place)


def _place(file: LogFile) -> tuple[bool, int, int, str]:
    return file.offset is None, file.offset or 0, _RANKS[file.kind], file.name
