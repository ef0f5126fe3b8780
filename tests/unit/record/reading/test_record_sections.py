"""The records of a batch in pieces of whole records, whatever their sizes are."""

from __future__ import annotations

import random

import pytest

from stratalog.base.errors import CorruptRecordError, OverloadedError
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import parse_header
from stratalog.record.native.kernels import decode_records, encode_records
from stratalog.record.reading import record_sections
from stratalog.record.reading.record_sections import RecordSections
from stratalog.record.record import Record

CODECS = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.fixture(autouse=True)
def small_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sections, "WHOLE_BYTES", 500)
    monkeypatch.setattr(record_sections, "PORTION_BYTES", 200)
    monkeypatch.setattr(record_sections, "PORTION_COUNT", 7)
    monkeypatch.setattr(record_sections, "_FILLED_BYTES", 400)


def batch_of(values: list[bytes], codec: Codec) -> bytes:
    return encode_batch([Record(0, 1000, b"k", value) for value in values], codec=codec, base_offset=50)


def walk(batch: bytes) -> list[list[Record]]:
    header = parse_header(batch)
    return [
        decode_records(section, count, header.base_offset, header.base_timestamp, None)
        for section, count in RecordSections(batch, header)
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("seed", range(20))
def test_sections_are_all_records_in_their_order(codec: Codec, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, 30, 190, 400, 5000]) for _ in range(chance.choice([1, 3, 40, 200]))]
    values = [chance.randbytes(1) * size for size in sizes]
    batch = batch_of(values, codec)
    sections = walk(batch)
    found = [one for section in sections for one in section]
    assert [one.offset for one in found] == list(range(50, 50 + len(values)))
    assert [one.value for one in found] == values
    for section in sections:
        size_bytes = sum(len(one.value or b"") for one in section)
        assert len(section) == 1 or size_bytes <= 200 or len(sections) == 1
    assert RecordSections(batch, parse_header(batch)).is_whole == (len(sections) == 1) or max(sizes) > 200


def rebuilt(payload: bytes, count: int, codec: Codec) -> bytes:
    header = parse_header(batch_of([b""] * 1000, codec))
    return rebuild_batch(header, payload, records_count=count, max_timestamp=1000)


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_do_not_make_up_the_batch_are_refused(codec: Codec) -> None:
    payload = encode_records([Record(0, 1000, b"k", b"v" * 90) for _ in range(60)], 1000)
    assert len(walk(rebuilt(payload, 60, codec))) > 10
    for wrong, count in (
        (payload, 61),
        (payload, 59),
        (payload + b"\0", 60),
        (payload + bytes(5000), 60),
        (payload[:-1], 60),
        (payload[:-5000], 60),
        # The offsets begin again.
        (payload + payload, 120),
        # Sizes that cannot be.
        (payload + b"\x01" + bytes(600), 70),
        (payload + b"\0" + bytes(600), 70),
        (payload + b"\xff" * 600, 70),
    ):
        with pytest.raises(CorruptRecordError):
            walk(rebuilt(wrong, count, codec))


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_record_is_announced_before_it_is_collected(codec: Codec) -> None:
    # Larger than any piece of decompressed data, which is there before a look at its records.
    large_bytes = 12 << 20
    batch = batch_of([b"a" * 100, b"b" * 300, bytes(large_bytes), b"d"], codec)
    sizes: list[int] = []
    sections = RecordSections(batch, parse_header(batch), sizes.append)
    assert sections.held_bytes == 800
    assert [count for _, count in sections] == [1, 1, 1, 1]
    assert [large_bytes < size < large_bytes + 20 for size in sizes] == [True]

    def refuse(size_bytes: int) -> None:
        raise OverloadedError("no room", size_bytes=size_bytes)

    walk = iter(RecordSections(batch, parse_header(batch), refuse))
    assert [next(walk)[1] for _ in range(2)] == [1, 1]
    with pytest.raises(OverloadedError):
        next(walk)
    small = batch_of([b"a" * 100], codec)
    assert RecordSections(small, parse_header(small)).held_bytes > 100
