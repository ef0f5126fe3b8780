"""Batches that hold much more than they take: cleaned in sections, as one that is whole would be."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from collections.abc import Iterator

import pytest

from stratalog.cleaner.clean.rebuilt_batch import CleanedBatch, clean_records_of, since_offset
from stratalog.record.batch import decode, require_crc
from stratalog.record.builder import encode_batch, rebuild_compressed
from stratalog.record.codecs.compressed_pieces import compress_pieces
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.native.cleaned_batches import CleanRule
from stratalog.record.native.offset_map import OffsetMap
from stratalog.record.reading import record_sections
from stratalog.record.record import Record
from stratalog.record.varint import append_varint
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import limits

MIB = 1024 * 1024
# 64 MiB: eight times what is decompressed as a whole.
LARGE_BYTES, LARGE_COUNT = 64 * 1024, 1024
CODECS = [codec for codec in Codec if codec is not Codec.NONE]
BASE_OFFSET, NOW_MS, HORIZON_MS = 300, 5_000_000, 9_000_000


def random_batch(seed: int, codec: Codec) -> tuple[bytes, OffsetMap]:
    """A batch, and a map of some of its keys as a first pass would have it."""
    chance = random.Random(seed)
    records: list[Record] = []
    for _ in range(chance.choice([1, 5, 60])):
        key = None if chance.random() < 0.1 else b"k%d" % chance.randrange(20)
        value = None if chance.random() < 0.3 else chance.randbytes(1) * chance.choice([1, 50, 300])
        records.append(Record(0, NOW_MS - chance.randrange(10**6), key, value))
    batch = encode_batch(
        records,
        codec=codec,
        base_offset=BASE_OFFSET,
        delete_horizon_ms=chance.choice([None, None, NOW_MS - 5, NOW_MS + 5]),
        append_time_ms=chance.choice([None, None, NOW_MS]),
    )
    offset_map = OffsetMap(bytes(16), 100, 0.9)
    later = [Record(0, NOW_MS, b"k%d" % number, b"") for number in range(20) if chance.random() < 0.4]
    header = parse_header(batch)
    for payload_of in (batch, encode_batch(later, base_offset=1000) if later else batch):
        plain = parse_header(payload_of)
        for section, count in record_sections.RecordSections(payload_of, plain):
            offset_map.put_records(section, count, plain.base_offset, 0, plain.last_offset_delta)
    offset_map.skip_to(chance.choice([2000, 2000, max(offset_map.latest_offset, header.last_offset)]))
    return batch, offset_map


def cleaned(seed: int, codec: Codec) -> CleanedBatch:
    batch, offset_map = random_batch(seed, codec)
    rule = CleanRule(NOW_MS, HORIZON_MS)
    return clean_records_of(batch, parse_header(batch), offset_map, rule, None, lambda _: None)


def contents(batch: bytes) -> tuple[BatchHeader, list[Record]] | None:
    """All but how it was compressed."""
    if not batch:
        return None
    header = parse_header(batch)
    require_crc(batch, 0, header)
    return header._replace(crc=0, batch_length=0), decode(batch)


def in_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("WHOLE_BYTES", 0),
        ("PORTION_BYTES", 200),
        ("PORTION_COUNT", 7),
        ("_FILLED_BYTES", 400),
    ):
        monkeypatch.setattr(record_sections, name, value)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_in_sections_is_cleaned_as_a_whole_one(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [cleaned(seed, codec) for seed in range(20)]
    in_sections(monkeypatch)
    kinds: set[str] = set()
    for seed, expected in enumerate(whole):
        found = cleaned(seed, codec)
        assert contents(bytes(found.batch)) == contents(bytes(expected.batch))
        assert not found.batch or parse_header(found.batch).codec is codec
        assert found.horizon_ms == expected.horizon_ms
        assert found.records._replace(payload=b"") == expected.records._replace(payload=b"")
        kinds.add("none" if not found.batch else "some")
        kinds.add(f"horizon {found.horizon_ms == HORIZON_MS}")
    assert kinds == {"none", "some", "horizon True", "horizon False"}


@pytest.mark.parametrize("codec", CODECS)
def test_what_lies_above_an_offset_is_the_same_in_sections(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        (batch, BASE_OFFSET + delta)
        for seed in range(8)
        for batch in [random_batch(seed, codec)[0]]
        for delta in (0, 1, 4, 30, 59, 60)
    ]
    whole = [since_offset(batch, parse_header(batch), offset, None) for batch, offset in asked]
    in_sections(monkeypatch)
    for (batch, offset), expected in zip(asked, whole, strict=True):
        assert contents(since_offset(batch, parse_header(batch), offset, None)) == contents(expected)


def record(delta: int, key: bytes, value: bytes | None) -> bytes:
    """A record as it is in a batch, without headers and with the batch's time."""
    body = bytearray(b"\0\0")
    append_varint(body, delta)
    append_varint(body, len(key))
    body += key
    append_varint(body, -1 if value is None else len(value))
    body += value or b""
    body += b"\0"
    size = bytearray()
    append_varint(size, len(body))
    return bytes(size + body)


