"""The kinds of file that `log dump` knows, in one table: how a file is named, and which codec reads it.

A new kind is one line here and one codec. Segments, their indexes and producer snapshots are named after an
offset; the others have fixed names, in a partition's directory or in the log directory above it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from stratalog.base.filesystem import FileSystem
from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.cli.log_dump import whole_file_rows as whole
from stratalog.cli.log_dump.dump_rows import Codec, DumpItem, DumpOptions
from stratalog.cli.log_dump.dumped_file import OFFSET_NAME, DumpedFile
from stratalog.cli.log_dump.index_rows import dump_offset_index, dump_time_index, dump_transaction_index
from stratalog.cli.log_dump.segment_rows import dump_segment
from stratalog.log.checkpoint import HIGH_WATERMARK_FILE, LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE
from stratalog.log.producers.producer_snapshot import SNAPSHOT_SUFFIX
from stratalog.manager.directories.manifest import MANIFEST_FILE
from stratalog.manager.directories.meta_properties import META_FILE
from stratalog.manager.directories.partition_metadata import PARTITION_METADATA_FILE
from stratalog.remote.metadata.ownership.claims import is_claims_name
from stratalog.remote.metadata.ownership.seen_heads import SEEN_HEADS_FILE
from stratalog.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEAL_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    parse_name_offset,
)

_CLAIMS = "claims-*"


class FileKind(NamedTuple):
    """One kind of file. A directory is dumped in the order of the table."""

    title: str
    names: tuple[str, ...]
    """File names; one that begins with a dot is the suffix of a name with an offset."""
    codec: Codec


_KINDS = (
    FileKind("segment", (LOG_SUFFIX,), dump_segment),
    FileKind("offset index", (OFFSET_INDEX_SUFFIX,), dump_offset_index),
    FileKind("time index", (TIME_INDEX_SUFFIX,), dump_time_index),
    FileKind("transaction index", (TRANSACTION_INDEX_SUFFIX,), dump_transaction_index),
    FileKind("seal of a segment", (SEAL_SUFFIX,), whole.dump_seal),
    FileKind("producer snapshot", (SNAPSHOT_SUFFIX,), whole.dump_producers),
    FileKind("leader epochs", (LEADER_EPOCH_FILE,), whole.dump_leader_epochs),
    FileKind("partition metadata", (PARTITION_METADATA_FILE,), whole.dump_partition_metadata),
    FileKind(
        "checkpoint",
        (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, HIGH_WATERMARK_FILE, CLEANER_OFFSET_FILE),
        whole.dump_checkpoint,
    ),
    FileKind("manifest of a log directory", (MANIFEST_FILE,), whole.dump_manifest),
    FileKind("properties of a data directory", (META_FILE,), whole.dump_meta_properties),
    FileKind("claims of a shard", (_CLAIMS,), whole.dump_claims),
    FileKind("newest heads that were seen", (SEEN_HEADS_FILE,), whole.dump_seen_heads),
)
_RANKS = {name: rank for rank, kind in enumerate(_KINDS) for name in kind.names}


class KnownFile(NamedTuple):
    """A file and its kind."""

    file: DumpedFile
    kind: FileKind
    has_offset: bool

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def title(self) -> str:
        return self.kind.title

    @property
    def size_bytes(self) -> int:
        """The size of the file now. Raises OSError."""
        return self.file.filesystem.file_size(self.file.path)

    def items(self, options: DumpOptions) -> Iterator[DumpItem]:
        """The rows and corrupt places of the file. Raises OSError."""
        return self.kind.codec(self.file, options)


def known_file(filesystem: FileSystem, path: str) -> KnownFile | None:
    """The file at `path`, if its name says of which kind it is."""
    name = os.path.basename(path)
    match = OFFSET_NAME.fullmatch(name)
    offset = None if match is None else parse_name_offset(match[1])
    if match is not None and offset is not None:
        name = match[2]
    elif name.startswith("."):
        return None
    rank = _RANKS.get(_CLAIMS if is_claims_name(name) else name)
    if rank is None:
        return None
    return KnownFile(DumpedFile(filesystem, path, offset or 0), _KINDS[rank], offset is not None)


def known_files_in(filesystem: FileSystem, directory: str) -> list[KnownFile]:
    """The known files of a directory: by offset and kind, then those without an offset. Raises OSError."""
    paths = [f"{directory}/{name}" for name in filesystem.list_directory(directory)]
    found = [known_file(filesystem, path) for path in paths if not filesystem.is_directory(path)]
    return sorted((known for known in found if known is not None), key=_place)


def _place(known: KnownFile) -> tuple[bool, int, int, str]:
    file = known.file
    return not known.has_offset, file.offset, _RANKS[known.kind.names[0]], file.name
