"""Sessions over both tiers: a store that stands still holds up its own partitions only, and nothing leaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import pytest

from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.base.types import TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.server import worker_pools
from stratalog.server.answer_turns import LARGE_BYTES
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.fetch.closing import Closing
from stratalog.server.fetch.fetch_cursor import FetchCursor, Watermarks
from stratalog.server.fetch.fetch_session import (
    LEAST_AHEAD_BYTES,
    MAX_PAUSE_COUNT,
    MAX_RECENT_COUNT,
    FetchSession,
)
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.fetch.tiered_reads import PATIENCE_S
from stratalog.server.log_identity import LogIdentity
from stratalog.server.request_memory import FetchMemory, RequestMemory
from stratalog.server.worker_pools import WorkerPools
from stratalog.testing.manual_clock import ManualClock
from tests.support.gate import Gate

RECORD_BYTES = 1000
LOCAL_COUNT = 10


@pytest.fixture
def settings() -> ServerSettings:
    """Those of the world."""
    return ServerSettings(data_dir="unused")


class Partition:
    """Offsets [0, end) of `RECORD_BYTES` each; below `local_start` they come through the gate of a store."""

    def __init__(self, gate: Gate, end: int, local_start: int = 0) -> None:
        self.end, self.local_start = end, local_start
        self.signal = PartitionSignal(asyncio.get_running_loop())
        self.tiered_reads: list[int] = []
        self.left_at: int | None = None
        self.failure: Exception | None = None
        self.is_behind = False
        self.recent_from: int | None = None
        """The first offset that is in memory, if any is."""
        self.recent_end = 1 << 20
        self.cached_from: int | None = None
        """The first offset whose file the system has in memory, if it has any."""
        self.cached_read_count = self.file_read_count = 0
        self.log_dir = "unused"
        self.disk: Gate | None = None
        """The gate before reads of files, if they may hang."""
        self._gate = gate

    @property
    def log_end_offset(self) -> int:
        return self.end

    @property
    def identity(self) -> LogIdentity:
        raise AssertionError

    def epoch_at(self, offset: int) -> int:
        return 0

    def local_epoch_at(self, offset: int) -> int:
        return 0

    def ensure_served(self) -> None:
        pass

    def watermarks(self) -> Watermarks:
        return Watermarks(0, self.local_start, self.end, self.end)

    def read_recent(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        if self.recent_from is None or not self.recent_from <= offset < self.recent_end:
            return None
        return self._data(offset, max_bytes, min(self.end, self.recent_end), min_one_message)

    def read_cached(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        self.cached_read_count += 1
        if self.cached_from is None or offset < self.cached_from:
            return None
        return self._data(offset, max_bytes, self.end, min_one_message)

    def read_local(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData:
        self.file_read_count += 1
        if self.disk is not None:
            self.disk.pass_through()
        return self._data(offset, max_bytes, self.end, min_one_message)

    def leave_tiered(self, offset: int) -> None:
        self.left_at = offset

    def read_tiered(self, offset: int, max_bytes: int, isolation: Isolation) -> FetchData:
        self.tiered_reads.append(max_bytes)
        self._gate.pass_through()
        if self.failure is not None:
            raise self.failure
        if self.is_behind:
            return FetchData((), offset)
        return self._data(offset, max_bytes, self.local_start, True)

    @staticmethod
    def _data(offset: int, max_bytes: int, end: int, min_one: bool) -> FetchData:
        count = min(max_bytes // RECORD_BYTES or int(min_one), end - offset)
        return FetchData((bytes(count * RECORD_BYTES),), offset + count)


class Part(NamedTuple):
    """The part of an answer that one partition has: offsets [start, end)."""

    number: int
    start: int
    end: int


def parts_of(cursors: Sequence[FetchCursor]) -> list[Part]:
    parts: list[Part] = []
    for cursor in cursors:
        start = cursor.start
        assert cursor.take().size_bytes == (cursor.position - start) * RECORD_BYTES
        parts.append(Part(cursor.topic_partition.partition, start, cursor.position))
    return parts


class World(NamedTuple):
    session: FetchSession
    partitions: list[Partition]
    memory: FetchMemory
    gate: Gate
    pools: WorkerPools


@asynccontextmanager
async def world(max_bytes: int = 1 << 20, tiered_count: int = 1) -> AsyncGenerator[World]:
    """Partitions that are tiered up to offset 50 come first, then ten local ones. The gate is closed."""
    gate = Gate()
    gate.close()
    loop = asyncio.get_running_loop()
    partitions = [Partition(gate, 100, 50) for _ in range(tiered_count)]
    partitions += [Partition(gate, 0) for _ in range(LOCAL_COUNT)]
    cursors = [
        FetchCursor(TopicPartition("t", number), partition, 0, 1 << 20)
        for number, partition in enumerate(partitions)
    ]
    pools = WorkerPools(ServerSettings(data_dir="unused"), ManualClock())
    memory = FetchMemory(64 << 20)
    session = FetchSession(cursors, pools, Closing(loop), memory, max_bytes)
    try:
        yield World(session, partitions, memory, gate, pools)
    finally:
        session.close()
        gate.open()
        await asyncio.to_thread(pools.close)
        assert memory.held_bytes == 0


@asynccontextmanager
async def crowd(reader_count: int) -> AsyncGenerator[list[World]]:
    """Sessions over a partition that is tiered up to offset 50 each, with the same threads, memory and gate,
    which is closed."""
    async with world() as first:
        found = [first]
        loop = asyncio.get_running_loop()
        for number in range(1, reader_count):
            partition = Partition(first.gate, 100, 50)
            cursors = [FetchCursor(TopicPartition("t", number), partition, 0, 1 << 20)]
            session = FetchSession(cursors, first.pools, Closing(loop), first.memory, 1 << 20)
            found.append(first._replace(session=session, partitions=[partition]))
        try:
            yield found
        finally:
            for one in found:
                one.session.close()


def append(partition: Partition, count: int) -> None:
    partition.end += count
    partition.signal.notify()


async def reached(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.is_reached.wait, 30)


async def test_local_partitions_of_a_stream_go_on_while_the_store_stands_still() -> None:
    async with world() as found, aclosing(found.session.stream(1, 0, parts_of)) as answers:
        for number in range(30):
            append(found.partitions[1 + number % LOCAL_COUNT], 2)
            begin = number // LOCAL_COUNT * 2
            expected = [Part(1 + number % LOCAL_COUNT, begin, begin + 2)]
            assert await asyncio.wait_for(anext(answers), 30) == expected
        await reached(found.gate)
        assert len(found.partitions[0].tiered_reads) == 1, "one read waits, whatever the answers"
        found.gate.open()
        tiered: list[Part] = []
        while not tiered or tiered[-1].end < 100:
            tiered += await asyncio.wait_for(anext(answers), 30)
        assert [part.number for part in tiered] == [0] * len(tiered)
        assert [part.start for part in tiered] == [0, *(part.end for part in tiered[:-1])], "nothing is lost"


@pytest.mark.parametrize(
    ("record_count", "is_ahead"), [(1, False), (LEAST_AHEAD_BYTES // RECORD_BYTES + 1, True)]
)
async def test_only_beside_a_large_answer_the_next_one_is_collected(
    record_count: int, is_ahead: bool
) -> None:
    async with world() as found, aclosing(found.session.stream(1, 0, parts_of)) as answers:
        tail = found.partitions[1]
        tail.recent_from = 0
        append(tail, record_count)
        assert await asyncio.wait_for(anext(answers), 30) == [Part(1, 0, record_count)]
        append(tail, 1)
        for _ in range(10):
            await asyncio.sleep(0)
        cursor = next(each for each in found.session.cursors if each.partition is tail)
        assert (cursor.position > record_count) == is_ahead
        assert await asyncio.wait_for(anext(answers), 30) == [Part(1, record_count, record_count + 1)]


async def test_a_stream_that_ends_leaves_the_readers_of_its_partitions() -> None:
    async with world() as found:
        found.gate.open()
        async with aclosing(found.session.stream(1, 0, parts_of)) as answers:
            assert await asyncio.wait_for(anext(answers), 30) == [Part(0, 0, 50)]
            assert found.partitions[0].left_at is None
        assert found.partitions[0].left_at == found.session.cursors[-1].position >= 50


async def test_a_long_poll_ends_with_the_local_data() -> None:
    async with world() as found:
        waiting = asyncio.create_task(found.session.collect(1, 60))
        await reached(found.gate)
        assert not waiting.done()
        append(found.partitions[4], 3)
        await asyncio.wait_for(waiting, 30)
        news = [part for part in parts_of(found.session.cursors) if part.start < part.end]
        assert news == [Part(4, 0, 3)]


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_poll_without_any_wait_waits_for_the_store(is_announced: bool) -> None:
    """Otherwise it could end before the data come, each time. A start that is news is no data."""
    async with world() as found:
        for cursor in found.session.cursors:
            cursor.is_announced = is_announced
        waiting = asyncio.create_task(found.session.collect(1, 0))
        await reached(found.gate)
        await asyncio.sleep(3 * PATIENCE_S)
        assert not waiting.done()
        found.gate.open()
        await asyncio.wait_for(waiting, 30)
        assert parts_of(found.session.cursors)[0] == Part(0, 0, 50)


async def test_a_poll_ends_where_the_store_has_nothing_yet() -> None:
    async with world() as found:
        found.gate.open()
        found.partitions[0].is_behind = True
        await asyncio.wait_for(found.session.collect(1, 0), 30)
        assert not found.session.has_news
        assert 1 <= len(found.partitions[0].tiered_reads) <= 2


async def test_what_is_in_memory_comes_with_the_same_answer() -> None:
    async with world() as found:
        found.gate.open()
        for partition in found.partitions[1:]:
            append(partition, 1)
        await asyncio.wait_for(found.session.collect(1, 0), 30)
        assert sum(part.end for part in parts_of(found.session.cursors)[1:]) == LOCAL_COUNT


@pytest.mark.parametrize("max_bytes", [1, 20_000, 1 << 20])
async def test_answers_keep_to_the_budget_with_reads_in_flight(max_bytes: int) -> None:
    async with world(max_bytes, tiered_count=3) as found:
        for partition in found.partitions[3:]:
            append(partition, 40)
        sizes: list[int] = []
        positions = dict.fromkeys(range(len(found.partitions)), 0)
        async with aclosing(found.session.stream(1, 0, parts_of)) as answers:
            while any(positions[number] < 40 for number in range(3, 13)):
                for part in await asyncio.wait_for(anext(answers), 30):
                    assert part.start == positions[part.number]
                    positions[part.number] = part.end
                sizes.append(sum(positions.values()) * RECORD_BYTES - sum(sizes))
            assert [positions[number] for number in range(3)] == [0, 0, 0]
            found.gate.open()
            while sum(positions.values()) < 3 * 100 + LOCAL_COUNT * 40:
                for part in await asyncio.wait_for(anext(answers), 30):
                    assert part.start == positions[part.number]
                    positions[part.number] = part.end
                sizes.append(sum(positions.values()) * RECORD_BYTES - sum(sizes))
        # Each read may exceed its share by a batch that is larger.
        assert max(sizes) <= max(max_bytes, 4 * RECORD_BYTES)


async def test_a_read_without_memory_happens_once_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One read is owed, and waits for the store. The others try once, and again when there is memory."""
    wishes: list[int] = []
    found_memory: RequestMemory | None = None
    """Counted are the wishes that its part for tiered data gets."""
    take_up_to = RequestMemory.take_up_to

    def counted(memory: RequestMemory, size_bytes: int, least_bytes: int) -> int:
        if memory is not found_memory:
            wishes.append(size_bytes)
        return take_up_to(memory, size_bytes, least_bytes)

    monkeypatch.setattr(RequestMemory, "take_up_to", counted)
    async with world(tiered_count=3) as found:
        found_memory = found.memory
        others = found.memory.lease(found.memory.limit_bytes)
        waiting = asyncio.create_task(found.session.collect(1, 60))
        await reached(found.gate)
        await asyncio.sleep(5 * PATIENCE_S)
        assert len(wishes) == 3
        assert sum(len(partition.tiered_reads) for partition in found.partitions) == 1
        others.close()
        while sum(len(partition.tiered_reads) for partition in found.partitions) < 3:
            await asyncio.sleep(0)
        assert not waiting.done(), "the store still stands still"
        found.gate.open()
        await asyncio.wait_for(waiting, 30)
        assert found.session.has_progress


