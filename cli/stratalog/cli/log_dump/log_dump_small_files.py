"""The files that are read as a whole, as entries of a dump: producer snapshots, leader epochs, checkpoints,
and what says whose a directory is, and who owns what is in it.

Their decoders take all of a file or nothing of it, as the server does when it opens a log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import cast

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import FileSystem
from stratalog.cli.log_dump.log_dump_entries import CorruptPlace, DumpEntry, DumpItem, DumpOptions
from stratalog.cli.log_dump.log_dump_files import FileKind, LogFile
from stratalog.cli.record_json import JsonValue
from stratalog.log.checkpoint import parse_checkpoint
from stratalog.log.leader_epoch_cache import parse_epochs
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.manager.directories.meta_properties import parse_meta_properties
from stratalog.manager.directories.start_checkpoint import parse_start_copy
from stratalog.manager.partitions.import_mark import parse_import_mark
from stratalog.manager.partitions.partition_metadata import parse_partition_metadata
from stratalog.migration.kafka_log_directory import is_of_server
from stratalog.remote.metadata.ownership.claims import parse_claims
from stratalog.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import TransactionIndex
from stratalog.segment.segment_seal import SegmentSeal

MAX_FILE_BYTES = 256 * 1024 * 1024
"""A snapshot of five million producers."""

_EMPTY_AT_FIRST = frozenset({FileKind.CHECKPOINT, FileKind.LEADER_EPOCHS})
"""A broker makes these, and writes them later; a server's are replaced as a whole."""

_Fields = dict[str, JsonValue]


def dump_small_file(filesystem: FileSystem, log: LogFile, options: DumpOptions) -> Iterator[DumpItem]:
    """Raises OSError."""
    size_bytes = filesystem.file_size(log.path)
    if size_bytes > MAX_FILE_BYTES:
        yield CorruptPlace(None, f"larger than {MAX_FILE_BYTES} bytes, as no such file is", size_bytes)
        return
    if size_bytes == 0 and log.kind in _EMPTY_AT_FIRST and not _is_of_server(filesystem, log):
        return
    entry_type, decode = _DECODERS[log.kind]
    try:
        found = decode(log, filesystem.read_file(log.path))
    except (CorruptRecordError, ValueError) as failure:
        yield CorruptPlace(None, str(failure), size_bytes)
        return
    yield from (DumpEntry(entry_type, fields) for fields in found)
    if log.kind is FileKind.SEAL and options.compares_indexes:
        yield from (CorruptPlace(None, difference) for difference in _differences(filesystem, log))


def _is_of_server(filesystem: FileSystem, log: LogFile) -> bool:
    directory = os.path.dirname(log.path)
    return is_of_server(
        filesystem, os.path.dirname(directory) if log.kind is FileKind.LEADER_EPOCHS else directory
    )


def _seal(_log: LogFile, data: bytes) -> list[_Fields]:
    seal = SegmentSeal.from_bytes(data)
    return [
        {
            "log_size_bytes": seal.log_size_bytes,
            "end_offset": seal.end_offset,
            "offset_index_bytes": seal.offset_index.size_bytes,
            "time_index_bytes": seal.time_index.size_bytes,
            "aborted_bytes": seal.transaction_index.size_bytes,
        }
    ]


def _differences(filesystem: FileSystem, log: LogFile) -> Iterator[str]:
    """The files beside a seal that are not the sealed ones. Raises OSError."""
    seal = SegmentSeal.from_bytes(filesystem.read_file(log.path))
    try:
        log_size_bytes = filesystem.file_size(log.beside(LOG_SUFFIX))
    except FileNotFoundError as failure:
        yield f"there is no {os.path.basename(failure.filename)} beside it"
        return
    if log_size_bytes != seal.log_size_bytes:
        yield f"the segment has {log_size_bytes} bytes, and was sealed with {seal.log_size_bytes}"
    for suffix, page_bytes, sealed in (
        (OFFSET_INDEX_SUFFIX, OffsetIndex.page_bytes, seal.offset_index),
        (TIME_INDEX_SUFFIX, TimeIndex.page_bytes, seal.time_index),
        (TRANSACTION_INDEX_SUFFIX, TransactionIndex.page_bytes, seal.transaction_index),
    ):
        path = log.beside(suffix)
        if not filesystem.exists(path):
            if suffix != TRANSACTION_INDEX_SUFFIX or seal.has_aborted:
                yield f"there is no {os.path.basename(path)} beside it"
        elif IndexSeal.of(filesystem.read_file(path), page_bytes) != sealed:
            yield f"{os.path.basename(path)} is not the file that was sealed"


