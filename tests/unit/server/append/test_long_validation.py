"""Appends that take long to validate leave the append threads, and end with their caller, or the server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from stratalog.base.errors import (
    FencingTokenMismatchError,
    InvalidRecordError,
    LogStoreError,
    PrecedingAppendFailedError,
    StoppingError,
    UnexpectedOffsetError,
)
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability
from stratalog.log.append import unpacking
from stratalog.log.append.unpacking import BATCH_WORK_BYTES
from stratalog.log.append_info import AppendInfo
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec, decompress
from stratalog.record.record import Record
from stratalog.server.append import long_validation
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.long_validation import SLOW_S, WARNING_PERIOD_S, LongValidations, TurnWork
from stratalog.server.append.partition_writer import (
    GROUP_BYTES,
    PartitionWriter,
    WriterChecks,
    WriterShared,
    WriterThreads,
)
from stratalog.server.append.pending_append import AppendConditions, AppendSession, PendingAppend
from stratalog.server.meters.append_groups import AppendGroups
from stratalog.server.request_memory import RequestMemory
from stratalog.server.turn_threads import TurnThreads
from stratalog.testing.manual_clock import ManualClock
from tests.support.logs.log_machine import LogMachine
from tests.support.logs.plain_batches import with_header
from tests.support.plain_calls import PlainCalls
from tests.support.service.hand_executor import HandExecutor
from tests.support.service.held_writer import SOME_LOG

KIB = 1 << 10
PATIENCE_S = 30.0
TURN_BYTES = 1 << 20


def compressed(size_bytes: int) -> bytes:
    return encode_batch([Record(0, 1, b"k", bytes(size_bytes))], codec=Codec.GZIP)


PLAIN = encode_batch([Record(0, 1, b"k", b"v")])
SHORT = compressed(100)
LONG = compressed(2 * TURN_BYTES)
REDATED = with_header(PLAIN, max_timestamp=0)
"""Has a wrong timestamp in its header, which is corrected."""
DAMAGED = SHORT[:-1] + bytes([SHORT[-1] ^ 1])


@pytest.fixture(autouse=True)
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_validation, "TURN_BYTES", TURN_BYTES)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """Calls beside the next decompressions, one for each."""
    beside: list[Callable[[], object]] = []

    def hooked(codec: Codec, data: Buffer, max_bytes: int) -> Buffer:
        if beside:
            beside.pop(0)()
        return decompress(codec, data, max_bytes)

    monkeypatch.setattr(unpacking, "decompress", hooked)
    yield beside
    assert not beside, "each has taken place"


class Bench:
    """A writer and its log, with the two kinds of threads in the test's hand. Belongs to the test's loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.short, self.long = HandExecutor(), HandExecutor()
        self.clock = ManualClock()
        self.validations = LongValidations(self.clock)
        self.log = LogMachine().start()
        self.memory = RequestMemory(1 << 30)
        self.appends: list[PendingAppend] = []
        self.token = ""
        self.writer = PartitionWriter(
            PlainCalls(self.loop),
            WriterThreads(lambda: self.short, lambda: self.short, lambda: self.long),
            self.log,
            WriterChecks(lambda: 1, None, lambda: self.token),
            CommitWaiters(self.clock, self.loop),
            lambda: None,
            WriterShared(AppendGroups(), self.validations),
        )

    def append(
        self,
        data: Buffer | Callable[[], Buffer],
        session: AppendSession | None = None,
        *,
        expected_offset: int | None = None,
        token: str | None = None,
        size_bytes: int = 1,
    ) -> asyncio.Future[AppendInfo]:
        future: asyncio.Future[AppendInfo] = self.loop.create_future()
        append = PendingAppend(
            batches=data,
            durability=Durability.OS,
            future=future,
            memory=self.memory.lease(size_bytes),
            identity=SOME_LOG,
            session=session,
            conditions=AppendConditions(expected_offset, token),
        )
        self.appends.append(append)
        self.writer.submit(append)
        return future

    def submit(self, data: Buffer) -> None:
        """Submit an append whose result is not used."""
        self.append(data).add_done_callback(lambda future: future.exception())

    async def run_short(self) -> None:
        """Run what waits for append threads and for flushes."""
        self.short.run_all()
        await asyncio.sleep(0)

    async def run_all(self) -> None:
        while self.short.waiting or self.long.waiting:
            self.short.run_all()
            self.long.run_all()
        await asyncio.sleep(0)
        assert self.memory.held_bytes == 0, "whatever became of them"
        self.log.check()

    @property
    def end_offset(self) -> int:
        return self.log.offsets.log_end_offset