def large_batch(codec: Codec, value_bytes: int, count: int, now_ms: int, base_offset: int = 0) -> bytes:
    """A batch of so many values, and a tombstone behind them."""
    value = bytes(value_bytes)

    def pieces() -> Iterator[bytes]:
        for delta in range(count):
            yield record(delta, b"k%d" % delta, value)
        yield record(count, b"gone", None)

    header = parse_header(encode_batch([Record(0, now_ms, b"k", b"v")], codec=codec, base_offset=base_offset))
    return rebuild_compressed(
        header._replace(last_offset_delta=count, leader_epoch=1),
        compress_pieces(codec, pieces(), sum(map(len, pieces()))),
        records_count=count + 1,
        max_timestamp=now_ms,
    )


def clean_of(codec: Codec, value_bytes: int, count: int) -> Cleaned:
    made = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1 << 30))
    made.put((b"before", b"1"), (b"before", b"2"))
    made.log.appender.append_as_follower(
        large_batch(codec, value_bytes, count, made.machine.clock.now_ms(), 2)
    )
    made.put((b"k0", b"later"), (b"behind", b"1"))
    made.put((b"behind", b"2"))
    return made


@pytest.mark.parametrize("codec", CODECS)
def test_a_clean_takes_little_memory_whatever_a_batch_holds(codec: Codec) -> None:
    made = clean_of(codec, LARGE_BYTES, LARGE_COUNT)
    tracemalloc.start()
    try:
        made.clean(limits(2 * LARGE_COUNT))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 32 * MIB
    large = made.headers()[1]
    # All but the key that a later record has; with a time for the tombstone.
    assert (large.base_offset, large.records_count, large.codec) == (2, LARGE_COUNT, codec)
    assert large.delete_horizon_ms is not None
    assert [key for _, key, _ in made.left()] == [
        b"before",
        *(b"k%d" % number for number in range(1, LARGE_COUNT)),
        b"gone",
        b"k0",
        b"behind",
    ]


def test_a_map_that_is_full_inside_of_a_large_batch_ends_the_clean_there() -> None:
    made = clean_of(Codec.LZ4, LARGE_BYTES, LARGE_COUNT)
    room = LARGE_COUNT // 3
    made.clean(limits(room))
    assert 0.8 * room < made.end_offset < 1.2 * room
    expected = made.left()
    while made.end_offset < made.log.local_log.segments.active.base_offset:
        made.clean(limits(room))
    assert [key for _, key, _ in expected].count(b"k0") == 2
    assert [key for _, key, _ in made.left()].count(b"k0") == 1
    assert len(made.left()) == LARGE_COUNT + 3