async def test_a_session_that_ends_gives_back_the_memory_and_starts_no_read() -> None:
    async with world(tiered_count=40) as found:
        waiting = asyncio.create_task(found.session.collect(1, 60))
        await reached(found.gate)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        found.session.close()
        assert found.memory.held_bytes == 0
        begun_count = sum(len(partition.tiered_reads) for partition in found.partitions)
        assert begun_count <= ServerSettings(data_dir="unused").cold_read_thread_count
        found.gate.open()
        await asyncio.to_thread(found.pools.close)
        assert sum(len(partition.tiered_reads) for partition in found.partitions) == begun_count
        assert found.memory.held_bytes == 0


async def test_a_mistake_in_a_read_ends_the_call() -> None:
    async with world() as found:
        found.partitions[0].failure = ZeroDivisionError()
        found.gate.open()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(found.session.collect(1, 60), 30)


async def test_recent_data_takes_no_thread() -> None:
    """Neither with the local data in memory nor for a partition whose file is read beside it."""
    async with world(tiered_count=0) as found:
        for partition in found.partitions:
            partition.recent_from = 0
        found.partitions[3].recent_from = None
        for partition in found.partitions:
            append(partition, 3)
        await found.session.collect(1, None)
        assert [cursor.position for cursor in found.session.cursors] == [3] * LOCAL_COUNT
        assert [partition.file_read_count for partition in found.partitions] == [0, 0, 0, 1] + [0] * 6


