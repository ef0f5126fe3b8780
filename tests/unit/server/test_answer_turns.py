"""Large answers take turns on the event loop: in order, apart from each other, and behind small appends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

import pytest

from stratalog.cleaner.throttler import Throttler
from stratalog.server.answer_turns import (
    LARGE_BYTES,
    LONGEST_PAUSE_S,
    MAX_WAIT_S,
    PASS_COUNT,
    READ_BYTES,
    S_PER_MIB,
    TURN_BYTES,
    AnswerTurns,
)
from stratalog.testing.manual_clock import ManualClock

MIB = 1 << 20
READ_COUNT = 5


class Append(NamedTuple):
    """An append that has come."""

    answered: asyncio.Future[None]


class World:
    """Turns, the time of their loop, and what happened in order."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.throttler = Throttler(self.clock)
        self.turns = AnswerTurns(READ_COUNT, self.throttler)
        self.now_s = 100.0
        self.events: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def answer(self, name: str, size_bytes: int = MIB, count: int = 1, *, is_tiered: bool = False) -> None:
        """A reader that gets so many answers."""

        async def read() -> None:
            for _ in range(count):
                await self.turns.take(size_bytes, size_bytes if is_tiered else 0)
                self.turns.check()
                self.events.append(name)

        self.tasks.append(asyncio.create_task(read()))

    async def read(self) -> None:
        """A read of tiered data that ends after a few passes."""
        await self.turns.begin_read(READ_BYTES)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
        finally:
            self.turns.end_read(READ_BYTES, MIB)

    def append(self, size_bytes: int = 100) -> Append:
        """An append that has come; it ends with the future."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turns.add_append(size_bytes, answered)

        async def handle() -> None:
            await answered
            self.events.append("append")

        self.tasks.append(asyncio.create_task(handle()))
        return Append(answered)

    async def passes(self, count: int = 50) -> None:
        """Let the loop make so many passes."""
        for _ in range(count):
            await asyncio.sleep(0)
            self.turns.check()

    async def after(self, pause_s: float) -> None:
        """Let time go on."""
        self.now_s += pause_s
        self.clock.advance(round(1000 * pause_s))
        # The loop of a test waits no real time for a timer that is due.
        await self.passes()


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World]:
    world = World()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: world.now_s)
    yield world
    for task in world.tasks:
        task.cancel()
    await asyncio.gather(*world.tasks, return_exceptions=True)
    monkeypatch.undo()


async def test_a_lone_answer_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        taking = world.turns.take(MIB)
        with pytest.raises(StopIteration):
            taking.send(None)


async def test_a_lone_reader_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream encodes its next answer while it sends the last one, both in turns."""
    async with running(monkeypatch) as world:
        reader = object()
        await world.turns.take(MIB, reader=reader)
        taking = world.turns.take(MIB, reader=reader)
        with pytest.raises(StopIteration):
            taking.send(None)
        world.turns.check()


@pytest.mark.parametrize("other", [None, object()])
async def test_a_reader_waits_for_another_one(monkeypatch: pytest.MonkeyPatch, other: object) -> None:
    async with running(monkeypatch) as world:
        reader = object()
        # They begin in this order, before the turn of the other one ends.
        waiting = asyncio.create_task(world.turns.take(MIB, reader=reader))
        behind = asyncio.create_task(world.turns.take(MIB, reader=other))
        await world.turns.take(MIB, reader=other)
        await asyncio.sleep(0)
        assert world.turns.waiting_count == 2
        await waiting
        assert not behind.done()
        await behind


