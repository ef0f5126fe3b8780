"""Codec of a segment: its batches, and their records if the options say so.

Each batch is proved by its checksum. In memory are only a control batch, or one with records to show, up to a
bound. Where damage hides the next batch, the offset index beside the segment says where to go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
from stratalog.cli.log_dump.dump_rows import CorruptPlace, DumpItem, DumpOptions, Row
from stratalog.cli.log_dump.dumped_file import DumpedFile
from stratalog.cli.records.record_json import JsonValue, record_fields
from stratalog.log.checkpoint import RECOVERY_POINT_FILE, parse_broker_checkpoint
from stratalog.log.producers.producer_batch import ProducerBatch
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
from stratalog.segment.file_names import CLEANED_SUFFIX, LOG_SUFFIX, OFFSET_INDEX_SUFFIX, parse_segment_name
from stratalog.segment.indexes.offset_index import ENTRY_SIZE, OffsetIndex

MAX_BATCH_BYTES = DEFAULT_MAX_DECOMPRESSED
"""The records of a larger batch are not shown, because it and its decompressed form would be unbounded."""

_MAX_INDEX_BYTES = 64 * 1024 * 1024
_TIMESTAMP_TYPES = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}


def dump_segment(file: DumpedFile, options: DumpOptions) -> Iterator[DumpItem]:
    """The batches of a segment. Raises OSError."""
    segment = file.filesystem.open_read(file.path)
    try:
        size_bytes = segment.size()
        for found in inspect_batches(
            segment,
            size_bytes,
            file.offset,
            from_offset=options.from_offset,
            resume_positions=lambda: _indexed_positions(file),
        ):
            if isinstance(found, InspectedBatch):
                yield from _dump_batch(segment, found, options)
            elif found.zeros_from_offset is not None and _may_be_preallocated(file, found):
                yield Row(
                    "preallocated", {"position": found.position, "size_bytes": size_bytes - found.position}
                )
            else:
                yield CorruptPlace(found.position, found.reason, found.end_position - found.position)
    finally:
        segment.close()


def _may_be_preallocated(file: DumpedFile, found: UnreachedBytes) -> bool:
    """Whether a Kafka broker with `log.preallocate` leaves these zeros at the end of the file: in the segment
    that it writes, until it rolls or closes the log. Our server never does. Raises OSError."""
    # Fewer zeros may be the torn start of a batch: its offset and a part of its length.
    if found.end_position - found.position < LOG_OVERHEAD:
        return False
    parsed = [parse_segment_name(name) for name in file.filesystem.list_directory(file.directory)]
    last_offset = max((name[0] for name in parsed if name is not None and name[1] == LOG_SUFFIX), default=-1)
    log_directory = os.path.dirname(file.directory)
    if file.name.endswith(CLEANED_SUFFIX):
        return not is_of_server(file.filesystem, log_directory)
    return (
        parse_segment_name(file.name) == (last_offset, LOG_SUFFIX)
        and not is_of_server(file.filesystem, log_directory)
        and not file.filesystem.exists(f"{log_directory}/{CLEAN_SHUTDOWN_FILE}")
        and not any(position >= max(found.position, 1) for position in _indexed_positions(file))
        and _recovery_point(file) <= (found.zeros_from_offset or 0)
    )


def _recovery_point(file: DumpedFile) -> int:
    """Everything in the partition below this offset was fsynced; 0 if the broker has not said so."""
    log_directory, name = os.path.split(file.directory)
    partition = parse_partition_name(name)
    if partition is None:
        return 0
    try:
        data = file.filesystem.read_file(f"{log_directory}/{RECOVERY_POINT_FILE}")
        return parse_broker_checkpoint(data.decode()).get(partition, 0)
    except (FileNotFoundError, ValueError):
        return 0


def _indexed_positions(file: DumpedFile) -> Iterator[int]:
    """Positions of batches from the offset index; none if that is missing, damaged or too large."""
    path = file.beside(OFFSET_INDEX_SUFFIX)
    try:
        if file.filesystem.file_size(path) > _MAX_INDEX_BYTES:
            return
        data = file.filesystem.read_file(path)
        # A broker that runs, or was killed, leaves zeros behind the entries.
        used_bytes = -(-len(data.rstrip(b"\0")) // ENTRY_SIZE) * ENTRY_SIZE
        index = OffsetIndex(file.offset, data[:used_bytes])
    except (CorruptRecordError, OSError):
        return
    yield from (entry.position for entry in index)


def _dump_batch(segment: AppendFile, found: InspectedBatch, options: DumpOptions) -> Iterator[DumpItem]:
    position, header = found.position, found.header
    wants_bytes = found.crc_matches and (options.with_records or header.is_control)
    too_large = wants_bytes and header.size_in_bytes > MAX_BATCH_BYTES
    batch = segment.read_at(position, header.size_in_bytes) if wants_bytes and not too_large else None
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
    yield Row("batch", _batch_fields(position, known, control_type, crc_matches=found.crc_matches))
    yield from (CorruptPlace(position, problem) for problem in problems)
    if batch is not None and options.with_records:
        yield from _dump_records(batch, position, header)


def _control_types(batch: bytes) -> str | None:
    """Names of the types of the control records in the batch; None without a record."""
    keys = [ControlKey.parse(record) for record in decode(batch, max_bytes=MAX_BATCH_BYTES)]
    return ",".join(key.name for key in keys) or None


def _dump_records(batch: bytes, position: int, header: BatchHeader) -> Iterator[DumpItem]:
    try:
        for record in inspect_records(batch, header, MAX_BATCH_BYTES):
            yield Row("record", record_fields(record))
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