async def test_files_in_the_systems_memory_take_no_thread() -> None:
    async with world(20 * RECORD_BYTES, tiered_count=0) as found:
        behind = found.partitions[0]
        behind.cached_from = 20
        append(behind, 100)
        async with aclosing(found.session.stream(1, 0, parts_of)) as answers:
            for start in range(0, 100, 20):
                assert await asyncio.wait_for(anext(answers), 30) == [Part(0, start, start + 20)]
        # The first read finds the place in the file.
        assert behind.file_read_count == 1


async def test_the_loop_reads_a_bounded_part_of_files_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pools, "LOOP_READ_BYTES", 100 * RECORD_BYTES)
    async with world(tiered_count=0) as found:
        for number, partition in enumerate(found.partitions):
            partition.cached_from = 0
            append(partition, 40)
            found.session.cursors[number].max_bytes = 40 * RECORD_BYTES
        await asyncio.wait_for(found.session.collect(1, None), 30)
        assert [cursor.position for cursor in found.session.cursors] == [40] * LOCAL_COUNT
        by_thread = [partition.file_read_count for partition in found.partitions]
        assert by_thread == [0, 0] + [1] * (LOCAL_COUNT - 2), "two of them are all that the turn has room for"
        parts_of(found.session.cursors)
        await asyncio.sleep(0)
        append(found.partitions[3], 40)
        await asyncio.wait_for(found.session.collect(1, None), 30)
        assert found.partitions[3].file_read_count == 1, "the next turn has room again"