def outcomes(futures: Sequence[asyncio.Future[AppendInfo]]) -> list[int | type[BaseException]]:
    """The offset of each, or the class of its failure."""
    found: list[int | type[BaseException]] = []
    for future in futures:
        error = future.exception()
        found.append(future.result().base_offset if error is None else type(error))
    return found


async def test_an_append_that_takes_long_moves_to_other_threads_before_it_is_decompressed(
    unpacked: list[Callable[[], object]],
) -> None:
    bench = Bench()
    future = bench.append(LONG)
    await bench.run_short()
    assert len(bench.long.waiting) == 1
    assert (bench.end_offset, future.done()) == (0, False)
    assert bench.validations.turn_count == 0
    started: list[bool] = []
    unpacked.append(lambda: started.append(bool(bench.short.waiting)))
    await bench.run_all()
    assert started == [False]
    assert (await future).base_offset == 0
    assert bench.validations.turn_count == 1


async def test_what_is_within_the_budget_stays_on_append_threads() -> None:
    bench = Bench()
    futures = [bench.append(data) for data in (PLAIN, SHORT, compressed(TURN_BYTES // 8))]
    await bench.run_short()
    assert outcomes(futures) == [0, 1, 2]
    assert bench.long.waiting == []


async def test_many_small_ones_together_exceed_the_budget_as_one_does() -> None:
    """By what they become, not by the memory that is held for them before."""
    bench = Bench()
    many = [bench.append(SHORT) for _ in range(TURN_BYTES // (64 * KIB) + 10)]
    await bench.run_short()
    assert all(future.done() for future in many)
    large = [bench.append(compressed(TURN_BYTES // 8)) for _ in range(9)]
    await bench.run_short()
    assert len(bench.long.waiting) == 1
    assert not any(future.done() for future in large)
    await bench.run_all()
    assert outcomes(large) == list(range(len(many), len(many) + 9))


@pytest.mark.parametrize("batch", [SHORT, REDATED], ids=["compressed", "redated"])
async def test_many_small_batches_of_a_request_exceed_the_budget_by_their_number(
    batch: bytes, unpacked: list[Callable[[], object]]
) -> None:
    """Each takes time, however little it becomes: also a plain one that the kernel leaves to us."""
    most = TURN_BYTES // BATCH_WORK_BYTES
    bench = Bench()
    within = bench.append(batch * (most // 2))
    await bench.run_short()
    assert outcomes([within]) == [0]
    unpacked.append(lambda: pytest.fail("nothing is decompressed here"))
    beyond = bench.append(batch * (most + 1))
    await bench.run_short()
    unpacked.clear()
    assert (len(bench.long.waiting), beyond.done()) == (1, False)
    await bench.run_all()
    assert outcomes([beyond]) == [most // 2]


async def test_the_order_sessions_and_conditions_are_those_of_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The outcomes are compared with those of a writer that never puts anything back."""

    async def run() -> tuple[list[int | type[BaseException]], int]:
        bench = Bench()
        first, second = AppendSession(), AppendSession()
        futures = [
            bench.append(SHORT, first),
            bench.append(SHORT, second),
            bench.append(PLAIN, expected_offset=2),
            bench.append(DAMAGED, second),
            bench.append(LONG, first),
            bench.append(SHORT, second),
            bench.append(PLAIN, expected_offset=3),
            bench.append(PLAIN, expected_offset=4),
            bench.append(PLAIN, first),
        ]
        bench.short.run_all()
        futures += [bench.append(PLAIN, second), bench.append(PLAIN, first)]
        await bench.run_all()
        return outcomes(futures), bench.validations.turn_count

    found, turn_count = await run()
    assert turn_count == 1
    monkeypatch.setattr(long_validation, "TURN_BYTES", 1 << 40)
    assert (found, 0) == await run()
    assert found == [
        0,
        1,
        2,
        InvalidRecordError,
        3,
        PrecedingAppendFailedError,
        UnexpectedOffsetError,
        4,
        5,
        PrecedingAppendFailedError,
        6,
    ]


async def test_what_comes_during_the_turn_is_behind_what_is_put_back(
    unpacked: list[Callable[[], object]],
) -> None:
    bench = Bench()
    late: list[asyncio.Future[AppendInfo]] = []
    futures = [bench.append(SHORT), bench.append(LONG)]
    unpacked.append(lambda: late.append(bench.append(PLAIN)))
    await bench.run_all()
    assert outcomes([*futures, *late]) == [0, 1, 2]


async def test_groups_before_the_long_one_are_answered_at_once() -> None:
    bench = Bench()
    first = bench.append(SHORT, size_bytes=GROUP_BYTES)
    others = [bench.append(LONG, size_bytes=GROUP_BYTES), bench.append(PLAIN)]
    await bench.run_short()
    assert outcomes([first]) == [0]
    assert not any(future.done() for future in others)
    await bench.run_all()
    assert outcomes(others) == [1, 2]


async def test_a_busy_producer_stays_on_the_threads_until_a_turn_is_short(
    unpacked: list[Callable[[], object]],
) -> None:
    bench = Bench()
    counted: list[int] = []
    first = bench.append(LONG)
    bench.short.run_all()
    unpacked += [lambda: counted.append(1)]
    bench.long.run_one()
    second = bench.append(LONG)
    assert (len(bench.short.waiting), len(bench.long.waiting)) == (0, 1)
    unpacked += [lambda: counted.append(2)]
    bench.long.run_one()
    third = bench.append(SHORT)
    assert (len(bench.short.waiting), len(bench.long.waiting)) == (0, 1)
    bench.long.run_one()
    fourth = bench.append(SHORT)
    assert (len(bench.short.waiting), len(bench.long.waiting)) == (1, 0)
    await bench.run_all()
    assert outcomes([first, second, third, fourth]) == [0, 1, 2, 3]
    assert counted == [1, 2], "each was decompressed once"


async def test_a_long_turn_gives_its_thread_back_behind_each_long_group() -> None:
    bench = Bench()
    futures = [bench.append(LONG, size_bytes=GROUP_BYTES) for _ in range(3)]
    bench.short.run_all()
    for count in range(1, 4):
        bench.long.run_one()
        await asyncio.sleep(0)
        assert [future.done() for future in futures] == [True] * count + [False] * (3 - count)
    assert bench.validations.turn_count == 3
    assert outcomes(futures) == [0, 1, 2]


async def test_a_caller_that_leaves_ends_the_validation_between_two_batches(
    unpacked: list[Callable[[], object]],
) -> None:
    bench = Bench()
    left = bench.append(LONG + LONG + LONG)
    stayed = bench.append(PLAIN)
    bench.short.run_all()
    unpacked += [left.cancel]
    bench.long.run_one()
    await bench.run_all()
    assert left.cancelled()
    assert (await stayed).base_offset == 0
    assert bench.appends[0].memory.unpacked_bytes < 3 * TURN_BYTES, "one batch"


async def test_a_caller_that_has_left_before_its_turn_costs_no_decompression() -> None:
    bench = Bench()
    left = bench.append(SHORT)
    left.cancel()
    await bench.run_all()
    assert bench.appends[0].memory.unpacked_bytes == 0
    assert bench.end_offset == 0


async def test_a_session_that_fails_meanwhile_ends_the_validation(
    unpacked: list[Callable[[], object]],
) -> None:
    """A flush of its earlier appends may fail beside it."""
    bench = Bench()
    session = AppendSession()
    future = bench.append(LONG + LONG, session)
    bench.short.run_all()
    unpacked.append(lambda: session.fail(OSError("a flush")))
    await bench.run_all()
    assert outcomes([future]) == [PrecedingAppendFailedError]
    assert bench.end_offset == 0


async def test_a_server_that_stops_ends_the_validation_between_two_batches(
    unpacked: list[Callable[[], object]],
) -> None:
    bench = Bench()
    session = AppendSession()
    ended = [bench.append(LONG + LONG, session), bench.append(PLAIN, session)]
    other = bench.append(PLAIN)
    bench.short.run_all()
    unpacked.append(bench.validations.end)
    await bench.run_all()
    assert outcomes([*ended, other]) == [StoppingError, PrecedingAppendFailedError, 0]


async def test_what_was_put_back_is_refused_unwritten_once_the_threads_are_closed() -> None:
    bench = Bench()
    session = AppendSession()
    written = bench.append(SHORT, session, size_bytes=GROUP_BYTES)
    refused = [bench.append(LONG, session), bench.append(PLAIN)]
    bench.long.is_closed = True
    await bench.run_all()
    assert outcomes([written, *refused]) == [0, StoppingError, StoppingError]
    assert session.is_broken
    assert bench.end_offset == 1
    bench.long.is_closed = False
    later = bench.append(PLAIN)
    await bench.run_all()
    assert outcomes([later]) == [1]


async def test_a_quota_counts_once_what_is_validated_twice() -> None:
    bench = Bench()
    bench.submit(SHORT + LONG)
    await bench.run_all()
    alone = Bench()
    alone.submit(LONG)
    alone.submit(SHORT)
    await alone.run_all()
    assert bench.appends[0].memory.unpacked_bytes == sum(one.memory.unpacked_bytes for one in alone.appends)


async def test_plain_records_are_encoded_once_and_keep_their_failure() -> None:
    bench = Bench()
    encoded: list[int] = []

    def encode() -> bytes:
        encoded.append(1)
        return PLAIN

    def fail() -> bytes:
        raise InvalidRecordError("cannot be encoded")

    futures = [bench.append(encode), bench.append(fail), bench.append(LONG)]
    await bench.run_all()
    assert outcomes(futures) == [0, InvalidRecordError, 1]
    failure = futures[1].exception()
    assert isinstance(failure, LogStoreError)
    assert failure.message == "cannot be encoded"
    assert encoded == [1]


async def test_a_token_that_changes_meanwhile_refuses_what_was_put_back() -> None:
    bench = Bench()
    bench.token = "a"
    former = bench.append(LONG, token="a")
    bench.short.run_all()
    bench.token = "b"
    settled = asyncio.ensure_future(bench.writer.settled())
    await asyncio.sleep(0)
    await bench.run_all()
    assert await settled == 0
    assert outcomes([former]) == [FencingTokenMismatchError]


async def test_the_log_names_a_topic_whose_appends_take_long_once_a_minute(
    unpacked: list[Callable[[], object]], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()

    def pass_ms(milliseconds: float) -> Callable[[], object]:
        return lambda: bench.clock.advance(int(milliseconds))

    async def lines(milliseconds: float) -> list[str]:
        caplog.clear()
        bench.submit(LONG)
        if bench.short.waiting:
            bench.short.run_all()
        unpacked.append(pass_ms(milliseconds))
        await bench.run_all()
        return [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]

    assert await lines(SLOW_S * 1000) == []
    (line,) = await lines(SLOW_S * 1000 + 500)
    assert f"an append to {SOME_LOG.topic_partition} " in line
    assert "1.5 s" in line
    assert await lines(WARNING_PERIOD_S * 1000 - 1) == []
    assert len(await lines(SLOW_S * 1000 + 1)) == 1


async def test_long_validation_does_not_look_like_a_disk_that_hangs() -> None:
    bench = Bench()
    bench.submit(LONG)
    work, threads = TurnWork(bench.validations), TurnThreads(1, "test", bench.clock)
    stepped, may_end = threading.Event(), threading.Event()

    def validate() -> None:
        work.begin(has_budget=False)
        for _ in range(3):
            bench.clock.advance(40_000)
            work.add(bench.appends[0], 1)
        stepped.set()
        may_end.wait(PATIENCE_S)

    threads.submit(validate)
    try:
        assert await asyncio.to_thread(stepped.wait, PATIENCE_S)
        assert threads.oldest_task_s() == 0
        # A write may hang behind the last step.
        bench.clock.advance(1_000)
        assert threads.oldest_task_s() == 1
    finally:
        may_end.set()
        threads.shutdown()
    await bench.run_all()
