"""Whole batches whatever the chunks, and an error of the right kind for every other byte."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, StoreCorruptError
from stratalog.compaction.output.verifier import PartsReader
from stratalog.compaction.slice_reader import SliceReader
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.objects.object_format import crc_of
from stratalog.remote.objects.slice_entry import SliceEntry
from tests.support.tiered.sample_entry import sample_entry


def some_batches(random: Random) -> list[bytes]:
    batches: list[bytes] = []
    offset = 0
    for _ in range(random.randrange(6)):
        count = random.randrange(1, 4)
        records = [Record(0, 0, b"key", bytes(random.choice((0, 3, 300)))) for _ in range(count)]
        batches.append(encode_batch(records, base_offset=offset))
        offset += count
    return batches


def entry_of(data: bytes, record_count: int) -> SliceEntry:
    return sample_entry(
        0, record_count, data_bytes=len(data), data_crc=crc_of(data), record_count=record_count
    )


def read_all(entry: SliceEntry, data: bytes, chunk_bytes: int) -> list[bytes]:
    reader = SliceReader(entry, PartsReader([data]).read, chunk_bytes)
    return [
        bytes(row[position : position + header.size_in_bytes])
        for row in reader.rows()
        for position, header in batches(row)
    ]


def count_of(batches: list[bytes]) -> int:
    return sum(int.from_bytes(batch[57:61], "big") for batch in batches)


@given(st.integers(0, 2**32), st.integers(1, 800))
def test_batches_come_whole_and_in_order(seed: int, chunk_bytes: int) -> None:
    batches = some_batches(Random(seed))
    data = b"".join(batches)
    assert read_all(entry_of(data, count_of(batches)), data, chunk_bytes) == batches


@given(st.integers(0, 2**32), st.integers(1, 800))
def test_changed_bytes_do_not_pass(seed: int, chunk_bytes: int) -> None:
    random = Random(seed)
    batches = some_batches(random) or [encode_batch([Record(0, 0, b"key", b"value")])]
    data = bytearray(b"".join(batches))
    entry = entry_of(bytes(data), count_of(batches))
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    with pytest.raises((StoreCorruptError, CorruptRecordError)):
        read_all(entry, bytes(data), chunk_bytes)


@given(st.integers(0, 2**32), st.integers(1, 800))
def test_a_slice_that_is_cut_off_does_not_pass(seed: int, chunk_bytes: int) -> None:
    random = Random(seed)
    batches = some_batches(random) or [encode_batch([Record(0, 0, b"key", b"value")])]
    data = b"".join(batches)
    entry = entry_of(data, count_of(batches))
    with pytest.raises((StoreCorruptError, CorruptRecordError)):
        read_all(entry, data[: random.randrange(len(data))], chunk_bytes)


def test_a_slice_with_another_number_of_records_does_not_pass() -> None:
    data = encode_batch([Record(0, 0, b"key", b"value")] * 2)
    for record_count in (1, 3):
        entry = entry_of(data, record_count)._replace(data_crc=crc_of(data))
        with pytest.raises(StoreCorruptError):
            read_all(entry, data, 1 << 20)