async def test_a_fetch_that_asks_for_much_is_left_to_a_thread() -> None:
    async with world(64 << 20, tiered_count=0) as found:
        behind = found.partitions[0]
        behind.cached_from = 0
        found.session.cursors[0].max_bytes = 2 * worker_pools.LOOP_READ_BYTES
        append(behind, 10)
        await asyncio.wait_for(found.session.collect(1, None), 30)
        assert (behind.cached_read_count, behind.file_read_count) == (0, 1)


async def test_what_is_not_in_memory_is_tried_less_and_less_often() -> None:
    async with world(10 * RECORD_BYTES, tiered_count=0) as found:
        behind = found.partitions[0]
        fill_count = 200
        append(behind, 10 * (fill_count + 3 * MAX_PAUSE_COUNT))
        async with aclosing(found.session.stream(1, 0, parts_of)) as answers:
            for _ in range(fill_count):
                await asyncio.wait_for(anext(answers), 30)
            assert 5 <= behind.cached_read_count <= 5 + fill_count // MAX_PAUSE_COUNT
            behind.cached_from = 0
            before_count = behind.file_read_count
            for _ in range(3 * MAX_PAUSE_COUNT):
                await asyncio.wait_for(anext(answers), 30)
            assert behind.file_read_count <= before_count + MAX_PAUSE_COUNT, "and then always"


