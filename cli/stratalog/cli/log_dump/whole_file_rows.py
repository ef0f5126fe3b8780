"""Codecs of the files that are read as a whole: producer snapshots, epochs, checkpoints, metadata.

Each decodes all of a file or nothing of it, as the server does when it opens a log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import TopicPartition
from stratalog.cli.log_dump.dump_rows import Codec, CorruptPlace, DumpItem, DumpOptions, Row
from stratalog.cli.log_dump.dumped_file import DumpedFile
from stratalog.cli.records.record_json import JsonValue
from stratalog.log.checkpoint import parse_checkpoint
from stratalog.log.leader_epoch_cache import parse_epochs
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.manager.directories.manifest import parse_manifest
from stratalog.manager.directories.meta_properties import parse_meta_properties
from stratalog.manager.directories.partition_metadata import parse_partition_metadata
from stratalog.migration.kafka_log_directory import is_of_server
from stratalog.remote.metadata.ownership.claims import parse_claims
from stratalog.remote.metadata.ownership.seen_heads import parse_seen_heads
from stratalog.segment.batch_headers import summed_epochs
from stratalog.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import TransactionIndex
from stratalog.segment.segment_seal import SegmentSeal

MAX_FILE_BYTES = 256 * 1024 * 1024
"""Enough for a snapshot of five million producers."""

_Fields = dict[str, JsonValue]
_Decoder = Callable[[DumpedFile, bytes], list[_Fields]]


def _codec(row_type: str, decode: _Decoder, *, is_empty_at_first: bool = False) -> Codec:
    """A codec from a decoder, which raises CorruptRecordError or ValueError. A Kafka broker creates a file
    that `is_empty_at_first` before it first writes it; a server replaces whole files."""

    def dump(file: DumpedFile, _options: DumpOptions) -> Iterator[DumpItem]:
        size_bytes = file.filesystem.file_size(file.path)
        if size_bytes > MAX_FILE_BYTES:
            yield CorruptPlace(None, f"larger than {MAX_FILE_BYTES} bytes, as no such file is", size_bytes)
            return
        if size_bytes == 0 and is_empty_at_first and not _is_of_server(file):
            return
        try:
            rows = decode(file, file.filesystem.read_file(file.path))
        except (CorruptRecordError, ValueError) as failure:
            yield CorruptPlace(None, str(failure), size_bytes)
        else:
            yield from (Row(row_type, fields) for fields in rows)

    return dump


def _is_of_server(file: DumpedFile) -> bool:
    parent = os.path.dirname(file.directory)
    return any(is_of_server(file.filesystem, directory) for directory in (file.directory, parent))


def dump_seal(file: DumpedFile, options: DumpOptions) -> Iterator[DumpItem]:
    """The seal of a segment, compared with the segment and its index files if the options say so."""
    for item in _seal(file, options):
        yield item
        if isinstance(item, Row) and options.compares_indexes:
            yield from (CorruptPlace(None, difference) for difference in _differences(file))


def _seal_fields(_file: DumpedFile, data: bytes) -> list[_Fields]:
    seal = SegmentSeal.from_bytes(data)
    return [
        {
            "log_size_bytes": seal.log_size_bytes,
            "end_offset": seal.end_offset,
            "offset_index_bytes": seal.offset_index.size_bytes,
            "time_index_bytes": seal.time_index.size_bytes,
            "aborted_bytes": seal.transaction_index.size_bytes,
            "headers_crc": seal.headers_crc,
            "leader_epochs": [
                {"epoch": epoch, "start_offset": start} for epoch, _, start in summed_epochs(seal.headers)
            ],
        }
    ]


def _differences(file: DumpedFile) -> Iterator[str]:
    """Reports the files beside a seal that are not the sealed ones. Raises OSError."""
    seal = SegmentSeal.from_bytes(file.filesystem.read_file(file.path))
    try:
        log_size_bytes = file.filesystem.file_size(file.beside(LOG_SUFFIX))
    except FileNotFoundError as failure:
        yield f"there is no {os.path.basename(failure.filename)} beside it"
        return
    if log_size_bytes != seal.log_size_bytes:
        yield f"the segment has {log_size_bytes} bytes, and was sealed with {seal.log_size_bytes}"
    for suffix, seal_of, sealed in (
        (OFFSET_INDEX_SUFFIX, OffsetIndex.seal_of, seal.offset_index),
        (TIME_INDEX_SUFFIX, TimeIndex.seal_of, seal.time_index),
        (TRANSACTION_INDEX_SUFFIX, TransactionIndex.seal_of, seal.transaction_index),
    ):
        path = file.beside(suffix)
        if not file.filesystem.exists(path):
            if suffix != TRANSACTION_INDEX_SUFFIX or seal.has_aborted:
                yield f"there is no {os.path.basename(path)} beside it"
        elif seal_of(file.filesystem.read_file(path)) != sealed:
            yield f"{os.path.basename(path)} is not the file that was sealed"


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


def _producers(file: DumpedFile, data: bytes) -> list[_Fields]:
    return [_producer(entry) for entry in ProducerSnapshot.from_bytes(file.offset, data).entries]


def _leader_epochs(_file: DumpedFile, data: bytes) -> list[_Fields]:
    return [{"leader_epoch": epoch, "start_offset": start} for epoch, start in parse_epochs(data)]


def _claims(_file: DumpedFile, data: bytes) -> list[_Fields]:
    claims = sorted(parse_claims(data))
    if not claims:
        raise ValueError("the file has no claim, and a server writes it with its first one")
    return [{"claim": str(claim)} for claim in claims]


def _seen_heads(_file: DumpedFile, data: bytes) -> list[_Fields]:
    return [
        {
            "shard": shard,
            "seq": seen.seq,
            "commit": str(seen.uuid),
            "epoch": seen.epoch,
            "claim": str(seen.claim),
        }
        for shard, seen in parse_seen_heads(data).items()
    ]


def _by_partition(field: str, parse: Callable[[bytes], dict[TopicPartition, int]]) -> _Decoder:
    return lambda _file, data: [
        {"topic": partition.topic, "partition": partition.partition, field: number}
        for partition, number in parse(data).items()
    ]


def _one(field: str, parse: Callable[[bytes], Any]) -> _Decoder:
    return lambda _file, data: [{field: parse(data)}]


def _parse_checkpoint(data: bytes) -> dict[TopicPartition, int]:
    return parse_checkpoint(data.decode())


def _manifest(_file: DumpedFile, data: bytes) -> list[_Fields]:
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "topic_id": str(entry.topic_id),
            "state": entry.state.value,
            "log_start_offset": entry.log_start_offset,
            "import_epoch": entry.import_epoch,
            "clean_due_ms": entry.horizon_ms,
        }
        for partition, entry in parse_manifest(data).partitions.items()
    ]


def _meta_properties(_file: DumpedFile, data: bytes) -> list[_Fields]:
    properties = parse_meta_properties(data.decode())
    return [{"name": name, "value": value} for name, value in sorted(properties.items())]


_seal = _codec("seal", _seal_fields)
dump_producers = _codec("producer", _producers)
dump_leader_epochs = _codec("leader_epoch", _leader_epochs, is_empty_at_first=True)
dump_partition_metadata = _codec(
    "partition_metadata", _one("topic_id", lambda data: str(parse_partition_metadata(data.decode())))
)
dump_checkpoint = _codec(
    "checkpoint_offset", _by_partition("offset", _parse_checkpoint), is_empty_at_first=True
)
dump_manifest = _codec("manifest_partition", _manifest)
dump_meta_properties = _codec("property", _meta_properties)
dump_claims = _codec("claim", _claims)
dump_seen_heads = _codec("seen_head", _seen_heads)
