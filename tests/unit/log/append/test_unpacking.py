"""Compressed batches become as large as their bounds and the memory of requests allow, and no larger."""

from __future__ import annotations

import dataclasses
import gzip
import threading
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
import zstandard

from stratalog.base.errors import OverloadedError, RecordTooLargeError, StoppingError
from stratalog.log.append import unpacking
from stratalog.log.append.log_validator import validate_append
from stratalog.log.append.unpacking import (
    BATCH_WORK_BYTES,
    LEAST_STEP_BYTES,
    STEP_FACTOR,
    UNLIMITED,
    LongWorkError,
    UnpackingRoom,
)
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import (
    LEAST_SENT_BYTES,
    MAX_REQUEST_BYTES,
    MAX_SENT_BYTES,
    MAX_SENT_FACTOR,
    Codec,
    compression_work_bytes,
    expected_bytes,
)
from stratalog.record.header import HEADER_SIZE
from stratalog.record.record import Record
from tests.support.logs.log_machine import LogMachine
from tests.support.logs.plain_batches import with_header, with_section

CONFIG = LogConfig()
NOW_MS = 1_000_000
MIB = 1 << 20


class Account:
    """Memory of a size, and what was held of it, counted and asked for."""

    def __init__(self, size_bytes: int = MAX_SENT_BYTES) -> None:
        self.size_bytes = size_bytes
        self.held: list[int] = []
        self.counted: list[int] = []
        self.asked: list[int] = []
        self.at_asking: dict[int, Callable[[], object]] = {}
        """Calls when it is asked that many times; each may raise."""

    def work(self, size_bytes: int) -> None:
        self.asked.append(size_bytes)
        self.at_asking.get(len(self.asked), lambda: None)()

    def hold(self, size_bytes: int) -> None:
        if size_bytes > self.size_bytes:
            raise OverloadedError("no memory", size_bytes=size_bytes)
        self.held.append(size_bytes)

    def count(self, size_bytes: int) -> None:
        self.counted.append(size_bytes)


def zeros(size_bytes: int, codec: Codec = Codec.ZSTD) -> bytes:
    return encode_batch([Record(0, 1, b"k", bytes(size_bytes))], codec=codec)


def recompressed(batch: bytes, section: bytes, codec: Codec) -> bytes:
    """A plain batch with its records compressed to these bytes."""
    return with_header(with_section(batch, section), attributes=codec)


def without_size(plain: bytes) -> bytes:
    """A batch in zstd whose frame does not say how large it is, as Java's clients send it."""
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    return recompressed(plain, compressor.compress(plain[HEADER_SIZE:]), Codec.ZSTD)


def peak_bytes_of_refusal(request: bytes, config: LogConfig = CONFIG) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(RecordTooLargeError):
            validate_append(request, config, NOW_MS)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_frame_that_says_too_much_is_refused_before_it_is_unpacked() -> None:
    bomb = zeros(100 * MIB)
    assert len(bomb) < 10_000
    assert peak_bytes_of_refusal(bomb) < MIB // 2


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_frame_that_does_not_say_its_size_is_refused_at_the_bound(codec: str) -> None:
    plain = zeros(80 * MIB, Codec.NONE)
    if codec == "gzip":
        bomb = recompressed(plain, gzip.compress(plain[HEADER_SIZE:], 6), Codec.GZIP)
    else:
        bomb = without_size(plain)
    del plain
    # A piece of zstd may exceed the bound by 32 MiB, and zlib joins blocks in the end.
    assert peak_bytes_of_refusal(bomb) < LEAST_SENT_BYTES + 40 * MIB


def test_small_batches_together_become_a_hundred_times_their_size_at_most() -> None:
    batch = zeros(3 * MIB)
    with pytest.raises(RecordTooLargeError) as refused:
        validate_append(batch * 300, CONFIG, NOW_MS)
    sent_bytes = len(batch) * 300
    room_bytes = max(LEAST_SENT_BYTES, MAX_SENT_FACTOR * sent_bytes)
    assert refused.value.fields["batch_index"] == room_bytes // (3 * MIB)


