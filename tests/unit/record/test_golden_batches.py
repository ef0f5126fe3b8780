"""Batches that a real broker wrote: headers as its own tool prints them, records as its consumer got them."""

from __future__ import annotations

import re

import pytest

from stratalog.record.batch import batches, complete_prefix_size, crc_matches, decode, verify
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import HEADER_SIZE, BatchHeader, TimestampType
from stratalog.record.record import Record
from tests.support.logs.golden_records import golden_records
from tests.support.places import GOLDEN

NAMES = ["appendtime", "codecs", "compacted", "recompressed", "txn"]
each_log = pytest.mark.parametrize("name", NAMES)


def log_of(name: str) -> bytes:
    """The segments of a topic's one partition, one behind the other."""
    segments = sorted((GOLDEN / "data" / f"g1-{name}-0").glob("*.log"))
    assert segments
    return b"".join(segment.read_bytes() for segment in segments)


def dumped(name: str) -> list[str]:
    """The lines of `DumpLogSegments` that tell of a batch, without its position in the segment."""
    lines = (GOLDEN / "expected" / f"{name}.dump.txt").read_text().splitlines()
    return [re.sub(r" position: \d+", "", line) for line in lines if line.startswith("baseOffset: ")]


def as_dumped(header: BatchHeader) -> str:
    """A header as `DumpLogSegments` prints it."""
    is_create_time = header.timestamp_type is TimestampType.CREATE_TIME
    horizon = header.delete_horizon_ms
    time_type = "CreateTime" if is_create_time else "LogAppendTime"
    last_sequence = header.base_sequence + header.last_offset_delta if header.base_sequence >= 0 else -1
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.records_count}"
        f" baseSequence: {header.base_sequence} lastSequence: {last_sequence}"
        f" producerId: {header.producer_id} producerEpoch: {header.producer_epoch}"
        f" partitionLeaderEpoch: {header.leader_epoch}"
        f" isTransactional: {str(header.is_transactional).lower()}"
        f" isControl: {str(header.is_control).lower()}"
        f" deleteHorizonMs: OptionalLong{'.empty' if horizon is None else f'[{horizon}]'}"
        f" {time_type}: {header.max_timestamp}"
        f" size: {header.size_in_bytes} magic: {header.magic}"
        f" compresscodec: {header.codec.name.lower()} crc: {header.crc} isvalid: true"
    )


@each_log
def test_headers_are_what_kafka_prints(name: str) -> None:
    data = log_of(name)
    headers = [header for _, header in batches(data)]
    assert [as_dumped(header) for header in headers] == dumped(name)
    assert complete_prefix_size(data) == len(data) == sum(header.size_in_bytes for header in headers)
    assert all(crc_matches(data, position, header) for position, header in batches(data))
    assert all(data[position : position + HEADER_SIZE] == header.pack() for position, header in batches(data))


@each_log
def test_records_are_what_the_consumer_got(name: str) -> None:
    data, seen = log_of(name), list[Record]()
    expected = golden_records(GOLDEN, name, "read_uncommitted")
    is_stamped = name == "appendtime"
    for position, header in batches(data):
        if header.is_control:
            continue
        verify(data, position, header)
        assert (header.timestamp_type is TimestampType.LOG_APPEND_TIME) == is_stamped
        seen += [one for one in decode(data, position) if one.offset >= expected[0].offset]
    assert seen == expected


@pytest.mark.parametrize("name", ["txn", "compacted"])
def test_markers_tell_what_a_committed_reader_sees(name: str) -> None:
    """Records wait for the end of their producer's transaction; an abort drops them."""
    data = log_of(name)
    pending: dict[int, list[Record]] = {}
    seen: list[Record] = []
    for position, header in batches(data):
        if header.is_control:
            marker = EndTransactionMarker.read(data, position, header)
            assert marker is not None
            ended = pending.pop(header.producer_id, [])
            seen += ended if marker.control_type is ControlType.COMMIT else []
        elif header.is_transactional:
            pending.setdefault(header.producer_id, []).extend(decode(data, position))
        else:
            seen += decode(data, position)
    assert sorted(seen) == golden_records(GOLDEN, name, "read_committed")
    # Kafka's cleaner has dropped what was aborted.
    assert (len(seen) < len(golden_records(GOLDEN, name, "read_uncommitted"))) == (name == "txn")


@each_log
def test_markers_are_read_and_made_as_the_broker_does(name: str) -> None:
    data, aborted_offsets = log_of(name), list[int]()
    for position, header in batches(data):
        if not header.is_control:
            continue
        marker = EndTransactionMarker.read(data, position, header)
        assert marker is not None
        if marker.control_type is ControlType.ABORT:
            aborted_offsets.append(header.base_offset)
        ours = marker.to_batch(
            header.producer_id,
            header.producer_epoch,
            header.max_timestamp,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
        )
        assert ours == data[position : position + header.size_in_bytes]
    # The lines of the transaction index: where each aborted transaction ends.
    dump = (GOLDEN / "expected" / f"{name}.dump.txt").read_text()
    assert aborted_offsets == [int(found) for found in re.findall(r"version: 0 .* lastOffset: (\d+)", dump)]


@each_log
def test_rebuilding_a_batch_changes_nothing(name: str) -> None:
    data = log_of(name)
    for position, header in batches(data):
        one = data[position : position + header.size_in_bytes]
        if header.codec is Codec.NONE:
            sizes = {"records_count": header.records_count, "max_timestamp": header.max_timestamp}
            assert rebuild_batch(header, one[HEADER_SIZE:], **sizes) == one


@each_log
def test_batches_are_made_as_kafka_made_them(name: str) -> None:
    """Every batch that no compaction has thinned out, uncompressed: its records encode to its bytes."""
    data = log_of(name)
    for position, header in batches(data):
        one = data[position : position + header.size_in_bytes]
        if header.records_count != header.last_offset_delta + 1 or header.codec is not Codec.NONE:
            continue
        if header.append_time_ms is not None:
            # The records' own times are in their deltas, which no reader gets to see.
            continue
        producer = BatchProducer(
            header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional
        )
        encoded = encode_batch(
            decode(one),
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            producer=producer,
            is_control=header.is_control,
            delete_horizon_ms=header.delete_horizon_ms,
        )
        assert encoded == one
