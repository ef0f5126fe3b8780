"""Markers that a real broker wrote, ours beside them, and control batches that are none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.log.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record import kernels
from stratalog.record.batch import batches
from stratalog.record.builder import rebuild_batch
from stratalog.record.header import parse_header
from stratalog.record.record import Record

GOLDEN = Path(__file__).parents[2] / "golden" / "record"
MARKER = EndTransactionMarker(ControlType.COMMIT, 3)
BATCH = MARKER.to_batch(7, 1, 1000, base_offset=50, leader_epoch=2)


@pytest.mark.parametrize("name", ["txn", "compacted"])
def test_markers_are_read_and_written_as_kafka_does(name: str) -> None:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    dump = (GOLDEN / f"{name}.dump.txt").read_text()
    control_offsets = [int(found) for found in re.findall(r"baseOffset: (\d+) .*isControl: true", dump)]
    aborted_offsets = [int(found) for found in re.findall(r"version: 0 .* lastOffset: (\d+)", dump)]
    found: dict[int, EndTransactionMarker] = {}
    for position, header in batches(data):
        if not header.is_control:
            continue
        marker = EndTransactionMarker.read(data, position, header)
        assert marker is not None
        found[header.base_offset] = marker
        again = marker.to_batch(
            header.producer_id,
            header.producer_epoch,
            header.max_timestamp,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
        )
        assert again == data[position : position + header.size_in_bytes]
    assert list(found) == control_offsets
    aborts = [offset for offset, marker in found.items() if marker.control_type is ControlType.ABORT]
    assert aborts == aborted_offsets
    assert len(found) > len(aborts)
    assert {marker.coordinator_epoch for marker in found.values()} == {0}


def control_batch(records: list[Record]) -> bytes:
    header = parse_header(BATCH)._replace(last_offset_delta=max(0, len(records) - 1))
    payload = kernels.encode_records(records, header.base_timestamp)
    return rebuild_batch(header, payload, records_count=len(records), max_timestamp=1000)


def marker_record(key: bytes | None, value: bytes | None) -> Record:
    return Record(0, 1000, key, value)


KEY, VALUE = b"\0\0\0\1", b"\0\0\0\0\0\3"


def read(data: bytes) -> EndTransactionMarker | None:
    return EndTransactionMarker.read(data, 0, parse_header(data))


def test_a_marker_that_compaction_has_removed_is_none() -> None:
    assert read(control_batch([])) is None


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    newer = marker_record(b"\0\1\0\1new", b"\0\1\0\0\0\3new")
    assert read(control_batch([newer])) == read(BATCH) == MARKER


@pytest.mark.parametrize(
    "records",
    [
        [marker_record(None, VALUE)],
        [marker_record(KEY, None)],
        [marker_record(KEY[:3], VALUE)],
        [marker_record(KEY, VALUE[:5])],
        [marker_record(b"\xff\xff\0\1", VALUE)],
        [marker_record(KEY, b"\xff\xff\0\0\0\3")],
        [marker_record(b"\0\0\0\2", VALUE)],
        [marker_record(KEY, VALUE), marker_record(KEY, VALUE)],
    ],
)
def test_other_control_records_are_refused(records: list[Record]) -> None:
    with pytest.raises(CorruptRecordError):
        read(control_batch(records))


@given(data=st.data())
def test_every_change_under_the_checksum_is_noticed(data: st.DataObject) -> None:
    changed = bytearray(BATCH)
    position = data.draw(st.integers(17, len(BATCH) - 1))
    changed[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        header = parse_header(changed)
    except CorruptRecordError:
        return
    if header.is_control:
        with pytest.raises(CorruptRecordError):
            EndTransactionMarker.read(changed, 0, header)