async def test_memory_and_file_meet_in_one_fill() -> None:
    async with world(tiered_count=0) as found:
        behind = found.partitions[0]
        append(behind, 10)
        behind.recent_from, behind.recent_end = 0, 4
        await found.session.collect(1, None)
        assert found.session.cursors[0].position == 10
        assert behind.file_read_count == 1


async def test_many_partitions_are_left_to_a_thread() -> None:
    async with world(tiered_count=0) as found:
        found.session.cursors += [
            FetchCursor(TopicPartition("u", number), found.partitions[0], 0, 1 << 20)
            for number in range(MAX_RECENT_COUNT)
        ]
        found.partitions[0].recent_from = 0
        append(found.partitions[0], 1)
        await found.session.collect(1, None)
        assert found.partitions[0].file_read_count == MAX_RECENT_COUNT + 1


async def test_partitions_of_a_crowd_wait_for_their_turns_in_order(settings: ServerSettings) -> None:
    """None of them leaves its stream, however many there are, and look-ups do not wait with them."""
    reader_count = settings.cold_read_thread_count + settings.cold_read_queue_count + 40
    async with crowd(reader_count) as found:
        polls = [asyncio.create_task(one.session.collect(1, 60)) for one in found]
        await reached(found[0].gate)
        await asyncio.sleep(PATIENCE_S)
        assert found[0].pools.cold_share_count <= 0
        begun = [bool(one.partitions[0].tiered_reads) for one in found]
        assert begun == sorted(begun, reverse=True)
        assert sum(begun) == settings.cold_read_thread_count
        assert await asyncio.wait_for(found[0].pools.cold_lookup(lambda: "looked up"), 30) == "looked up"
        found[0].gate.open()
        await asyncio.wait_for(asyncio.gather(*polls), 60)
        assert [one.session.cursors[0].error for one in found] == [None] * reader_count
        assert all(one.session.has_progress for one in found)
        assert found[0].pools.cold_share_count > 0


def has_read(one: World) -> bool:
    return bool(one.partitions[0].tiered_reads)


async def test_a_reader_that_leaves_while_it_waits_for_its_turn_takes_none(settings: ServerSettings) -> None:
    thread_count = settings.cold_read_thread_count
    async with crowd(thread_count + 2) as found:
        polls = [asyncio.create_task(one.session.collect(1, 60)) for one in found]
        await reached(found[0].gate)
        await asyncio.sleep(PATIENCE_S)
        polls[thread_count].cancel()
        found[thread_count].session.close()
        found[0].gate.open()
        await asyncio.wait_for(polls[-1], 30)
        assert [has_read(one) for one in found] == [True] * thread_count + [False, True]


async def test_tiered_data_leave_memory_to_the_readers_of_local_data() -> None:
    """Readers far behind that do not take their answers hold their part, and get one batch at a time then."""
    async with crowd(2) as found:
        [behind, other], memory = found, found[0].memory
        rest = memory.tiered.take_up_to(memory.tiered.limit_bytes - 30 * RECORD_BYTES, 0)
        behind.gate.open()
        await asyncio.wait_for(behind.session.collect(1, 60), 30)
        assert behind.session.cursors[0].tiered_size_bytes == 50 * RECORD_BYTES, "64 KiB are always granted"
        held_bytes = memory.held_bytes
        assert held_bytes == memory.tiered.held_bytes == rest + 50 * RECORD_BYTES
        answered = behind.session.take_news(parts_of)
        assert answered.tiered_size_bytes == answered.size_bytes == 50 * RECORD_BYTES
        assert not behind.session.may_collect_behind(answered)
        assert other.session.may_collect_behind(answered._replace(tiered_size_bytes=0))
        append(behind.partitions[1], 40)
        await asyncio.wait_for(behind.session.collect(1, 60), 30)
        local = behind.session.take_news(parts_of)
        assert (local.size_bytes, local.tiered_size_bytes) == (90 * RECORD_BYTES, 0)
        behind.session.release(local)
        assert memory.held_bytes == held_bytes
        behind.session.release(answered)
        assert memory.held_bytes == memory.tiered.held_bytes == rest
        memory.tiered.add(-rest)


