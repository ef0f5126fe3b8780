"""Consumers over a loopback connection: memory and positions while they hand out records, where they begin
and end, and what changes under them.
"""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import (
    InconsistentTopicIdError,
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer
from stratalog.client.position import Place
from stratalog.client.retry import RetryPolicy
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from tests.support.logs.sampling import Sampling
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import PATIENCE_S, ServiceBench

T0 = TopicPartition("t", 0)

MIB = 1 << 20


async def with_batches(bench: ServiceBench, batch_count: int, record_count: int, value_bytes: int) -> None:
    await bench.client.admin.create_topic("t")
    records = [Record(0, 5, b"k", bytes(value_bytes))] * record_count
    for _ in range(batch_count):
        await bench.client.append("t", 0, records, codec=Codec.ZSTD)


async def test_one_answer_that_decompresses_to_much_is_read_in_little_memory(bench: ServiceBench) -> None:
    await with_batches(bench, 12, 80, 100 << 10)
    tracemalloc.start()
    try:
        offsets = [record.offset async for record in bench.client.consume("t", until="latest")]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert offsets == list(range(960))
    assert peak_bytes < 32 * MIB, "twelve times 8 MiB were read"


async def test_a_consumer_stands_at_its_end_where_a_batch_reaches_over_it(bench: ServiceBench) -> None:
    await with_batches(bench, 1, 10, 1)
    consumer = bench.client.consume("t", start=2, until=6)
    assert [record.offset async for record in consumer] == [2, 3, 4, 5]
    assert consumer.positions == {0: 6}


async def test_a_consumer_that_leaves_between_records_goes_on_behind_the_last_one(
    bench: ServiceBench,
) -> None:
    await bench.client.admin.create_topic("t", 2)
    for partition, record_count in [(0, 10), (1, 7), (0, 5)]:
        await bench.client.append("t", partition, [Record(0, 5, None, b"v")] * record_count)
    consumer = bench.client.consume("t", until="latest")
    found: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(100):
        count = 0
        async for record in consumer:
            found[record.partition].append(record.offset)
            assert consumer.positions == {number: len(offsets) for number, offsets in found.items()}
            count += 1
            if count == 3:
                break
        if count < 3:
            break
    assert found == {0: list(range(15)), 1: list(range(7))}
    assert consumer.positions == {0: 15, 1: 7}


async def test_positions_between_records_respect_what_is_left_out(bench: ServiceBench) -> None:
    """An aborted transaction lies between two records, and another behind the last one."""
    await bench.client.admin.create_topic("t")
    log = bench.server.engine.local.logs.log(T0)
    producer = BatchProducer(7, 0, 0, is_transactional=True)
    marker = EndTransactionMarker(ControlType.ABORT, 0)
    record = Record(0, 5, None, b"v")
    for offset in (0, 4):
        for batch in (
            encode_batch([record], base_offset=offset, leader_epoch=1),
            encode_batch([record] * 2, base_offset=offset + 1, leader_epoch=1, producer=producer),
            marker.to_batch(7, 0, 5, base_offset=offset + 3, leader_epoch=1),
        ):
            log.appender.append_as_follower(batch)
    consumer = bench.client.consume("t", until=8, isolation="read_committed")
    assert ((await anext(aiter(consumer))).offset, consumer.positions) == (0, {0: 4})
    found = [(one.offset, consumer.positions) async for one in consumer]
    assert found == [(4, {0: 8})]


# --- where it begins and ends ------------------------------------------------------------------------------

TIMES = {0: [100, 200, 300, 400, 500, 600], 1: [150, 250, 260, 270]}
"""The times of the records of each partition, in milliseconds."""


def moment(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


async def timed_topic(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 2)
    for partition, times in TIMES.items():
        for begin in range(0, len(times), 2):
            batch = [Record(0, time, None, b"%d" % time) for time in times[begin : begin + 2]]
            await bench.client.append("t", partition, batch)


PLACES: list[tuple[Any, dict[int, int]]] = [
    ("earliest", {0: 0, 1: 0}),
    ("latest", {0: 6, 1: 4}),
    ("max-timestamp", {0: 5, 1: 3}),
    (2, {0: 2, 1: 2}),
    (-3, {0: 3, 1: 1}),
    (-100, {0: 0, 1: 0}),
    (moment(260), {0: 2, 1: 2}),
    (moment(261), {0: 2, 1: 3}),
    (moment(301).astimezone(timezone(timedelta(hours=5))), {0: 3, 1: 4}),
    (moment(9999), {0: 6, 1: 4}),
    ({0: 1, 1: -1}, {0: 1, 1: 3}),
    ({0: 3, 1: "latest"}, {0: 3, 1: 4}),
    ({0: moment(450), 1: 4}, {0: 4, 1: 4}),
    ({0: 2, 1: -2}, {0: 2, 1: 2}),
]


async def test_every_kind_of_start_and_end(bench: ServiceBench) -> None:
    await timed_topic(bench)
    pairs = list(itertools.product(PLACES, PLACES))
    # Each place is a start and an end in every sample.
    chosen = [*zip(PLACES, PLACES[3:] + PLACES[:3], strict=True), *Sampling().at_most(pairs, 40)]
    for (start, starts), (until, ends) in chosen:
        consumer = bench.client.consume("t", start=start, until=until)
        found: dict[int, list[int]] = {0: [], 1: []}
        async for record in consumer:
            found[record.partition].append(record.offset)
            assert record.timestamp == moment(TIMES[record.partition][record.offset])
        assert found == {number: list(range(starts[number], ends[number])) for number in TIMES}
        assert consumer.positions == {number: max(starts[number], ends[number]) for number in TIMES}


async def test_partitions_that_mappings_do_not_name(bench: ServiceBench) -> None:
    await timed_topic(bench)

    async def found(**places: Any) -> list[tuple[int, int]]:
        consumer = bench.client.consume("t", **places)
        return sorted([(record.partition, record.offset) async for record in consumer])

    everything = [(0, offset) for offset in range(6)] + [(1, offset) for offset in range(4)]
    assert await found(start={1: 3}, until="latest") == [*everything[:6], (1, 3)]
    assert await found(until={1: 2}) == [(1, 0), (1, 1)]
    assert await found(until="latest", partitions=[1]) == everything[6:]
    assert await found(until="latest", partitions=[]) == []


async def test_what_has_no_sense_is_refused(bench: ServiceBench) -> None:
    await timed_topic(bench)
    refused: list[tuple[type[LogStoreError], dict[str, Any]]] = [
        (UnknownTopicOrPartitionError, {"partitions": [2]}),
        (UnknownTopicOrPartitionError, {"start": {7: 0}}),
        (UnknownTopicOrPartitionError, {"until": {2: 0}}),
        (OffsetOutOfRangeError, {"start": 7}),
        (InconsistentTopicIdError, {"topic_id": "another"}),
    ]
    for error, options in refused:
        with pytest.raises(error):
            await anext(aiter(bench.client.consume("t", **options)))
    wrong: list[dict[str, Any]] = [
        {"decode": "latin-1"},
        {"max_records": 0},
        {"auto_offset_reset": "none"},
    ]
    for options in wrong:
        with pytest.raises(InvalidRequestError):
            bench.client.consume("t", **options)
    with pytest.raises(UnknownTopicOrPartitionError):
        await anext(aiter(bench.client.consume("nope")))


@pytest.mark.parametrize("until", [99, {0: 99, 1: 99}, {0: 2, 1: 1 << 62}])
async def test_an_end_behind_the_log_is_the_end_of_the_log(bench: ServiceBench, until: Any) -> None:
    await timed_topic(bench)
    async with asyncio.timeout(PATIENCE_S):
        consumer = bench.client.consume("t", until=until)
        first = await anext(aiter(consumer))
        # What comes later is not read.
        await bench.append("t", [b"later"])
        found = [(first.partition, first.offset)] + [(one.partition, one.offset) async for one in consumer]
        assert [one async for one in consumer] == []
        table = await bench.client.read_arrow("t", until=until, columns=["offset"], partitions=[1])
    end = 2 if isinstance(until, dict) and until[0] == 2 else 6
    assert sorted(found) == [(0, offset) for offset in range(end)] + [(1, offset) for offset in range(4)]
    assert table.num_rows == 4


async def test_a_consumer_that_follows_waits_for_its_end(bench: ServiceBench) -> None:
    await timed_topic(bench)
    async with asyncio.timeout(PATIENCE_S):
        consumer = bench.client.consume("t", start=5, until=8, follow=True, partitions=[0])
        reading = asyncio.create_task(_offsets(consumer))
        await bench.until_waiting(1)
        await bench.append("t", [b"6"])
        await bench.until_waiting(1)
        assert not reading.done()
        await bench.append("t", [b"7", b"8"])
        assert await reading == [5, 6, 7]


async def test_without_following_it_ends_at_the_present_end(bench: ServiceBench) -> None:
    await timed_topic(bench)
    async with asyncio.timeout(PATIENCE_S):
        assert len(await _offsets(bench.client.consume("t", follow=False))) == 10


async def _offsets(consumer: Consumer) -> list[int]:
    return [record.offset async for record in consumer]


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize(("start", "partition", "end"), [(5, 1, 4), ({1: 5}, 1, 4), ({0: 1 << 62}, 0, 6)])
@pytest.mark.parametrize("until", [None, 3, "latest"])
async def test_a_start_outside_of_the_log_names_the_partition_and_its_end(
    bench: ServiceBench, start: Any, partition: int, end: int, until: Any, follow: bool
) -> None:
    await timed_topic(bench)
    consumer = bench.client.consume("t", start=start, until=until, follow=follow)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await asyncio.wait_for(anext(aiter(consumer)), PATIENCE_S)
    place = {"topic": "t", "partition": partition, "log_start_offset": 0, "log_end_offset": end}
    assert place.items() <= caught.value.fields.items()
    with pytest.raises(OffsetOutOfRangeError):
        await bench.client.consume("t", until="latest").seek(partition, end + 1)
    # The end itself is a start.
    assert await _offsets(bench.client.consume("t", start={0: 6, 1: 4}, follow=False)) == []


@pytest.mark.parametrize("max_records", [1, 2, 3, 6, 7, 10])
async def test_so_many_records_and_no_more(bench: ServiceBench, max_records: int) -> None:
    await timed_topic(bench)
    consumer = bench.client.consume("t", max_records=max_records)
    first = [(record.partition, record.offset) async for record in consumer]
    assert len(first) == max_records
    rest = bench.client.consume("t", start=consumer.positions, until="latest")
    both = first + [(record.partition, record.offset) async for record in rest]
    assert sorted(both) == [
        (number, offset) for number, times in TIMES.items() for offset in range(len(times))
    ]


async def test_lists_and_single_records_are_one_iteration(bench: ServiceBench) -> None:
    await timed_topic(bench)
    consumer = bench.client.consume("t", until="latest", partitions=[0])
    assert (await anext(aiter(consumer))).offset == 0
    assert [[record.offset for record in records] async for records in consumer.batches()] == [
        [1, 2, 3, 4, 5]
    ]


async def test_a_consumer_seeks(bench: ServiceBench) -> None:
    await timed_topic(bench)
    async with bench.client.consume("t", partitions=[0]) as consumer, asyncio.timeout(PATIENCE_S):
        records = aiter(consumer)

        async def next_offset() -> int:
            return (await anext(records)).offset

        assert [await next_offset() for _ in range(4)] == [0, 1, 2, 3]
        places: list[tuple[Place, int]] = [(1, 1), (-2, 4), ("earliest", 0), (moment(300), 2)]
        for place, offset in places:
            await consumer.seek(0, place)
            assert consumer.positions == {0: offset}
            assert [await next_offset(), await next_offset()] == [offset, offset + 1]
        # One that waits at the end goes on as well.
        await consumer.seek(0, "latest")
        waiting = asyncio.ensure_future(next_offset())
        await bench.until_waiting(1)
        await consumer.seek(0, 5)
        assert await waiting == 5
        with pytest.raises(UnknownTopicOrPartitionError):
            await consumer.seek(1, 0)


# --- changes of the log ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [4, 5]), ("latest", [6])])
async def test_a_position_below_the_log_start_is_an_error_or_reset(
    bench: ServiceBench, reset: Any, expected: list[int]
) -> None:
    await timed_topic(bench)
    await bench.client.admin.delete_records("t", 0, 4)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await anext(aiter(bench.client.consume("t", start=1, partitions=[0])))
    assert caught.value.fields["log_start_offset"] == 4
    async with asyncio.timeout(PATIENCE_S):
        consumer = bench.client.consume("t", start={0: 1}, auto_offset_reset=reset)
        found: list[int] = []
        async for record in consumer:
            if record.partition == 1:
                if record.offset == 3 and reset == "latest":
                    await bench.until_waiting(1)
                    await bench.append("t", [b"new"])
                continue
            found.append(record.offset)
            if len(found) == len(expected):
                break
    assert found == expected


async def test_a_consumer_reads_what_lies_in_the_object_store(bench: ServiceBench) -> None:
    await timed_topic(bench)
    await bench.client.admin.upload(delete_local=True)
    await bench.append("t", [b"local"])
    found = [(record.partition, record.value) async for record in bench.client.consume("t", until="latest")]
    expected = [(number, b"%d" % time) for number, times in TIMES.items() for time in times]
    assert sorted(found) == sorted([*expected, (0, b"local")])
    last = [record.value async for record in bench.client.consume("t", start=-2, until="latest")]
    assert sorted(last) == [b"260", b"270", b"600", b"local"]


async def made_again(bench: ServiceBench) -> None:
    """Delete the topic, and make another one of its name that is longer."""
    await bench.client.admin.delete_topic("t")
    await bench.client.admin.create_topic("t", 2)
    for partition in range(2):
        await bench.client.append("t", partition, [Record(0, 5, b"k", b"of the new topic")] * 9)


async def test_a_topic_that_is_deleted_and_made_again_under_a_consumer(bench: ServiceBench) -> None:
    await timed_topic(bench)
    consumer = bench.client.consume("t")
    lists = consumer.batches()
    count = 0
    async with asyncio.timeout(PATIENCE_S):
        while count < sum(map(len, TIMES.values())):
            count += len(await anext(lists))
        await made_again(bench)
        for _ in range(2):
            with pytest.raises(InconsistentTopicIdError):
                await anext(lists)
            with pytest.raises(InconsistentTopicIdError):
                await anext(aiter(consumer))


@pytest.mark.parametrize("start", ["earliest", 0, 8, 50, -1])
async def test_a_topic_that_was_deleted_and_made_again_is_not_read(bench: ServiceBench, start: Place) -> None:
    await timed_topic(bench)
    client = bench.client
    topic_id = (await client.topics.describe("t")).topic_id
    await made_again(bench)

    async def read_table() -> None:
        async with client.table("t", topic_id=topic_id):
            pass

    consumer = client.consume("t", start=start, topic_id=topic_id)
    ended = client.consume("t", start=start, follow=False, topic_id=topic_id)
    reads: list[Callable[[], Awaitable[object]]] = [
        lambda: anext(aiter(consumer)),
        lambda: anext(consumer.batches()),
        lambda: anext(aiter(ended)),
        lambda: client.read_arrow("t", start=start, topic_id=topic_id),
        read_table,
    ]
    for read in reads:
        with pytest.raises(InconsistentTopicIdError):
            await asyncio.wait_for(read(), PATIENCE_S)


@pytest.mark.parametrize("seed", range(2))
async def test_restarts_of_the_server_neither_skip_nor_repeat_a_record(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    patient = RetryPolicy(deadline_s=60, first_pause_s=0.01, max_pause_s=0.1)
    found: dict[int, list[int]] = {0: [], 1: []}
    breaks: list[LogStoreError] = []
    with ServerProcess(f"{tmp_path}/data") as server:
        server.add_options("--listen", server.address)
        async with Client(server.address, retry=patient) as client, asyncio.timeout(120):
            await client.admin.create_topic("t", 2)
            counts = [0, 0]
            consumer = client.consume("t", on_broken=breaks.append)
            records = aiter(consumer)
            for _ in range(4):
                for _ in range(8):
                    partition = random.randrange(2)
                    values = [Record(0, 5, None, bytes(5000))] * random.choice([1, 70])
                    await client.append("t", partition, values)
                    counts[partition] += len(values)
                # Kills it while the consumer is anywhere, and often ahead of what it has handed out.
                left = sum(counts) - sum(map(len, found.values()))
                for _ in range(random.randrange(left + 1)):
                    record = await anext(records)
                    found[record.partition].append(record.offset)
                    assert consumer.positions[record.partition] == record.offset + 1
                server.kill()
                await asyncio.to_thread(server.start)
            while sum(map(len, found.values())) < sum(counts):
                record = await anext(records)
                found[record.partition].append(record.offset)
            assert found == {number: list(range(counts[number])) for number in range(2)}
            await consumer.aclose()


async def test_a_decoder_makes_keys_and_values(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.client.append("t", 0, [Record(0, 5, b"7", "ä".encode()), Record(0, 5, None, None)])
    found = [
        (record.key, record.value)
        async for record in bench.client.consume("t", until="latest", decode="utf-8", decode_key=int)
    ]
    assert found == [(7, "ä"), (None, None)]
