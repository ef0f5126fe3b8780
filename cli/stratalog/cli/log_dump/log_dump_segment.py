"""A segment, or a snapshot of metadata, as entries of a dump: its batches, and their records where wanted.

Batches are proved by their checksums as they come. Held is a control batch, or one whose records are wanted,
and only up to a bound. Where the file is damaged so that no batch can begin, the offset index beside it, if
there is one, tells where to go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile, FileSystem
from stratalog.cli.log_dump.log_dump_entries import CorruptPlace, DumpEntry, DumpItem, DumpOptions
from stratalog.cli.log_dump.log_dump_files import HIGH_WATERMARK_FILE, FileKind, LogFile, is_segment_name
from stratalog.cli.log_dump.log_dump_indexes import indexed_offsets
from stratalog.cli.record_json import JsonValue, bytes_to_json
from stratalog.log.checkpoint import RECOVERY_POINT_FILE, parse_broker_checkpoint
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE, parse_epochs
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_snapshot import parse_snapshot_name
from stratalog.log.read.batch_inspection import (
    InspectedBatch,
    UnreachedBytes,
    inspect_batches,
    inspect_records,
)
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.manager.directories.manifest import parse_partition_name
from stratalog.migration.kafka_log_directory import is_of_server
from stratalog.record.batch import DEFAULT_MAX_DECOMPRESSED, decode
from stratalog.record.control_key import ControlKey
from stratalog.record.header import LOG_OVERHEAD, BatchHeader, TimestampType
from stratalog.record.record import Record
from stratalog.segment.file_names import (
    CLEANED_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from stratalog.segment.indexes.offset_index import ENTRY_SIZE, OffsetIndex

MAX_BATCH_BYTES = DEFAULT_MAX_DECOMPRESSED
"""Of a larger batch the records are not shown: neither it nor what it decompresses to would be bounded."""

_MAX_INDEX_BYTES = 64 * 1024 * 1024
_INDEX_SUFFIXES = {
    FileKind.OFFSET_INDEX: OFFSET_INDEX_SUFFIX,
    FileKind.TIME_INDEX: TIME_INDEX_SUFFIX,
    FileKind.TRANSACTION_INDEX: TRANSACTION_INDEX_SUFFIX,
}
_TIMESTAMP_TYPES = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}


def dump_segment(filesystem: FileSystem, log: LogFile, options: DumpOptions) -> Iterator[DumpItem]:
    """Raises OSError."""
    file = filesystem.open_read(log.path)
    try:
        size_bytes = file.size()
        for found in inspect_batches(
            file,
            size_bytes,
            # A snapshot is named after its end; its own offsets begin at 0.
            log.name_offset if log.kind is FileKind.SEGMENT else 0,
            from_offset=options.from_offset,
            resume_positions=lambda: _indexed_positions(filesystem, log),
        ):
            if isinstance(found, InspectedBatch):
                yield from _dump_batch(file, found, options)
            elif found.zeros_from_offset is not None and _is_reserved(filesystem, log, found):
                yield DumpEntry(
                    "preallocated", {"position": found.position, "size_bytes": size_bytes - found.position}
                )
            else:
                yield CorruptPlace(found.position, found.reason, found.end_position - found.position)
    finally:
        file.close()


def _is_reserved(filesystem: FileSystem, log: LogFile, found: UnreachedBytes) -> bool:
    """Whether zeros at the end of the file are what a broker makes of `log.preallocate`: of a segment that it
    has neither sealed nor closed, which would have cut them off; and nothing that it left says that there was
    more. A server of ours makes no zeros. Raises OSError."""
    # Fewer may be the beginning of a batch that was torn: its offset, and a part of its length.
    is_long = found.end_position - found.position >= LOG_OVERHEAD
    if log.kind is not FileKind.SEGMENT or not is_long:
        return False
    directory = os.path.dirname(log.path)
    data_dir = os.path.dirname(directory)
    names = filesystem.list_directory(directory)
    end_offset = found.zeros_from_offset
    assert end_offset is not None
    if log.name.endswith(CLEANED_SUFFIX):
        # Nobody has gone on with it, or waits for what is in it; where the log ends says nothing of it.
        may_be_written = True
    else:
        is_last = log.name == max(filter(is_segment_name, names), default="")
        may_be_written = is_last and not _has_known_more(filesystem, directory, names, end_offset)
    return (
        may_be_written
        and not is_of_server(filesystem, data_dir)
        and not filesystem.exists(f"{data_dir}/{CLEAN_SHUTDOWN_FILE}")
        and not any(position >= max(found.position, 1) for position in _indexed_positions(filesystem, log))
        and not any(
            offset >= end_offset
            for kind, suffix in _INDEX_SUFFIXES.items()
            for offset in indexed_offsets(filesystem, LogFile(log.beside(suffix), kind, log.name_offset))
        )
    )


def _has_known_more(filesystem: FileSystem, directory: str, names: Iterable[str], end_offset: int) -> bool:
    """Something beside the last segment says that the log went on behind that offset: a snapshot of its
    producers, an epoch, a checkpoint of what was fsynced, or shown. Raises OSError."""
    if any((parse_snapshot_name(name) or 0) > end_offset for name in names):
        return True
    # One that begins at the end is of a leader that has appended nothing.
    with suppress(FileNotFoundError, CorruptRecordError):
        epochs = parse_epochs(filesystem.read_file(f"{directory}/{LEADER_EPOCH_FILE}"))
        if any(epoch.start_offset > end_offset for epoch in epochs):
            return True
    data_dir, name = os.path.split(directory)
    partition = parse_partition_name(name)
    if partition is None:
        return False
    for file in (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE):
        try:
            offsets = parse_broker_checkpoint(filesystem.read_file(f"{data_dir}/{file}").decode())
        except (FileNotFoundError, ValueError):
            continue
        if offsets.get(partition, 0) > end_offset:
            return True
    return False


def _indexed_positions(filesystem: FileSystem, log: LogFile) -> Iterator[int]:
    """Where the offset index says that batches begin; nothing where there is none that can be used."""
    if log.kind is not FileKind.SEGMENT:
        return
    path = log.beside(OFFSET_INDEX_SUFFIX)
    try:
        if filesystem.file_size(path) > _MAX_INDEX_BYTES:
            return
        data = filesystem.read_file(path)
        # A broker that runs, or was killed, leaves zeros behind the entries.
        used_bytes = -(-len(data.rstrip(b"\0")) // ENTRY_SIZE) * ENTRY_SIZE
        index = OffsetIndex(log.name_offset, data[:used_bytes])
    except (CorruptRecordError, OSError):
        return
    yield from (entry.position for entry in index)


def _dump_batch(file: AppendFile, found: InspectedBatch, options: DumpOptions) -> Iterator[DumpItem]:
    position, header = found.position, found.header
    wants_bytes = found.crc_matches and (options.with_records or header.is_control)
    too_large = wants_bytes and header.size_in_bytes > MAX_BATCH_BYTES
    batch = file.read_at(position, header.size_in_bytes) if wants_bytes and not too_large else None
    problems = list(found.problems)
    if too_large:
        problems.append(f"it is larger than {MAX_BATCH_BYTES} bytes, so its records are not shown")
    known, control_type = ProducerBatch(header), None
    if batch is not None and header.is_control:
        try:
            control_type = _control_types(batch)
            known = ProducerBatch.read(batch, 0, header)
        except CorruptRecordError as failure:
            problems.append(str(failure))
    yield DumpEntry("batch", _batch_fields(position, known, control_type, crc_matches=found.crc_matches))
    yield from (CorruptPlace(position, problem) for problem in problems)
    if batch is not None and options.with_records:
        yield from _dump_records(batch, position, header)


def _control_types(batch: bytes) -> str | None:
    """What the records of a control batch are about, by name where there is one; None without a record."""
    keys = [ControlKey.parse(record) for record in decode(batch, max_bytes=MAX_BATCH_BYTES)]
    return ",".join(key.name for key in keys) or None


def _dump_records(batch: bytes, position: int, header: BatchHeader) -> Iterator[DumpItem]:
    try:
        for record in inspect_records(batch, header, MAX_BATCH_BYTES):
            yield DumpEntry("record", _record_fields(record))
    except CorruptRecordError as failure:
        yield CorruptPlace(position, str(failure))


def _batch_fields(
    position: int, batch: ProducerBatch, control_type: str | None, *, crc_matches: bool
) -> dict[str, JsonValue]:
    header, marker = batch.header, batch.marker
    return {
        "position": position,
        "size_bytes": header.size_in_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records_count": header.records_count,
        "leader_epoch": header.leader_epoch,
        "magic": header.magic,
        "crc": header.crc,
        "crc_matches": crc_matches,
        "codec": header.codec.name.lower(),
        "timestamp_type": _TIMESTAMP_TYPES[header.timestamp_type],
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "delete_horizon_ms": header.delete_horizon_ms,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "control_type": control_type,
        "coordinator_epoch": None if marker is None else marker.coordinator_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": batch.last_sequence,
    }


def _record_fields(record: Record) -> dict[str, JsonValue]:
    """As `consume --format json` prints a record, but for the partition."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": bytes_to_json(record.key),
        "value": bytes_to_json(record.value),
        "headers": [{"key": name, "value": bytes_to_json(value)} for name, value in record.headers],
    }