@pytest.mark.parametrize(
    ("is_tiered", "record_count", "takes_a_turn"),
    [(True, 2000, True), (False, 2000, True), (True, 200, False), (False, 200, False)],
)
async def test_answers_of_readers_behind_take_turns_to_be_encoded(
    monkeypatch: pytest.MonkeyPatch, is_tiered: bool, record_count: int, takes_a_turn: bool
) -> None:
    """At the end of a log readers share the encoding of an answer, within a turn of the loop."""
    async with world(tiered_count=int(is_tiered)) as found:
        loop = asyncio.get_running_loop()
        found.gate.open()
        first = found.partitions[0]
        first.end = record_count
        first.local_start = record_count if is_tiered else 0
        first.recent_from = None if is_tiered else 0
        now_s = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now_s)
        turns = found.pools.turns
        await turns.take(LARGE_BYTES)
        answered: asyncio.Future[None] = loop.create_future()
        turns.add_append(1, answered)
        async with aclosing(found.session.stream(1, 0, parts_of)) as answers:
            answer = asyncio.ensure_future(anext(answers))
            while not (turns.waiting_count or answer.done()):
                await asyncio.sleep(0)
            assert answer.done() is not takes_a_turn
            assert (turns.waiting_tiered_bytes > 0) == (is_tiered and takes_a_turn)
            answered.set_result(None)
            [part] = await answer
            assert (part.end < record_count) == takes_a_turn
        monkeypatch.undo()


@asynccontextmanager
async def hanging_directory(max_bytes: int = 1 << 20) -> AsyncGenerator[World]:
    """A session over local partitions; the files of the first two are in a directory that hangs. The gate is
    that of its disk."""
    async with world(max_bytes, tiered_count=0) as made:
        for partition in made.partitions[:2]:
            partition.log_dir, partition.disk, partition.end = "hanging", made.gate, 10
        yield made


@pytest.mark.parametrize("max_wait_s", [0.0, 60.0])
async def test_an_answer_has_what_other_directories_have_while_one_hangs(max_wait_s: float) -> None:
    async with hanging_directory() as made, asyncio.timeout(30):
        append(made.partitions[5], 7)
        await made.session.collect(1, max_wait_s)
        assert parts_of([one for one in made.session.cursors if one.has_news]) == [Part(5, 0, 7)]
        # What comes later goes out, too, and nothing more is begun in the directory.
        append(made.partitions[6], 3)
        await made.session.collect(1, max_wait_s)
        assert parts_of([one for one in made.session.cursors if one.has_news]) == [Part(6, 0, 3)]
        assert [one.file_read_count for one in made.partitions[:2]] == [1, 0]
        made.gate.open()
        await made.session.collect(1, 60)
        assert parts_of([one for one in made.session.cursors if one.has_news]) == [
            Part(0, 0, 10),
            Part(1, 0, 10),
        ]


async def test_an_answer_with_data_does_not_wait_for_more_bytes_of_a_hanging_directory() -> None:
    async with hanging_directory() as made, asyncio.timeout(30):
        append(made.partitions[5], 7)
        await made.session.collect(1 << 20, 0.1)
        assert parts_of([one for one in made.session.cursors if one.has_news]) == [Part(5, 0, 7)]


async def test_an_answer_without_data_waits_for_a_slow_disk_beyond_its_time() -> None:
    """Else polls without a wait would read a slow disk again and again, and never have the data."""
    async with hanging_directory() as made, asyncio.timeout(30):
        collecting = asyncio.create_task(made.session.collect(1, 0.0))
        await reached(made.gate)
        await asyncio.sleep(2 * PATIENCE_S)
        assert not collecting.done()
        made.gate.open()
        await collecting
        parts = parts_of([one for one in made.session.cursors if one.has_news])
        assert parts == [Part(0, 0, 10), Part(1, 0, 10)]


async def test_a_stream_goes_on_while_a_directory_hangs_and_has_its_data_afterwards() -> None:
    async with hanging_directory() as made, asyncio.timeout(30):
        stream = made.session.stream(1, 0.0, parts_of)
        async with aclosing(stream):
            for end in range(1, 4):
                append(made.partitions[5], 1)
                assert await anext(stream) == [Part(5, end - 1, end)]
            made.gate.open()
            assert await anext(stream) == [Part(0, 0, 10), Part(1, 0, 10)]


