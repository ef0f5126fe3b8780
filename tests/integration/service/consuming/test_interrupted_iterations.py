"""Iterations that are cancelled, left, fail or meet each other: the next one goes on, with each record once.

The oracle is the list of records that were appended.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Iterable
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import (
    CorruptRecordError,
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    StoppingError,
)
from stratalog.client.blocking import loop_thread
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer
from stratalog.client.errors import ClientClosedError, RecordDecodingError, ServerUnavailableError
from stratalog.client.retry import RetryPolicy
from stratalog.record.native.consumer_records import ConsumerRecord
from stratalog.record.record import Record
from tests.support.logs.sampling import some_seeds
from tests.support.service.scripted_service import ScriptedService, answer, scripted
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, until

ONCE = RetryPolicy(deadline_s=0)


async def taken(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    """Partition and offset of the next records, in an iteration of their own."""
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(PATIENCE_S):
        async for record in consumer:
            found.append((record.partition, record.offset))
            if len(found) == count:
                break
    return found


async def cancelled(waiting: asyncio.Task[Any]) -> None:
    """Cancel a task that waits, and wait for its end."""
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def waiting_for_next(records: AsyncIterator[Any]) -> asyncio.Task[Any]:
    """A task that waits for the next record, or the next list, and has begun to."""

    async def wait() -> Any:
        return await anext(records)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


# --- one fault after the other -----------------------------------------------------------------------------


async def test_a_cancelled_iteration_goes_on(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"0", b"1", b"2"])
    async with bench.client.consume("t") as consumer:
        assert await taken(consumer, 3) == [(0, 0), (0, 1), (0, 2)]
        for offset in (3, 4):
            await cancelled(await waiting_for_next(aiter(consumer)))
            await bench.append("t", [b"later"])
            assert await taken(consumer, 1) == [(0, offset)]
        assert consumer.positions == {0: 5}


async def test_iterators_that_are_kept_go_on_too(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    async with bench.client.consume("t") as consumer:
        records, lists = aiter(consumer), aiter(consumer.batches())
        for number in range(4):
            kept: Any = records if number % 2 else lists
            await cancelled(await waiting_for_next(kept))
            await bench.append("t", [b"a", b"b"])
            if number % 2:
                assert [(await anext(records)).offset for _ in range(2)] == [2 * number, 2 * number + 1]
            else:
                assert [one.offset for one in await anext(lists)] == [2 * number, 2 * number + 1]


async def test_cancelled_before_the_first_record(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"0"])
    consumer = bench.client.consume("t", until="latest")
    await cancelled(await waiting_for_next(aiter(consumer)))
    assert await taken(consumer, 9) == [(0, 0)]
    assert await taken(consumer, 9) == []


async def test_an_iteration_that_is_always_cancelled_makes_progress(bench: ServiceBench) -> None:
    """The wait for an answer goes on meanwhile: no patience of a caller is too short."""
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"0", b"1"])
    async with bench.client.consume("t") as consumer:
        found: list[int] = []
        while len(found) < 2:
            waiting = asyncio.ensure_future(anext(aiter(consumer)))
            for _ in range(3):
                await asyncio.sleep(0)
            if waiting.done():
                found.append(waiting.result().offset)
            else:
                await cancelled(waiting)
        assert found == [0, 1]


async def test_a_failed_iteration_goes_on_behind_its_records() -> None:
    service = ScriptedService(
        [
            [answer(0, 2), StoppingError("the server stops")],
            [StoppingError("the server stops")],
            [answer(2, 2), OffsetOutOfRangeError("gone")],
            [answer(4, 1)],
        ]
    )
    async with scripted(service) as address, Client(address, retry=ONCE) as client:
        consumer = client.consume("t")
        found: list[int] = []
        errors: list[type[LogStoreError]] = []
        while len(found) < 5:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    found.append((await anext(aiter(consumer))).offset)
            except LogStoreError as error:
                errors.append(type(error))
        await consumer.aclose()
    assert found == [0, 1, 2, 3, 4]
    assert errors == [StoppingError, StoppingError, OffsetOutOfRangeError]
    assert [request.partitions[0].start.offset for request in service.requests] == [0, 2, 2, 4]


async def test_a_server_that_was_away(bench: ServiceBench) -> None:
    nowhere = Client("127.0.0.1:1", retry=ONCE)
    consumer = nowhere.consume("t")
    for _ in range(2):
        with pytest.raises(ServerUnavailableError):
            await anext(aiter(consumer))
    await nowhere.close()


async def test_a_batch_that_cannot_be_decoded_is_not_skipped_by_the_next_iteration() -> None:
    damaged = answer(2, 2)
    damaged.batches = damaged.batches[:-1] + b"x"
    service = ScriptedService(
        [[answer(0, 2), damaged, answer(4, 2)], [damaged, answer(4, 2)], [answer(2, 4)]]
    )
    async with scripted(service) as address, Client(address) as client:
        consumer = client.consume("t")
        assert await taken(consumer, 2) == [(0, 0), (0, 1)]
        for _ in range(2):
            with pytest.raises(CorruptRecordError):
                await taken(consumer, 1)
            assert consumer.positions == {0: 2}
        assert await taken(consumer, 4) == [(0, 2), (0, 3), (0, 4), (0, 5)]


async def test_a_decoder_that_fails_gets_the_record_again(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"0", b"1", b"2"])
    calls: list[bytes] = []

    def decode(value: bytes) -> int:
        calls.append(value)
        # The list of records, and then the record by itself.
        if value == b"1" and calls.count(value) <= 2:
            raise ArithmeticError("the first times it fails")
        return int(value)

    consumer = bench.client.consume("t", until="latest", decode_value=decode)
    assert (await anext(aiter(consumer))).value == 0
    with pytest.raises(RecordDecodingError) as caught:
        await anext(aiter(consumer))
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert [record.value async for record in consumer] == [1, 2]


async def test_a_record_that_cannot_be_decoded_is_named_and_can_be_passed(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 2)
    for values in ([b"0", b"1"], [b"2", b"\xff", b"4"]):
        await bench.append("t", values, partition=1)
    consumer = bench.client.consume("t", until="latest", decode_value="utf-8")
    records = aiter(consumer)
    assert [(await anext(records)).value for _ in range(3)] == ["0", "1", "2"]
    for _ in range(2):
        with pytest.raises(RecordDecodingError) as caught:
            await anext(records)
        assert consumer.positions == {0: 0, 1: 3}
        place = {"topic": "t", "partition": 1, "offset": 3, "origin": "value"}
        assert place.items() <= caught.value.fields.items()
    await consumer.seek(1, 4)
    assert [record.value async for record in consumer] == ["4"]


class Interrupted:
    """Interrupts about half of the synchronous waits when their work is done: the latest moment at which a
    Ctrl-C may come.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        random = Random(1)
        real = loop_thread._Call.wait  # pyright: ignore[reportPrivateUsage]  # the place of the signal

        def wait(call: Any) -> Any:
            ended = real(call)
            if self._is_enabled and random.random() < 0.5:
                self.count += 1
                raise KeyboardInterrupt
            return ended

        self._is_enabled = False
        monkeypatch.setattr(loop_thread._Call, "wait", wait)  # pyright: ignore[reportPrivateUsage]  # as above

    def offsets(self, elements: Iterable[ConsumerRecord | list[ConsumerRecord]], found: list[int]) -> bool:
        """Append the offsets of the records, or lists of records. Returns whether the iteration has ended."""
        self._is_enabled = True
        try:
            for element in elements:
                found += [one.offset for one in (element if isinstance(element, list) else [element])]
        except KeyboardInterrupt:
            return False
        finally:
            self._is_enabled = False
        return True