def test_what_may_be_sent_plain_may_be_sent_compressed() -> None:
    batch = zeros(LEAST_SENT_BYTES + MIB)
    with pytest.raises(RecordTooLargeError):
        validate_append(batch, CONFIG, NOW_MS)
    config = LogConfig(max_message_bytes=LEAST_SENT_BYTES + 2 * MIB)
    assert validate_append(batch, config, NOW_MS).offset_count == 1


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_memory_is_held_before_a_batch_is_unpacked_and_given_back(codec: Codec) -> None:
    account = Account()
    plain_bytes = len(zeros(8 * MIB, Codec.NONE)) - HEADER_SIZE
    validate_append(zeros(8 * MIB, codec) + zeros(10, Codec.NONE), CONFIG, NOW_MS, account)
    *steps, released = account.held
    assert released == 0
    assert steps[-1] >= plain_bytes
    assert account.counted[-1] == plain_bytes
    if codec is Codec.ZSTD:
        assert (steps, account.counted) == ([plain_bytes], [plain_bytes])


def test_memory_grows_in_steps_where_the_size_is_unknown() -> None:
    plain = zeros(8 * MIB, Codec.NONE)
    request = without_size(plain)
    first_bytes = expected_bytes(Codec.ZSTD, request[HEADER_SIZE:])
    account = Account()
    validate_append(request, CONFIG, NOW_MS, account)
    *steps, released = account.held
    assert steps[0] == first_bytes
    assert all(later == STEP_FACTOR * earlier for earlier, later in pairwise(steps))
    assert steps[-2] < len(plain) <= steps[-1] + HEADER_SIZE
    assert account.counted == [len(plain) - HEADER_SIZE], "not what it took to find out"
    assert released == 0


def test_a_batch_that_finds_no_memory_is_refused_alone_and_may_come_again() -> None:
    log = LogMachine(config=CONFIG).start()
    accounts = [Account(), Account(4 * MIB), Account()]
    requests = [zeros(10), zeros(8 * MIB), zeros(10)]
    outcomes = log.appender.append_group(requests, 1, unpackings=accounts)
    assert [type(outcome) for outcome in outcomes] == [AppendInfo, OverloadedError, AppendInfo]
    assert [account.held[-1] for account in accounts] == [0, 0, 0]
    assert accounts[1].counted == []


def test_a_frame_of_one_byte_does_not_make_many_steps() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=True)
    section = compressor.compress(b"x") + compressor.compress(bytes(MIB))
    account = Account()
    UnpackingRoom(len(section), CONFIG, account).unpack(Codec.ZSTD, section, 2 * MIB)
    assert account.held == [LEAST_STEP_BYTES * STEP_FACTOR**number for number in range(3)] + [2 * MIB]


@pytest.mark.timeout(60)
def test_a_frame_that_says_it_is_empty_before_one_that_is_not_ends_the_steps() -> None:
    """Any number of times nothing is nothing: the steps would never have reached the second frame."""
    compressor = zstandard.ZstdCompressor(write_content_size=True)
    section = compressor.compress(b"") + compressor.compress(bytes(MIB))
    account = Account()
    room = UnpackingRoom(len(section), CONFIG, account)
    assert room.unpack(Codec.ZSTD, section, 2 * MIB) == bytes(MIB)
    assert account.counted == [MIB]
    room.close()
    assert account.held[-1] == 0


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_work_is_asked_for_all_batches_first_then_before_each_try_and_behind_each_batch() -> None:
    plain = zeros(8 * MIB, Codec.NONE)
    account = Account()
    validate_append(without_size(plain) + zeros(10), CONFIG, NOW_MS, account)
    *steps, released = account.held
    first, second = steps[:-1], steps[-1]
    assert released == 0
    assert account.asked == [BATCH_WORK_BYTES, BATCH_WORK_BYTES, *first, 0, second, 0]


def test_a_plain_request_asks_for_nothing() -> None:
    account = Account()
    validate_append(zeros(10, Codec.NONE) * 3, CONFIG, NOW_MS, account)
    assert account.asked == account.held == []


@pytest.mark.parametrize(("level", "factor"), [(1, 2), (22, 128)])
def test_work_is_asked_for_before_a_batch_gets_the_codec_of_the_topic(level: int, factor: int) -> None:
    config = LogConfig.from_overrides({"compression.type": "zstd", "compression.zstd.level": str(level)})
    plain = zeros(100_000, Codec.NONE)
    account = Account()
    validate_append(plain, config, NOW_MS, account)
    assert account.asked == [BATCH_WORK_BYTES, factor * (len(plain) - HEADER_SIZE), 0]
    account.at_asking = {5: raising(StoppingError("the test ends it"))}
    with pytest.raises(StoppingError):
        validate_append(plain, config, NOW_MS, account)


