"""Records of a range, piece by piece, whatever batches decompress to."""

from __future__ import annotations

import random

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import BatchHeader
from stratalog.record.reading import record_sections
from stratalog.record.reading.record_stream import RecordPiece, record_stream
from stratalog.record.record import Record


@pytest.fixture(autouse=True)
def small_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sections, "WHOLE_BYTES", 500)
    monkeypatch.setattr(record_sections, "PORTION_BYTES", 200)
    monkeypatch.setattr(record_sections, "PORTION_COUNT", 7)
    monkeypatch.setattr(record_sections, "_FILLED_BYTES", 400)


def readable(header: BatchHeader) -> bool:
    return header.leader_epoch != 13


def pieces(data: bytes, start_offset: int, end_offset: int) -> list[RecordPiece]:
    return list(record_stream(data, readable, start_offset, end_offset, lambda _: None))


@pytest.mark.parametrize("seed", range(40))
def test_the_records_of_the_range_and_no_others(seed: int) -> None:
    chance = random.Random(seed)
    data, expected, offset = b"", list[Record](), chance.choice([0, 5])
    epochs: dict[int, int] = {}
    for _ in range(chance.randrange(1, 8)):
        epoch = chance.choice([12, 13, 14])
        values = [
            chance.randbytes(1) * chance.choice([0, 10, 190, 700]) for _ in range(chance.choice([1, 4, 30]))
        ]
        records = [Record(offset + at, 1000, None, value) for at, value in enumerate(values)]
        data += encode_batch(
            records, codec=chance.choice(list(Codec)), base_offset=offset, leader_epoch=epoch
        )
        expected += records if epoch != 13 else []
        epochs |= dict.fromkeys(range(offset, offset + len(records)), epoch)
        offset += len(records) + chance.choice([0, 0, 3])
    for start_offset, end_offset in ((0, offset), (chance.randrange(offset), chance.randrange(offset + 1))):
        found = pieces(data, start_offset, end_offset)
        records = [one for piece in found for one in piece.records]
        assert records == [one for one in expected if start_offset <= one.offset < end_offset]
        before = 0
        for piece in found:
            assert before <= piece.next_offset <= max(end_offset, start_offset)
            assert all(one.offset < piece.next_offset for one in piece.records)
            if piece.records:
                assert piece.leader_epoch == epochs[piece.records[-1].offset]
            before = piece.next_offset


def test_a_batch_outside_the_range_is_not_decompressed() -> None:
    batch = encode_batch([Record(0, 0, None, b"x")] * 3, codec=Codec.ZSTD, base_offset=7)
    assert pieces(batch, 10, 20) == []
    assert pieces(batch, 0, 7) == []
    assert [piece.next_offset for piece in pieces(batch, 9, 10)] == [10, 10]


def test_a_damaged_batch_fails_after_the_records_before_it() -> None:
    sound = encode_batch([Record(0, 0, None, b"x")])
    damaged = bytearray(encode_batch([Record(0, 0, None, b"x")], base_offset=1))
    damaged[-1] ^= 1
    found = record_stream(sound + bytes(damaged), readable, 0, 9, lambda _: None)
    assert [one.offset for one in next(found).records] == [0]
    assert next(found).next_offset == 1
    with pytest.raises(CorruptRecordError):
        next(found)
