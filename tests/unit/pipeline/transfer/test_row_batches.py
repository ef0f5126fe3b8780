"""Rows of Arrow become batches with the same records, whatever holes their offsets have."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stratalog.pipeline.transfer import row_batches
from stratalog.pipeline.transfer.parquet_file import FILE_SCHEMA
from stratalog.pipeline.transfer.row_batches import MAX_HOLE, BatchStamp, encode_rows
from stratalog.record.batch import batches
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.decoded_records import decode_all

SHIFT = 7
FAR_MS = (-(1 << 63), -(1 << 62) - 1, 1 << 62, (1 << 63) - 1)
"""No batch has two of different signs."""


def random_rows(random: Random, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    offset = random.randrange(5)
    for number in range(count):
        offset += random.choice((1, 1, 1, 1, 2, MAX_HOLE + 1, MAX_HOLE + 2, 1 << 33))
        kind = number // 20 % 2
        headers = [{"key": random.choice(("a", "é")), "value": random.choice((None, b"", b"x"))}]
        rows.append(
            {
                "topic": "t",
                "partition": 0,
                "offset": offset,
                # Any 64 bits may stand in a log; those of an append are the same for a whole batch.
                "timestamp": number // 7 if kind else random.choice((*[number] * 4, -1, 1 << 60, *FAR_MS)),
                "timestampType": kind,
                "key": random.choice((None, b"", b"key-%d" % number)),
                "value": random.choice((None, b"", random.randbytes(random.randrange(300)))),
                "headers": random.choice((None, [], headers, headers * 3)),
            }
        )
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_records_and_offsets_are_those_of_the_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(row_batches, "BATCH_BYTES", random.choice((1, 500, 64 << 10)))
    monkeypatch.setattr(row_batches, "BATCH_ROWS", random.choice((1, 3, 1 << 13)))
    rows = random_rows(random, 200)
    # A slice, whose buffers begin before it.
    table = pa.RecordBatch.from_pylist(rows, schema=FILE_SCHEMA).slice(3)
    stamp = BatchStamp(5, random.choice((Codec.NONE, Codec.ZSTD)))
    data = b"".join(encode_rows(table, SHIFT, stamp))
    expected = [
        Record(
            row["offset"] + SHIFT,
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((one["key"], one["value"]) for one in row["headers"] or ()),
        )
        for row in rows[3:]
    ]
    assert decode_all(data) == expected
    headers = [header for _, header in batches(data)]
    assert {header.leader_epoch for header in headers} == {5}
    assert {header.codec for header in headers} == {stamp.codec}
    kinds = {row["offset"] + SHIFT: row["timestampType"] for row in rows}
    for header in headers:
        inside = [row for row in expected if header.base_offset <= row.offset < header.next_offset]
        assert {kinds[row.offset] for row in inside} == {int(header.timestamp_type)}
        assert header.last_offset == inside[-1].offset
        assert header.max_timestamp == max(row.timestamp_ms for row in inside)


def test_no_rows_are_no_batch() -> None:
    empty = pa.RecordBatch.from_pylist([], schema=FILE_SCHEMA)
    assert not [*encode_rows(empty, 0, BatchStamp(0, Codec.NONE))]