def test_work_that_is_too_long_here_is_no_outcome_and_leaves_nothing_behind() -> None:
    log = LogMachine(config=CONFIG).start()
    accounts = [Account(), Account()]
    accounts[1].at_asking = {6: raising(LongWorkError())}
    requests = [zeros(10), zeros(10) * 3]
    with pytest.raises(LongWorkError):
        log.appender.append_group(requests, 1, unpackings=accounts)
    assert log.offsets.log_end_offset == 0
    assert [account.held[-1] for account in accounts] == [0, 0]
    log.appender.append_group(requests, 1)
    assert log.offsets.log_end_offset == 4
    log.check()


def test_a_request_may_end_between_its_batches_and_the_others_are_stored() -> None:
    log = LogMachine(config=CONFIG).start()
    accounts = [Account(), Account(), Account()]
    accounts[1].at_asking = {6: raising(StoppingError("the caller has left"))}
    outcomes = log.appender.append_group([zeros(10) * 3] * 3, 1, unpackings=accounts)
    assert [type(outcome) for outcome in outcomes] == [AppendInfo, StoppingError, AppendInfo]
    assert len(accounts[1].counted) == 1, "the second batch was not decompressed"
    assert log.offsets.log_end_offset == 6


def test_a_configuration_that_changes_meanwhile_has_the_request_validated_anew_without_the_lock() -> None:
    log = LogMachine(config=CONFIG).start()
    account = Account()
    found_free: list[bool] = []

    def try_lock() -> None:
        found_free.append(log.lock.acquire(blocking=False))
        if found_free[-1]:
            log.lock.release()

    def look_at_lock() -> None:
        looking = threading.Thread(target=try_lock)
        looking.start()
        looking.join()

    smaller = dataclasses.replace(CONFIG, max_message_bytes=50)
    # A batch has three questions.
    account.at_asking = {3: lambda: log.reconfigure(smaller), 4: look_at_lock}
    (outcome,) = log.appender.append_group([zeros(100)], 1, unpackings=[account])
    assert isinstance(outcome, RecordTooLargeError)
    larger = dataclasses.replace(CONFIG, max_message_bytes=LEAST_SENT_BYTES)
    log.reconfigure(CONFIG)
    account.asked.clear()
    account.at_asking = {3: lambda: log.reconfigure(larger), 4: look_at_lock}
    (outcome,) = log.appender.append_group([zeros(100)], 1, unpackings=[account])
    assert isinstance(outcome, AppendInfo)
    assert len(account.asked) == 6, "twice"
    assert found_free == [True, True]


def test_an_equal_configuration_that_comes_meanwhile_has_nothing_validated_anew() -> None:
    """Each look at the catalog brings one, while another log of the topic misses a change."""
    log = LogMachine(config=CONFIG).start()
    account = Account()
    for number in range(1, 100):
        account.at_asking[number] = lambda: log.reconfigure(dataclasses.replace(CONFIG))
    (outcome,) = log.appender.append_group([zeros(100)], 1, unpackings=[account])
    assert isinstance(outcome, AppendInfo)
    assert len(account.asked) == 3, "once"


def test_the_batches_of_a_request_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert UnpackingRoom(MAX_REQUEST_BYTES, CONFIG, UNLIMITED).room_bytes == MAX_REQUEST_BYTES
    monkeypatch.setattr(unpacking, "MAX_REQUEST_BYTES", 5 * MIB)
    with pytest.raises(RecordTooLargeError) as refused:
        validate_append(zeros(2 * MIB) * 3, CONFIG, NOW_MS)
    assert refused.value.fields["batch_index"] == 2
    assert "the batches of the request" in refused.value.message
    assert validate_append(zeros(2 * MIB) * 2, CONFIG, NOW_MS).offset_count == 2


def test_every_level_has_its_work() -> None:
    levels = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-(1 << 17), 22)}
    for codec, (lowest, highest) in levels.items():
        least, most = (compression_work_bytes(codec, 100, level) for level in (lowest, highest))
        assert 100 <= least <= compression_work_bytes(codec, 100) < most
    assert compression_work_bytes(Codec.SNAPPY, 100) == 100
    assert compression_work_bytes(Codec.NONE, 100) == 0
