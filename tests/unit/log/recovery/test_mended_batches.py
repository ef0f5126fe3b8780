"""Faults in a producer's batch that the log mends instead of refusing it."""

from __future__ import annotations

from typing import Any

import lz4.frame  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]  # has no types
import pytest

from stratalog.log.append.log_validator import validate_append, validate_replica
from stratalog.log.log_config import LogConfig
from stratalog.record.batch import records_payload, verify
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import (
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    TimestampType,
    parse_header,
)
from tests.support.decoded_records import decode_all
from tests.support.logs.log_machine import LogMachine
from tests.support.logs.plain_batches import timed_batch, with_header, with_section

LZ4: Any = lz4.frame
CONFIG = LogConfig()
APPEND_TIME = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
NOW_MS = 1_000_000
LATEST_MS = 5000
FLAGS_POSITION = HEADER_SIZE + 4
INDEPENDENT = 0x20


def some(codec: Codec = Codec.NONE, count: int = 3) -> bytes:
    times = [1000, LATEST_MS, *[2000] * (count - 2)]
    return timed_batch(times, value_bytes=50, codec=codec)


def misdated(data: bytes, max_timestamp: int) -> bytes:
    return with_header(data, max_timestamp=max_timestamp)


def stored(request: bytes, config: LogConfig = CONFIG, append_time_ms: int | None = None) -> bytes:
    parts, _ = validate_append(request, config, NOW_MS).stamp(0, -1, append_time_ms)
    return b"".join(parts)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("wrong", [-1, 0, LATEST_MS - 1, LATEST_MS + 1, 2**63 - 1])
def test_the_highest_timestamp_is_that_of_the_records(codec: Codec, wrong: int) -> None:
    right = some(codec)
    sound = with_header(right, base_offset=3)
    assert stored(misdated(right, wrong) + right) == right + sound
    validated = validate_append(misdated(right, wrong), CONFIG, NOW_MS)
    assert (validated.max_timestamp_ms, parse_header(validated.buffer).max_timestamp) == (
        LATEST_MS,
        LATEST_MS,
    )
    # One that another log has is taken as it is: neither mended nor refused.
    parts, _ = validate_replica(misdated(right, wrong), 0).verbatim()
    assert b"".join(parts) == misdated(right, wrong)


def test_a_wrong_highest_timestamp_is_right_in_another_codec_too() -> None:
    data = stored(misdated(some(), 7), LogConfig.from_overrides({"compression.type": "zstd"}))
    header = parse_header(data)
    assert (header.codec, header.max_timestamp) == (Codec.ZSTD, LATEST_MS)
    verify(data, 0, header)


def test_append_time_takes_the_place_of_a_wrong_highest_timestamp() -> None:
    data = stored(misdated(some(), 7), APPEND_TIME, 777)
    header = parse_header(data)
    assert (header.max_timestamp, header.attributes) == (777, TIMESTAMP_TYPE_BIT)
    verify(data, 0, header)
    log = LogMachine(config=APPEND_TIME).start()
    log.appender.append_as_leader(misdated(some(), 7), 1)
    log.check()


def test_times_are_found_by_what_the_records_say() -> None:
    log = LogMachine(config=CONFIG).start()
    log.appender.append_as_leader(misdated(some(), 7), 1)
    found = log.reader.offset_for_timestamp(LATEST_MS)
    assert found is not None
    assert found.offset == 1
    log.check()


FRAMES: dict[str, dict[str, object]] = {
    "python-lz4's default": {},
    "small blocks": {"block_size": LZ4.BLOCKSIZE_MAX64KB},
    "checksums": {"content_checksum": True, "block_checksum": True},
}


@pytest.mark.parametrize("options", FRAMES.values(), ids=FRAMES.keys())
def test_lz4_blocks_that_refer_to_each_other_are_written_anew(options: dict[str, Any]) -> None:
    plain = some(count=5000)
    payload = plain[HEADER_SIZE:]
    request = with_section(plain, LZ4.compress(payload, **options), attributes=Codec.LZ4)
    assert not request[FLAGS_POSITION] & INDEPENDENT
    assert len(payload) > 2 * 64 * 1024
    data = stored(request)
    header = parse_header(data)
    assert data[FLAGS_POSITION] & INDEPENDENT
    assert bytes(records_payload(data, 0, header)) == payload
    sent = parse_header(request)
    assert header == sent._replace(crc=header.crc, batch_length=header.batch_length)
    verify(data, 0, header)
    # What is stored somewhere already stays as it is, and is read.
    parts, _ = validate_replica(request, 0).verbatim()
    assert b"".join(parts) == request
    assert decode_all(request) == decode_all(plain)


@pytest.mark.parametrize("options", FRAMES.values(), ids=FRAMES.keys())
def test_lz4_blocks_that_stand_alone_stay_as_they_are(options: dict[str, Any]) -> None:
    section = LZ4.compress(some()[HEADER_SIZE:], block_linked=False, **options)
    request = with_section(some(), section, attributes=Codec.LZ4)
    assert stored(request) == request