async def test_a_lone_reader_waits_for_a_small_append(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        reader = object()
        await world.turns.take(MIB, reader=reader)
        answered = world.append().answered
        taking = asyncio.create_task(world.turns.take(MIB, reader=reader))
        await world.passes()
        assert not taking.done()
        answered.set_result(None)
        await world.passes()
        assert taking.done()


async def test_small_answers_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        world.answer("first")
        await world.passes()
        world.append()
        world.answer("large")
        world.answer("small", LARGE_BYTES - 1)
        await world.passes()
        assert world.events == ["first", "small"]


async def test_readers_get_their_answers_round_robin(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        world.answer("first")
        for name in "abc":
            world.answer(name, count=3)
        await asyncio.gather(*world.tasks)
        assert world.events == ["first", *"abcabcabc"]


async def test_an_answer_that_comes_when_a_wait_is_over_is_behind_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as world:
        world.answer("first")
        await world.passes()
        world.append()
        world.answer("second")
        await world.passes()
        # The loop has not looked at its timers since.
        world.now_s += 2 * MAX_WAIT_S
        await world.turns.take(MIB)
        assert world.events == ["first", "second"]


async def test_calls_that_have_ended_take_no_room_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        world.answer("first")
        for name in "abcd":
            world.answer(name, TURN_BYTES // 3)
        await asyncio.sleep(0)
        world.tasks[2].cancel()
        await world.passes(PASS_COUNT + 2)
        assert world.events == ["first", *"acd"]


@pytest.mark.parametrize(("size_bytes", "in_a_turn"), [(MIB, 1), (TURN_BYTES // 2, 2), (TURN_BYTES // 4, 4)])
async def test_passes_for_other_work_lie_between_turns(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int, in_a_turn: int
) -> None:
    async with running(monkeypatch) as world:
        for _ in range(3 * in_a_turn):
            world.answer("answer", size_bytes)
        for _ in range(4 * PASS_COUNT):
            await asyncio.sleep(0)
            world.events.append("pass")
        events = "".join(event[0] for event in world.events).strip("p")
        gaps = [gap for gap in events.split("a") if gap]
        assert len(gaps) == 2, "three turns"
        assert events.startswith("a" * in_a_turn + "p")
        assert {len(gap) for gap in gaps} <= {PASS_COUNT, PASS_COUNT + 1}


async def test_answers_wait_for_a_small_append(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        world.answer("first")
        await world.passes()
        answered = world.append().answered
        world.answer("second")
        await world.passes()
        assert world.events == ["first"]
        answered.set_result(None)
        await world.passes(PASS_COUNT)
        assert world.events == ["first", "append"], "its answer goes out first"
        await world.passes()
        assert world.events == ["first", "append", "second"]


async def test_an_append_that_comes_while_answers_wait_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        for name in "abc":
            world.answer(name)
        await world.passes(2)
        assert world.events == ["a"]
        answered = world.append().answered
        await world.passes()
        answered.set_result(None)
        await world.passes()
        assert world.events == ["a", "append", "b", "c"]


async def test_answers_wait_for_a_call_whose_message_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        world.answer("first", 16 * MIB)
        await world.passes()
        world.turns.expect_append()
        world.answer("second", 16 * MIB)
        await world.after(MAX_WAIT_S / 2)
        assert world.events == ["first"]
        answered = world.append().answered
        await world.after(MAX_WAIT_S * 0.9)
        answered.set_result(None)
        await world.passes()
        assert world.events == ["first", "append", "second"]
        world.turns.expect_append()
        world.answer("third")
        await world.passes()
        assert world.events[3:] == []
        await world.after(MAX_WAIT_S)
        assert world.events[3:] == ["third"], "the message did not come"


@pytest.mark.parametrize("size_bytes", [LARGE_BYTES, MIB])
async def test_no_answer_waits_for_a_large_append(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    async with running(monkeypatch) as world:
        world.answer("first")
        await world.passes()
        world.append(size_bytes)
        world.answer("second")
        await world.passes()
        assert world.events == ["first", "second"]


async def test_a_slow_append_holds_up_answers_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        world.answer("first", 16 * MIB)
        await world.passes()
        world.append()
        world.answer("second")
        await world.after(MAX_WAIT_S * 0.9)
        assert world.events == ["first"]
        await world.after(MAX_WAIT_S * 0.2)
        assert world.events == ["first", "second"]


async def test_appends_without_a_pause_leave_answers_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        for name in "ab":
            world.answer(name, count=100)
        await world.passes()
        del world.events[:]
        step_s = MAX_WAIT_S / 8
        for _ in range(80):
            world.append()
            await world.after(step_s)
        expected_count = round(80 * step_s / S_PER_MIB)
        assert expected_count == 10
        assert len(world.events) in (expected_count - 1, expected_count)


async def test_the_past_of_answers_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers beyond their rate before an append came make none wait longer for it."""
    async with running(monkeypatch) as world:
        world.answer("before", count=100)
        await world.passes(100 * (PASS_COUNT + 1))
        assert len(world.events) == 100
        world.append()
        world.answer("after")
        await world.after(S_PER_MIB * 0.9)
        assert len(world.events) == 100
        await world.after(S_PER_MIB * 0.2)
        assert world.events[100:] == ["after"]


async def test_reads_begin_only_as_far_as_few_answers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        begun: list[int] = []

        async def read(number: int) -> None:
            await world.turns.begin_read(READ_BYTES)
            begun.append(number)

        def reads(numbers: range) -> list[asyncio.Task[None]]:
            tasks = [asyncio.create_task(read(number)) for number in numbers]
            world.tasks += tasks
            return tasks

        world.answer("first")
        await world.passes()
        answered = world.append().answered
        for name in "abcd":
            world.answer(name, is_tiered=True)
        room_count = READ_COUNT - 4 * MIB // READ_BYTES
        later = reads(range(room_count + 6))[room_count:]
        await world.passes()
        assert begun == list(range(room_count))
        later[0].cancel()
        world.turns.end_read(READ_BYTES)
        later[2].cancel()
        await world.passes()
        assert begun[room_count:] == [room_count + 1], "one that was given up takes no place"
        answered.set_result(None)
        await world.passes()
        assert world.events[-4:] == list("abcd")
        assert begun[room_count:] == [room_count + number for number in (1, 3)]
        for _ in range(2):
            world.turns.end_read(READ_BYTES)
        await world.passes()
        assert begun[room_count:] == [room_count + number for number in (1, 3, 4, 5)]


async def test_readers_of_the_local_log_leave_room_for_reads_of_tiered_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many of them wait all the time, with more bytes than the room for tiered data has."""
    async with running(monkeypatch) as world:
        for number in range(2 * READ_COUNT * READ_BYTES // MIB):
            world.answer(str(number), count=1000)
        await world.passes()
        reading = asyncio.create_task(world.read())
        world.tasks.append(reading)
        await world.passes()
        assert reading.done()
        assert world.turns.waiting_count * MIB > READ_COUNT * READ_BYTES


async def test_a_large_read_leaves_the_other_threads_to_other_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as world:
        sizes_bytes = [READ_COUNT * READ_BYTES] * (READ_COUNT - 1) + [READ_BYTES]
        reads = [asyncio.create_task(world.turns.begin_read(size_bytes)) for size_bytes in sizes_bytes]
        world.tasks += reads
        await world.passes()
        assert all(read.done() for read in reads)
        last = asyncio.create_task(world.turns.begin_read(MIB))
        world.tasks.append(last)
        await world.passes()
        assert not last.done(), "each thread has one"
        world.turns.end_read(sizes_bytes[0])
        await world.passes()
        assert last.done()


async def test_reads_keep_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        world.throttler.set_max_bytes_per_s(2 * MIB)
        ended: list[int] = []

        async def read(number: int) -> None:
            await world.turns.begin_read(READ_BYTES)
            world.turns.end_read(READ_BYTES, MIB)
            ended.append(number)

        world.tasks += [asyncio.create_task(read(number)) for number in range(12)]
        await world.passes()
        assert ended == [0]
        world.tasks[2].cancel()
        for _ in range(40):
            await world.after(0.1)
        assert ended == [0, 1, *range(3, 10)]
        assert world.turns.throttled_s == pytest.approx(4, abs=0.6)
        # Another rate holds within a second, also for reads that wait already.
        world.throttler.set_max_bytes_per_s(1000 * MIB)
        await world.after(LONGEST_PAUSE_S)
        assert ended[-2:] == [10, 11]


async def test_without_a_rate_no_read_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as world:
        for _ in range(100):
            await world.turns.begin_read(READ_BYTES)
            world.turns.end_read(READ_BYTES, 1 << 40)
        assert world.turns.throttled_s == 0


@pytest.mark.parametrize("seed", range(30))
async def test_each_answer_has_its_turn_whatever_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Calls that end while they wait give their turn to the next one."""
    random = Random(seed)
    async with running(monkeypatch) as world:
        if seed % 2:
            world.throttler.set_max_bytes_per_s(1000 * MIB)
        appends: list[asyncio.Future[None]] = []
        for _ in range(60):
            choice = random.randrange(9)
            if choice > 6:
                world.tasks.append(asyncio.create_task(world.read()))
            elif choice < 3:
                size_bytes = random.choice([LARGE_BYTES, TURN_BYTES, MIB])
                is_tiered = random.random() < 0.5
                world.answer("answer", size_bytes, random.randrange(1, 4), is_tiered=is_tiered)
            elif choice == 3:
                appends.append(world.append(random.choice([100, MIB])).answered)
            elif choice == 4 and appends:
                appends.pop(random.randrange(len(appends))).cancel()
            elif choice == 5 and world.tasks:
                random.choice(world.tasks).cancel()
            else:
                world.turns.expect_append()
            world.now_s += random.choice([0.0, 0.0, MAX_WAIT_S / 3])
            await world.passes(random.randrange(3))
        for answered in appends:
            answered.cancel()
        for _ in range(60):
            await world.after(MAX_WAIT_S)
        assert [task for task in world.tasks if not task.done()] == []
        assert world.turns.waiting_count == 0


async def test_an_answer_that_waits_goes_with_the_answer_of_the_append_that_came_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as world:
        # So large answers have had their share of the time.
        await world.turns.take(MIB)
        first = world.append()
        world.answer("answer")
        await world.passes()
        last = world.append()
        first.answered.set_result(None)
        await world.passes()
        assert world.events == ["append"]
        last.answered.set_result(None)
        await world.passes()
        assert world.events == ["append", "append", "answer"]