async def test_a_directory_that_hangs_leaves_half_of_the_budget_to_the_others() -> None:
    budget_count = 10
    async with hanging_directory(budget_count * RECORD_BYTES) as made, asyncio.timeout(30):
        append(made.partitions[5], 100)
        for number in range(3):
            await made.session.collect(1, 60)
            [part] = parts_of([one for one in made.session.cursors if one.has_news])
            assert part == Part(5, 5 * number, 5 * number + 5)
        made.gate.open()
        await asyncio.sleep(2 * PATIENCE_S)
        await made.session.collect(1, 60)
        assert made.session.size_bytes <= budget_count * RECORD_BYTES
        parts = parts_of([one for one in made.session.cursors if one.has_news])
        assert Part(0, 0, 5) in parts, "as much as the read was begun with"


async def test_a_partition_of_a_hanging_directory_with_new_data_waits_for_the_read_in_flight() -> None:
    async with hanging_directory() as made, asyncio.timeout(30):
        made.partitions[1].end = 0
        append(made.partitions[5], 7)
        await made.session.collect(1, 60)
        assert parts_of([one for one in made.session.cursors if one.has_news]) == [Part(5, 0, 7)]
        append(made.partitions[1], 3)
        append(made.partitions[6], 2)
        await made.session.collect(1, 60)
        assert parts_of([one for one in made.session.cursors if one.has_news]) == [Part(6, 0, 2)]
        assert [one.file_read_count for one in made.partitions[:2]] == [1, 0]
        made.gate.open()
        found: list[Part] = []
        while len(found) < 2:
            await made.session.collect(1, 60)
            found += parts_of([one for one in made.session.cursors if one.has_news])
        assert found == [Part(0, 0, 10), Part(1, 0, 3)]


async def test_data_in_memory_leave_a_read_in_flight_its_share() -> None:
    async with hanging_directory(10 * RECORD_BYTES) as made, asyncio.timeout(30):
        append(made.partitions[5], 1)
        await made.session.collect(1, 60)
        assert parts_of([one for one in made.session.cursors if one.has_news]) == [Part(5, 0, 1)]
        recent = made.partitions[6]
        recent.recent_from, recent.recent_end = 0, 100
        append(recent, 100)
        await made.session.collect(1, 60)
        assert parts_of([one for one in made.session.cursors if one.has_news]) == [Part(6, 0, 5)]


async def test_a_partition_has_no_more_than_its_share_from_memory_and_files_together() -> None:
    async with world(tiered_count=0) as made:
        partition = made.partitions[0]
        partition.recent_from, partition.recent_end = 0, 6
        made.session.cursors[0].max_bytes = 10 * RECORD_BYTES
        append(partition, 20)
        await asyncio.wait_for(made.session.collect(1, None), 30)
        assert partition.file_read_count == 1
        assert parts_of([one for one in made.session.cursors if one.has_news]) == [Part(0, 0, 10)]


async def test_what_a_hanging_disk_brings_of_a_partition_that_has_failed_is_given_back() -> None:
    async with hanging_directory() as made, asyncio.timeout(30):
        append(made.partitions[5], 7)
        await made.session.collect(1, 60)
        before_bytes = made.memory.held_bytes
        for cursor in made.session.cursors[:2]:
            cursor.error = UnknownTopicOrPartitionError("it is deleted")
        made.gate.open()
        while any(cursor in made.session._local for cursor in made.session.cursors):  # pyright: ignore[reportPrivateUsage]  # no other sign of it
            await asyncio.sleep(0.001)
        assert made.memory.held_bytes == 7 * RECORD_BYTES <= before_bytes
        assert made.session.size_bytes == 7 * RECORD_BYTES


async def test_a_mistake_in_a_late_read_of_files_ends_the_call() -> None:
    async with hanging_directory() as made, asyncio.timeout(30):
        append(made.partitions[5], 7)
        await made.session.collect(1, 60)
        parts_of(made.session.cursors)
        made.partitions[0].end = -1
        made.gate.open()
        with pytest.raises(ValueError):  # noqa: PT011 - it is a mistake, and no error of ours
            await made.session.collect(1, 60)