@pytest.mark.parametrize("in_lists", [True, False])
async def test_an_interruption_of_a_synchronous_iteration_loses_no_record(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, in_lists: bool
) -> None:
    await bench.client.admin.create_topic("t")
    for _ in range(3):
        await bench.append("t", [b"v"] * 2000)
    interrupted = Interrupted(monkeypatch)

    def read() -> list[int]:
        found: list[int] = []
        with SyncClient(bench.client.address) as client:
            consumer = client.consume("t", max_records=5500)
            while not interrupted.offsets(consumer.batches() if in_lists else consumer, found):
                assert consumer.positions in ({}, {0: len(found)})
        return found

    assert await asyncio.to_thread(read) == list(range(5500))
    assert interrupted.count > 2


# --- misuse ------------------------------------------------------------------------------------------------


async def test_two_iterations_at_once(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    async with bench.client.consume("t") as consumer:
        waiting = await waiting_for_next(aiter(consumer))
        await bench.until_waiting(1)
        for other in (aiter(consumer), aiter(consumer.batches())):
            with pytest.raises(InvalidRequestError):
                await anext(other)
        await bench.append("t", [b"0"])
        assert (await waiting).offset == 0


async def test_closed_while_another_task_waits(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    consumer = bench.client.consume("t")
    waiting = asyncio.create_task(taken(consumer, 1))
    await bench.until_waiting(1)
    await consumer.aclose()
    assert await waiting == []
    await bench.until_waiting(0)


@pytest.mark.parametrize("in_lists", [True, False])
async def test_the_client_closed_while_another_task_waits(bench: ServiceBench, in_lists: bool) -> None:
    await bench.client.admin.create_topic("t")
    client = Client(bench.client.address)
    consumer = client.consume("t")
    waiting = await waiting_for_next(aiter(consumer.batches()) if in_lists else aiter(consumer))
    await bench.until_waiting(1)
    await client.close()
    with pytest.raises(ClientClosedError):
        await waiting
    assert not waiting.cancelled()
    await bench.until_waiting(0)


PROGRAM = """
import asyncio, sys
from stratalog.client import Client

async def main():
    async with Client(sys.argv[1]) as client:
{body}

asyncio.run(main())
"""

BODIES = {
    "a consumer that is dropped": """
        async for record in client.consume("t"):
            break
""",
    "a consumer that is kept": """
        consumer = client.consume("t")
        async for record in consumer:
            break
""",
    "a consumer of a client that is not closed": """
        other = Client(sys.argv[1])
        async for record in other.consume("t"):
            break
""",
    "a table that was not left": """
        table = await client.table("t").__aenter__()
""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_program_that_ends_between_two_iterations_prints_nothing(
    bench: ServiceBench, body: str
) -> None:
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"0", b"1"])
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM.format(body=body),
        bench.client.address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(program.communicate(), PATIENCE_S)
    assert (program.returncode, output, errors) == (0, b"", b"")


async def test_a_table_ends_with_its_client(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    client = Client(bench.client.address)
    async with client.table("t") as table:
        changes = await waiting_for_next(table.changes())
        await client.close()
        for ended in (changes, table.caught_up()):
            with pytest.raises(ClientClosedError):
                await asyncio.wait_for(ended, PATIENCE_S)


async def test_closed_twice_and_read_again(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"0", b"1", b"2"])
    consumer = bench.client.consume("t")
    await consumer.aclose()
    assert await taken(consumer, 2) == [(0, 0), (0, 1)]
    for _ in range(2):
        await consumer.aclose()
    await bench.append("t", [b"3"])
    assert await taken(consumer, 2) == [(0, 2), (0, 3)]
    await consumer.aclose()
    await bench.until_waiting(0)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_the_session_ends_with_the_consumer(bench: ServiceBench, is_cancelled: bool) -> None:
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"0"])
    consumer = bench.client.consume("t")
    await taken(consumer, 1)
    if is_cancelled:
        await cancelled(await waiting_for_next(aiter(consumer)))
    await bench.until_waiting(1)
    del consumer
    gc.collect()
    await bench.until_waiting(0)


async def test_seeks_while_an_answer_is_left_behind(bench: ServiceBench) -> None:
    """The answer for which a cancelled iteration waited is one from before the seek."""
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"0", b"1", b"2"])
    async with bench.client.consume("t") as consumer:
        await taken(consumer, 3)
        await cancelled(await waiting_for_next(aiter(consumer)))
        await bench.append("t", [b"3"])
        follower = consumer._follower  # pyright: ignore[reportPrivateUsage]  # only so the answer is seen
        arriving = follower._arriving  # pyright: ignore[reportPrivateUsage]  # as above
        assert arriving is not None
        await until(arriving.done)
        assert consumer.positions == {0: 3}
        await consumer.seek(0, 1)
        assert await taken(consumer, 3) == [(0, 1), (0, 2), (0, 3)]


# --- the model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", some_seeds(10))
async def test_each_record_once_and_in_order(bench: ServiceBench, seed: int) -> None:
    random = Random(seed)
    await bench.client.admin.create_topic("t", 2)
    limit = random.choice([None, None, 40])
    consumer = bench.client.consume("t", max_records=limit, metadata_max_age_s=0.01)
    appended: dict[int, list[int]] = {0: [], 1: []}
    found: dict[int, list[int]] = {0: [], 1: []}
    failing = {"left": 0}
    real = bench.client.log.FetchStream

    class Failing:
        """Stands before FetchStream, and refuses some calls."""

        def __call__(self, request: Any) -> Any:
            if failing["left"]:
                failing["left"] -= 1
                raise StoppingError("the server stops")
            return real(request)

    vars(bench.client.log)["FetchStream"] = Failing()
    try:
        for _ in range(60):
            await _step(bench, random, consumer, appended, found, failing)
        expected = {number: list(range(len(offsets))) for number, offsets in appended.items()}
        count = sum(map(len, appended.values()))
        failing["left"] = 0
        left = (count if limit is None else min(count, limit)) - sum(map(len, found.values()))
        while left:
            try:
                record = await asyncio.wait_for(anext(aiter(consumer)), PATIENCE_S)
            except StoppingError:
                # It met the session while no iteration waited.
                continue
            found[record.partition].append(record.offset)
            left -= 1
    finally:
        vars(bench.client.log)["FetchStream"] = real
        await consumer.aclose()
    if limit is None:
        assert found == expected
    else:
        assert sum(map(len, found.values())) == min(limit, count)
        assert all(offsets == expected[number][: len(offsets)] for number, offsets in found.items())
    assert {number: len(offsets) for number, offsets in found.items() if offsets} == {
        number: offset for number, offset in consumer.positions.items() if offset
    }


async def _step(
    bench: ServiceBench,
    random: Random,
    consumer: Consumer,
    appended: dict[int, list[int]],
    found: dict[int, list[int]],
    failing: dict[str, int],
) -> None:
    """One random thing that happens to the topic or the consumer."""
    what = random.choice(["append", "append", "read", "read", "cancel", "fail", "close", "partition", "list"])
    if what == "append":
        partition = random.choice(list(appended))
        count = random.choice([1, 3, 20])
        await bench.client.append("t", partition, [Record(0, 5, None, b"v")] * count)
        appended[partition] += range(count)
    elif what == "fail":
        failing["left"] = random.randrange(3)
    elif what == "close":
        await consumer.aclose()
    elif what == "partition" and len(appended) < 4:
        await bench.client.admin.add_partitions("t", len(appended) + 1)
        appended[len(appended)], found[len(found)] = [], []
    else:
        await _read_some(random, consumer, found, what)


async def _read_some(random: Random, consumer: Consumer, found: dict[int, list[int]], what: str) -> None:
    """An iteration that is cancelled after a random number of turns of the loop."""

    async def read() -> None:
        try:
            if what == "list":
                async for records in consumer.batches():
                    for record in records:
                        found[record.partition].append(record.offset)
            else:
                async for record in consumer:
                    found[record.partition].append(record.offset)
                    if random.random() < 0.1:
                        return
        except StoppingError:
            pass

    reading = asyncio.create_task(read())
    for _ in range(random.choice([0, 1, 5, 50, 500])):
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait((reading,))