def _producers(log: LogFile, data: bytes) -> list[_Fields]:
    return [_producer(entry) for entry in ProducerSnapshot.from_bytes(log.name_offset, data).entries]


def _producer(entry: ProducerStateEntry) -> _Fields:
    last = entry.batches[-1] if entry.batches else None
    has_sequence = last is not None and last.last_sequence >= 0
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.epoch,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_first_offset": entry.current_txn_first_offset,
        "last_timestamp": entry.last_timestamp_ms,
        "first_sequence": last.first_sequence if last is not None and has_sequence else None,
        "last_sequence": last.last_sequence if last is not None and has_sequence else None,
        "first_offset": None if last is None else last.first_offset,
        "last_offset": None if last is None else last.last_offset,
    }


def _leader_epochs(_log: LogFile, data: bytes) -> list[_Fields]:
    return [{"leader_epoch": epoch, "start_offset": start} for epoch, start in parse_epochs(data)]


def _checkpoint_offsets(_log: LogFile, data: bytes) -> list[_Fields]:
    return [
        {"topic": partition.topic, "partition": partition.partition, "offset": offset}
        for partition, offset in parse_checkpoint(data.decode()).items()
    ]


def _start_copy(_log: LogFile, data: bytes) -> list[_Fields]:
    return [
        {"topic": partition.topic, "partition": partition.partition, "offset": offset}
        for partition, offset in parse_start_copy(data).items()
    ]


def _horizons(_log: LogFile, data: bytes) -> list[_Fields]:
    return [
        {"topic": partition.topic, "partition": partition.partition, "due_ms": due_ms}
        for partition, due_ms in parse_checkpoint(data.decode()).items()
    ]


def _partition_metadata(_log: LogFile, data: bytes) -> list[_Fields]:
    return [{"topic_id": str(parse_partition_metadata(data.decode()))}]


def _import_mark(_log: LogFile, data: bytes) -> list[_Fields]:
    return [{"epoch": parse_import_mark(data)}]


def _claims(_log: LogFile, data: bytes) -> list[_Fields]:
    claims = sorted(parse_claims(data))
    if not claims:
        raise ValueError("no claim is in it, and a server writes it with its first one")
    return [{"claim": str(claim)} for claim in claims]


def _quorum_state(_log: LogFile, data: bytes) -> list[_Fields]:
    try:
        return _quorum_fields(json.loads(data))
    except RecursionError:
        raise ValueError("not the state of a quorum, which is not nested so deep") from None


def _quorum_fields(document: object) -> list[_Fields]:
    if not isinstance(document, dict):
        raise ValueError("not the state of a quorum, which is an object")
    fields = cast("_Fields", document)
    for name in ("leaderId", "leaderEpoch", "votedId", "data_version"):
        if type(fields.get(name)) is not int:
            raise ValueError(f"not the state of a quorum, which has a number {name}")
    return [{"name": name, "value": _scalar(value)} for name, value in fields.items()]


def _scalar(value: JsonValue) -> JsonValue:
    return value if isinstance(value, int | str) else json.dumps(value, separators=(",", ":"))


def _meta_properties(_log: LogFile, data: bytes) -> list[_Fields]:
    return [
        {"name": name, "value": value} for name, value in sorted(parse_meta_properties(data.decode()).items())
    ]


_DECODERS: dict[FileKind, tuple[str, Callable[[LogFile, bytes], list[_Fields]]]] = {
    FileKind.SEAL: ("seal", _seal),
    FileKind.PRODUCER_SNAPSHOT: ("producer", _producers),
    FileKind.LEADER_EPOCHS: ("leader_epoch", _leader_epochs),
    FileKind.CHECKPOINT: ("checkpoint_offset", _checkpoint_offsets),
    FileKind.CHECKPOINT_COPY: ("checkpoint_offset", _start_copy),
    FileKind.HORIZON_CHECKPOINT: ("clean_due", _horizons),
    FileKind.PARTITION_METADATA: ("partition_metadata", _partition_metadata),
    FileKind.IMPORT_MARK: ("import_mark", _import_mark),
    FileKind.QUORUM_STATE: ("quorum_state", _quorum_state),
    FileKind.META_PROPERTIES: ("property", _meta_properties),
    FileKind.CLAIMS: ("claim", _claims),
}
