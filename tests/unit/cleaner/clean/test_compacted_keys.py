"""Keys, values, offsets and times at their limits, and leader epochs: what cleans leave of them."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.log.isolation import Isolation
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import NO_TIMESTAMP, TimestampType
from stratalog.record.record import Record
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_consumer import Consumer
from tests.support.logs.log_ledger import read_local

WIDE = dataclasses.replace(CONFIG, segment_bytes=1 << 24)
SMALL = dataclasses.replace(CONFIG, segment_bytes=300)
RETENTION_MS = CONFIG.delete_retention_ms
RECORD_BITS = 31
"""A segment's offsets are within 2 to the power of this."""


def pairs(history: CompactedLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in history.read()]


def test_an_empty_key_is_a_key_and_an_empty_value_is_a_value() -> None:
    history = CompactedLog(WIDE)
    history.put("=1", "a=")
    history.put("=", "a=x")
    history.put("b=x", "b=")
    history.clean_all()
    history.machine.clock.advance(10 * RETENTION_MS)
    history.put("z=z")
    history.clean_all()
    assert pairs(history) == [(2, b"", b""), (3, b"a", b"x"), (5, b"b", b""), (6, b"z", b"z")]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("timestamp_type", TimestampType)
def test_what_is_kept_is_kept_whole_in_every_codec(codec: Codec, timestamp_type: TimestampType) -> None:
    history = CompactedLog(dataclasses.replace(WIDE, message_timestamp_type=timestamp_type))
    headers = (("name", b"value"), ("name", b""), ("", None), ("ü", bytes(300)))
    for number in range(4):
        history.append(
            [
                Record(
                    0, history.now_ms - 500 * number, b"k%d" % (key % 5), b"%d-%d" % (number, key), headers
                )
                for key in range(number, 10)
            ],
            codec=codec,
        )
        history.machine.clock.advance(1000)
    history.put("k0", codec=codec)
    history.clean_all()
    assert history.read() == history.final_records()
    kept = {header.codec for header in history.headers() if header.records_count > 0}
    assert kept == {codec}
    types = {header.timestamp_type for header in history.headers() if header.records_count > 0}
    assert types == {timestamp_type}
    history.machine.clock.advance(RETENTION_MS + 1)
    history.put("z=z", codec=codec)
    history.clean_all()
    assert history.read() == [one for one in history.final_records() if one.value is not None]


@pytest.mark.parametrize("codec", Codec)
def test_keys_and_values_may_be_larger_than_the_cleaner_s_buffer(codec: Codec) -> None:
    history = CompactedLog(WIDE)
    chance = history.chance
    large = [chance.randbytes(300_000) for _ in range(3)]
    for number in range(3):
        for key in (large[0], large[0][:-1] + b"x", b"small"):
            value = large[(number + 1) % 3] if key != b"small" else b"%d" % number
            history.append([Record(0, history.now_ms, key, value)], codec=codec)
    history.append(
        [Record(0, history.now_ms, large[1], b"") for _ in range(2)]
        + [Record(0, history.now_ms, b"t", None)],
        codec=codec,
    )
    history.clean_all()
    assert history.read() == history.final_records()


def test_a_batch_larger_than_max_message_bytes_was_lowered_to_is_cleaned() -> None:
    history = CompactedLog(WIDE)
    history.append([Record(0, history.now_ms, b"large", bytes(100_000))] * 3)
    history.log.reconfigure(dataclasses.replace(WIDE, max_message_bytes=1000))
    history.put("a=1")
    history.clean_all()
    assert history.read() == history.final_records()


def test_offsets_may_be_farther_apart_than_a_segment_reaches() -> None:
    history = CompactedLog(WIDE)
    far = 1 << RECORD_BITS
    offsets = [0, far - 4, far, 3 * far + 5, 1 << 40, (1 << 62) + 1, (1 << 62) + far]
    for number, offset in enumerate(offsets):
        for delta, key in enumerate((b"same", b"k%d" % number)):
            record = Record(offset + delta * 2, history.now_ms, key, b"%d" % number)
            history.log.appender.append_as_follower(
                encode_batch([record], base_offset=record.offset, leader_epoch=1)
            )
    before = read_local(history.log)
    history.clean_all()
    expected = [one for one in before if one.key != b"same" or one is before[-2]]
    assert read_local(history.log) == expected
    ends = [far + 1, (1 << 40) - 1, 1 << 61, (1 << 62) + 2]
    for offset in ends:
        consumer = Consumer(history.log, offset, Isolation.LOG_END)
        while not consumer.records:
            consumer.poll()
        assert consumer.records[0] == next(one for one in expected if one.offset >= offset)
    history.restart(is_clean=False)
    assert read_local(history.log) == expected


def test_a_leader_epoch_ends_where_it_did() -> None:
    """Though none of its records is left, nor any segment that began with it."""
    history = CompactedLog(SMALL)
    ends: dict[int, int] = {}
    for epoch in range(1, 12):
        history.leader_epoch = 2 * epoch
        for number in range(epoch % 3 + 1):
            history.put(f"k{number}={epoch}")
        ends[2 * epoch] = history.log.offsets.log_end_offset
    expected = {epoch: history.log.end_offset_for(epoch) for epoch in range(26)}
    for epoch, end_offset in ends.items():
        found = expected[epoch]
        assert found is not None
        assert (found.epoch, found.end_offset) == (epoch, end_offset)
    history.log.roll()
    assert history.clean() is not None
    assert {epoch: history.log.end_offset_for(epoch) for epoch in range(26)} == expected
    for is_clean in (True, False):
        history.restart(is_clean=is_clean)
        assert {epoch: history.log.end_offset_for(epoch) for epoch in range(26)} == expected


def test_without_times_in_its_records_a_segment_is_as_old_as_its_file() -> None:
    history = CompactedLog(dataclasses.replace(SMALL, min_compaction_lag_ms=10_000))
    history.machine.memory.now_ms = history.machine.clock.now_ms
    for number in range(20):
        history.append([Record(0, NO_TIMESTAMP, b"k", b"%d" % number)])
    history.log.roll()
    history.put("z=1")
    history.machine.clock.advance(9_999)
    assert history.clean() is None
    history.restart(is_clean=False)
    assert history.clean() is None
    history.machine.clock.advance(1)
    assert history.clean() is not None
    assert history.read() == history.final_records()


@pytest.mark.parametrize("delete_retention_ms", [0, 1, 2**63 - 1])
def test_times_at_their_limits_stay_what_they_are(delete_retention_ms: int) -> None:
    history = CompactedLog(
        dataclasses.replace(
            SMALL, message_timestamp_after_max_ms=2**63 - 1, delete_retention_ms=delete_retention_ms
        )
    )
    for number, time_ms in enumerate((0, 2**62, 2**63 - 2, 1, NO_TIMESTAMP)):
        history.append(
            [Record(0, time_ms, b"k%d" % number, None), Record(0, min(time_ms, 5), b"o%d" % number, b"v")]
        )
    before = history.read()
    history.clean_all()
    assert history.read() == before
    history.put("z=1")
    history.machine.clock.advance(1)
    history.clean_all()
    values_only = [one for one in before if one.value is not None]
    assert history.read()[:-1] == (before if delete_retention_ms == 2**63 - 1 else values_only)
