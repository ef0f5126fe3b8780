"""Writes of Spark to a running service: each row once, whatever tasks and drivers do on the way."""

from __future__ import annotations

import asyncio
import pickle
import threading
from array import array
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stratalog.base.errors import (
    CorruptRecordError,
    InconsistentTopicIdError,
    InvalidRequestError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.retry import RetryPolicy
from stratalog.pipeline.sink.batch_commit import BatchCommit
from stratalog.pipeline.sink.decision_log import Decision, DecisionLog
from stratalog.pipeline.sink.sink_options import SinkOptions
from stratalog.pipeline.sink.staging_topic import ROWS, StagedTask
from stratalog.pipeline.sink.task_appends import append_rows
from stratalog.record.key_partition import partition_for_key
from stratalog.server.partitions.hosted_partition import HostedPartition
from tests.support.logs.sampling import IS_WHOLE, SEED
from tests.support.service.service_bench import ServiceBench, service_bench
from tests.support.spark.sink_world import Accident, DiedError, Row, SinkWorld, dying_after, table


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows fill a batch, and each batch is copied by a call of its own."""
    monkeypatch.setattr("stratalog.pipeline.sink.target_batches.BATCH_BYTES", 200)
    for name in ("FIRST_CALL_COUNT", "MAX_CALL_COUNT"):
        monkeypatch.setattr(f"stratalog.pipeline.sink.staged_copies.{name}", 1)


COPIES = pytest.mark.parametrize("copies", [True, False], ids=["copies", "rows"])
"""The server copies the batches, or the driver reads and appends them."""


def rows_of_task(task: int, count: int) -> list[Row]:
    return [(f"key-{number % 7}", f"{task}-{number}-{'x' * 20}".encode()) for number in range(count)]


async def values(bench: ServiceBench, topic: str = "t") -> list[bytes | None]:
    """The values of a topic, by partition and offset."""
    return [value for part in await bench.values(topic) for value in part]


async def test_rows_become_records_with_all_their_columns(bench: ServiceBench) -> None:
    for topic in ("t", "u"):
        await bench.client.topics.create(topic, partitions=3)
    world = SinkWorld(bench)
    of_key = partition_for_key(b"a", 3)
    other = (of_key + 1) % 3
    headers = pa.array(
        [[{"key": "h", "value": b"1"}, {"key": "n", "value": None}], None, []],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    batch = table(
        [("a", b"1"), (None, None), ("c", b"3")],
        topic=pa.array(["t", "u", "t"]),
        partition=pa.array([None, 2, other], pa.int32()),
        timestamp=pa.array([1_000, 2_000_000, 3_000], pa.timestamp("us", "UTC")),
        headers=headers,
        offset=pa.array([7, 8, 9], pa.int64()),
    )
    await world.commit(0, [await world.stage([batch])])
    first, second = await bench.read_all("t"), await bench.read_all("u")
    [record] = first[of_key]
    assert (record.key, record.value, record.timestamp_ms) == (b"a", b"1", 1)
    assert record.headers == (("h", b"1"), ("n", None))
    [named] = first[other]
    assert (named.key, named.headers) == (b"c", ())
    [tombstone] = second[2]
    assert (tombstone.key, tombstone.value, tombstone.timestamp_ms) == (None, None, 2_000)


async def test_the_option_topic_stands_before_the_column(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, topic="t", compression="zstd")
    await world.commit(0, [await world.stage([table([("a", b"1")], topic=pa.array(["elsewhere"]))])])
    assert await values(bench) == [b"1"]


async def test_what_is_staged_is_seen_by_no_reader_before_the_commit(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=2)
    world = SinkWorld(bench, topic="t")
    task = await world.stage([table(rows_of_task(0, 30))])
    assert task.batch_count > 2
    assert await values(bench) == []
    await world.commit(0, [task])
    assert len(await values(bench)) == 30


async def test_attempts_that_failed_or_were_not_chosen_leave_nothing(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=2)
    world = SinkWorld(bench, topic="t")
    rows = rows_of_task(0, 40)
    with pytest.raises(DiedError):
        await world.stage(dying_after([table(rows[:25])]))
    # A speculative copy, side by side with the one that counts, and in another order.
    copies = [world.stage([table(rows)]), world.stage([table(rows[::-1])])]
    chosen, other = await asyncio.gather(*copies)
    assert other.batch_count
    await world.commit(0, [chosen])
    assert sorted(await values(bench), key=str) == sorted((value for _, value in rows), key=str)
    staged = TopicPartition(world.staging_topic, ROWS)
    assert (await bench.client.offsets([staged], "earliest"))[staged] == chosen.end_offset


@COPIES
@pytest.mark.parametrize("is_stored", [False, True], ids=["before", "behind"])
async def test_a_driver_that_dies_anywhere_is_taken_over_without_loss_or_double(
    bench: ServiceBench, is_stored: bool, copies: bool
) -> None:
    """Each append of a commit, the two decisions too: the next driver has other attempts, in another
    order, and the rows of the first ones count where these were decided on."""
    await bench.client.topics.create("t", partitions=2)
    world = SinkWorld(bench, copies=copies, topic="t")
    rows = rows_of_task(0, 12)
    batch = 0
    has_died = True
    while has_died:
        before = Counter(await values(bench))
        task = await world.stage([table(rows)])
        has_died = await world.dies(batch, [task], Accident(batch, is_stored))
        again = await world.stage([table(rows[::-1])])
        await world.commit(batch, [again])
        await world.commit(batch, [again])
        new = Counter(await values(bench)) - before
        assert new == Counter(value for _, value in rows), batch
        batch += 1
    assert batch > 5


@COPIES
@pytest.mark.parametrize("is_stored", [False, True], ids=["before", "behind"])
async def test_a_broken_connection_doubles_nothing_though_the_server_forgets_producers(
    bench: ServiceBench, is_stored: bool, copies: bool
) -> None:
    """Rows with old times: the partition takes their producer for idle, and knows it no more."""
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, copies=copies, topic="t")
    rows = rows_of_task(0, 12)
    old = pa.array([1_000] * len(rows), pa.timestamp("us", "UTC"))
    append_count = 4

    async def forget() -> None:
        bench.partition("t").log.remove_expired_producers()
        assert await bench.client.admin.list_producers("t", 0) == []

    for batch in range(append_count):
        task = await world.stage([table(rows, timestamp=old)])
        with pytest.raises(DiedError):
            await world.commit(batch, [task], Accident(batch, is_stored))
        await forget()
        again = await world.stage([table(rows, timestamp=old)])
        await world.commit(batch, [again], Accident(1, is_stored, ServerUnavailableError, forget))
    assert Counter(await values(bench)) == Counter({value: append_count for _, value in rows})


async def test_random_writes_with_random_faults(bench: ServiceBench) -> None:
    """Against an oracle that only knows the rows: each once, and in the order of one attempt of its task."""
    for seed in range(SEED, SEED + (60 if IS_WHOLE else 4)):
        print(f"seed {seed}")  # noqa: T201 - to find it again
        await _random_query(bench, Random(seed), f"q{seed}")


async def _random_query(bench: ServiceBench, random: Random, name: str) -> None:
    topics = [f"{name}-{number}" for number in range(2)]
    for topic in topics:
        await bench.client.topics.create(topic, partitions=2)
    world = SinkWorld(bench, name, copies=random.random() < 0.7)
    written: dict[tuple[int, int], list[list[bytes]]] = {}

    async def attempt(batch: int, task: int) -> list[pa.RecordBatch]:
        """The rows of a task, in the order of this attempt."""
        size = Random(f"{name}-{batch}-{task}").randrange(0, 25)
        order = random.sample(range(size), size)
        texts = [f"{batch}-{task}-{number}" for number in order]
        written.setdefault((batch, task), []).append([text.encode() for text in texts])
        keys = [random.choice(("a", "b", None)) if size < 5 else f"k{number % 3}" for number in order]
        where = pa.array([topics[number % 2] for number in order], pa.string())
        whole = table(list(zip(keys, (text.encode() for text in texts), strict=True)), topic=where)
        cut = random.randint(0, size)
        return [whole.slice(0, cut), whole.slice(cut)]

    for batch in range(3):
        tasks = range(random.randint(1, 3))
        while True:
            staged: list[StagedTask] = []
            for task in tasks:
                if random.random() < 0.3:
                    with pytest.raises(DiedError):
                        await world.stage(dying_after(await attempt(batch, task)))
                staged.append(await world.stage(await attempt(batch, task), task))
            error = random.choice((DiedError, DiedError, ServerUnavailableError))
            accident = Accident(random.randrange(16), random.random() < 0.5, error)
            try:
                await world.commit(batch, staged, accident)
            except DiedError:
                continue
            if random.random() < 0.7:
                break
            # Spark did not note the batch, and makes it again.
    parts = [part for topic in topics for part in await bench.values(topic)]
    found = Counter(value for part in parts for value in part)
    assert found == Counter(value for orders in written.values() for value in orders[0])
    for (batch, task), orders in written.items():
        prefix = f"{batch}-{task}-".encode()
        mine = [[value for value in part if value and value.startswith(prefix)] for part in parts]
        assert any(
            all(part == [value for value in order if value in part] for part in mine) for order in orders
        ), (batch, task)


@COPIES
@pytest.mark.parametrize("number", range(8))
async def test_two_drivers_append_the_rows_of_one(bench: ServiceBench, number: int, copies: bool) -> None:
    """One waits at an append, from that of its decision on, while the other does everything."""
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, copies=copies, topic="t")
    rows = rows_of_task(0, 40)
    slow, fast = [await world.stage([table(order)]) for order in (rows, rows[::-1])]
    meanwhile = partial(world.commit, 0, [fast])
    await world.commit(0, [slow], Accident(number, error=None, meanwhile=meanwhile))
    order = rows[::-1] if number == 0 else rows
    assert await values(bench) == [value for _, value in order]


async def test_a_driver_that_wakes_late_carries_out_a_later_decision_with_the_rows_of_that(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its decision another driver did the batch, and died before it deleted the staged rows; a third
    one decided on the next batch, and died."""
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, topic="t")
    of_batch = [rows_of_task(batch, 8) for batch in range(2)]
    first, second = [await world.stage([table(rows)]) for rows in of_batch]
    write = DecisionLog.write

    async def delete_nothing(*_: object) -> None:
        pass

    async def write_and_sleep(log: DecisionLog, decision: Decision, end_offset: int) -> bool:
        is_written = await write(log, decision, end_offset)
        with monkeypatch.context() as others:
            others.setattr(DecisionLog, "write", write)
            others.setattr(BatchCommit, "_forget", delete_nothing)
            await world.commit(0, [first])
            assert await world.dies(1, [second], Accident(1))
        return is_written

    with monkeypatch.context() as late:
        late.setattr(DecisionLog, "write", write_and_sleep)
        with pytest.raises(InvalidRequestError) as refused:
            await world.commit(0, [first])
    assert refused.value.fields["last_batch"] == 1
    assert await values(bench) == [value for rows in of_batch for _, value in rows]


async def test_a_batch_without_rows_appends_nothing(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, topic="t")
    await world.commit(4, [await world.stage([table([])])])
    assert world.staging_topic not in await bench.topic_names()
    await world.commit(5, [await world.stage([table([("a", b"5")])])])
    await world.commit(6, [await world.stage([])])
    await world.commit(7, [await world.stage([table([("a", b"7")])])])
    assert await values(bench) == [b"5", b"7"]


@pytest.mark.parametrize("row_count", [0, 3])
async def test_an_older_checkpoint_is_refused(bench: ServiceBench, row_count: int) -> None:
    """Its batches have numbers that are taken, so the rows would be left out."""
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, topic="t")
    for batch in (4, 5):
        await world.commit(batch, [await world.stage([table([("a", b"%d" % batch)])])])
    with pytest.raises(InvalidRequestError) as refused:
        await world.commit(4, [await world.stage([table(rows_of_task(0, row_count))])])
    assert refused.value.fields == {"staging_topic": world.staging_topic, "batch": 4, "last_batch": 5}
    await world.commit(5, [await world.stage([table([("a", b"again")])])])
    assert await values(bench) == [b"4", b"5"]


async def test_an_unfit_row_fails_its_task_and_nothing_is_staged_for_good(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=2, config={"max.message.bytes": 500})
    world = SinkWorld(bench)
    with pytest.raises(UnknownTopicOrPartitionError):
        await world.stage([table([("a", b"1")], topic=pa.array(["missing"]))])
    with pytest.raises(InvalidRequestError):
        await world.stage([table([("a", b"1")], topic=pa.array([None], pa.string()))])
    with pytest.raises(InvalidRequestError) as refused:
        await world.stage([table([("a", b"1")], topic=pa.array(["t"]), partition=pa.array([2], pa.int32()))])
    assert refused.value.fields == {"topic": "t", "partition": 2, "partition_count": 2}
    with pytest.raises(RecordTooLargeError):
        await world.stage([table([("a", b"1" * 500)], topic=pa.array(["t"]))])


async def test_a_row_that_its_topic_will_refuse_fails_its_task(bench: ServiceBench) -> None:
    """Once decided on, such a row would keep its query from going on."""
    config = {"cleanup.policy": "compact", "message.timestamp.before.max.ms": "1000000"}
    await bench.client.topics.create("c", partitions=1, config=config)
    world = SinkWorld(bench, topic="c")
    with pytest.raises(InvalidRequestError) as keyless:
        await world.stage([table([("a", b"1"), (None, b"2")])])
    assert keyless.value.fields == {"topic": "c", "null_key_count": 1}
    with pytest.raises(InvalidRequestError):
        await world.stage([pa.RecordBatch.from_pydict({"value": pa.array([b"1"])})])
    for wrong in (1_000, 4_000_000_000_000_000):
        times = pa.array([None, wrong], pa.timestamp("us", "UTC"))
        with pytest.raises(InvalidTimestampError) as untimely:
            await world.stage([table([("a", b"1"), ("b", b"2")], timestamp=times)])
        assert untimely.value.fields["timestamp_ms"] == wrong // 1_000
    assert world.staging_topic not in await bench.topic_names()
    await bench.client.topics.alter("c", {"message.timestamp.type": "LogAppendTime"})
    await world.commit(0, [await world.stage([table([("a", b"1"), ("b", b"2")], timestamp=times)])])
    assert await values(bench, "c") == [b"1", b"2"]


async def test_a_batch_that_the_server_finds_too_large_is_divided(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic's limit was lowered after the rows were staged."""
    monkeypatch.setattr("stratalog.pipeline.sink.target_batches.BATCH_BYTES", 4_000)
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, topic="t")
    task = await world.stage([table(rows_of_task(0, 50))])
    await bench.client.topics.alter("t", {"max.message.bytes": 300})
    deaths = [await world.dies(0, [task], Accident(number, True)) for number in (6, 2, 2, 2, 2)]
    assert sum(deaths) > 2
    await world.commit(0, [task])
    assert await values(bench) == [value for _, value in rows_of_task(0, 50)]


async def test_a_partition_that_refuses_the_rows_is_named_and_the_next_try_goes_on(
    bench: ServiceBench,
) -> None:
    await bench.client.topics.create("t", partitions=2)
    world = SinkWorld(bench, topic="t")
    old = pa.array([None, 1_000], pa.timestamp("us", "UTC"))
    batch = table([("a", b"1"), ("b", b"2")], partition=pa.array([0, 1], pa.int32()), timestamp=old)
    task = await world.stage([batch])
    await bench.client.topics.alter("t", {"message.timestamp.before.max.ms": 1_000_000})
    with pytest.raises(InvalidTimestampError) as refused:
        await world.commit(0, [task])
    assert refused.value.fields["staging_topic"] == world.staging_topic
    assert len(refused.value.__notes__) == 1
    await bench.client.topics.alter("t", {"message.timestamp.before.max.ms": None})
    await world.commit(0, [await world.stage([batch])])
    assert await bench.values("t") == [[b"1"], [b"2"]]


async def test_a_topic_that_was_made_anew_gets_the_rows_of_new_attempts(bench: ServiceBench) -> None:
    """Rows that were placed for the former topic are not decided on: nothing could ever append them."""
    for topic in ("t", "u"):
        await bench.client.topics.create(topic, partitions=1)
    world = SinkWorld(bench)
    batch = table([("a", b"1"), ("b", b"2")], topic=pa.array(["t", "u"]))
    task = await world.stage([batch])
    await bench.client.topics.delete("u")
    with pytest.raises(UnknownTopicOrPartitionError):
        await world.commit(0, [task])
    await bench.client.topics.create("u", partitions=1)
    with pytest.raises(InconsistentTopicIdError) as refused:
        await world.commit(0, [task])
    assert refused.value.fields["topic"] == "u"
    await world.commit(0, [await world.stage([batch])])
    assert [await values(bench, topic) for topic in ("t", "u")] == [[b"1"], [b"2"]]


async def test_rows_that_retention_deletes_do_not_keep_a_batch_from_its_end(bench: ServiceBench) -> None:
    """The next driver finds neither the producer, whose rows have old times, nor all of the log."""
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, topic="t")
    rows = rows_of_task(0, 30)
    old = pa.array([1_000] * len(rows), pa.timestamp("us", "UTC"))
    task = await world.stage([table(rows, timestamp=old)])
    assert await world.dies(0, [task], Accident(4))
    written = len(await values(bench))
    assert 2 < written < 30
    bench.partition("t").log.remove_expired_producers()
    await bench.client.admin.delete_records("t", 0, 2)
    await world.commit(0, [task])
    assert await values(bench) == [value for _, value in rows[2:]]


async def test_a_query_that_gets_a_durability_stages_with_it(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.topics.create("t", partitions=1)
        for number, durability in enumerate(("disk", "object", "os")):
            world = SinkWorld(bench, topic="t", durability=durability)
            await world.commit(number, [await world.stage([table([("a", b"%d" % number)])])])
            config = (await bench.client.topics.describe(world.staging_topic)).config
            # It does not become less durable.
            assert config["min.durability"] == ("object" if number else "disk")
        assert await values(bench) == [b"0", b"1", b"2"]


async def test_staged_rows_that_are_gone_are_noticed(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, topic="t")
    task = await world.stage([table(rows_of_task(0, 12))])
    forged = task._replace(batch_count=task.batch_count + 1, places=None)
    with pytest.raises(CorruptRecordError) as refused:
        await world.commit(0, [forged])
    assert refused.value.fields["attempts"] == task.attempt


@pytest.mark.parametrize("has_places", [True, False], ids=["decisions", "rows"])
async def test_a_commit_ends_with_an_error_when_the_disk_of_the_server_hangs(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, has_places: bool
) -> None:
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, topic="t")
    rows = rows_of_task(0, 6)
    first = await world.stage([table(rows[:3])])
    if has_places:
        # The decision on this one is read by the next commit.
        await world.commit(0, [first])
    task = await world.stage([table(rows[3:])]) if has_places else first._replace(places=None)
    answers = threading.Event()
    read_local = HostedPartition.read_local

    def waiting(*arguments: Any, **options: Any) -> Any:
        answers.wait()
        return read_local(*arguments, **options)

    def nothing(*arguments: Any, **options: Any) -> None:
        return None

    with monkeypatch.context() as patch:
        patch.setattr(HostedPartition, "read_local", waiting)
        for name in ("read_recent", "read_cached"):
            patch.setattr(HostedPartition, name, nothing)
        patch.setattr("stratalog.client.client.CALL_TIMEOUT_S", 0.1)
        patch.setattr("stratalog.pipeline.sink.log_answers._MAX_WAIT_MS", 0)
        with pytest.raises(ServerUnavailableError):
            async with Client(bench.client.address, retry=RetryPolicy(deadline_s=0.1)) as client:
                await BatchCommit(client, world.staging_topic, None).commit(1, [task])
        answers.set()
    await world.commit(1, [task])
    assert await values(bench) == [value for _, value in (rows if has_places else rows[:3])]


@pytest.mark.parametrize("call_count", [1, 2, 32])
async def test_the_driver_appends_what_the_server_does_not_copy(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, call_count: int
) -> None:
    """A place is wrong: some copies are made, and the other batches are appended in their order."""
    monkeypatch.setattr("stratalog.pipeline.sink.staged_copies.FIRST_CALL_COUNT", call_count)
    await bench.client.topics.create("t", partitions=2)
    world = SinkWorld(bench, topic="t")
    rows = rows_of_task(0, 30)
    task = await world.stage([table(rows)])
    assert task.places is not None
    wrong = task.places._replace(offsets=task.places.offsets[:-1] + array("q", [task.end_offset + 1]))
    appends = await world.commit(0, [task._replace(places=wrong)])
    written = [value for _, value in rows]
    assert sorted(await values(bench), key=str) == sorted(written, key=str)
    for part in await bench.values("t"):
        assert part == [value for value in written if value in part]
    copied = await world.commit(1, [await world.stage([table(rows)])])
    assert copied < appends
    assert Counter(await values(bench)) == Counter(dict.fromkeys(written, 2))


async def test_rows_of_another_attempt_are_not_copied(bench: ServiceBench) -> None:
    """The server has lost the staged rows, and others have their offsets."""
    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, topic="t")
    lost = await world.stage([table(rows_of_task(0, 8))])
    other = await world.stage([table(rows_of_task(1, 8))])
    assert lost.batch_count == other.batch_count
    with pytest.raises(CorruptRecordError):
        await world.commit(0, [other._replace(attempt=lost.attempt)])
    assert await values(bench) == []


@COPIES
@pytest.mark.parametrize("durability", ["disk", "object"])
async def test_found_records_get_the_durability_too(tmp_path: Path, durability: str, copies: bool) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.topics.create("t", partitions=1)
        world = SinkWorld(bench, copies=copies, topic="t", durability=durability)
        rows = rows_of_task(0, 4)
        append_count = await world.commit(0, [await world.stage([table(rows)])])
        task = await world.stage([table(rows)])
        with pytest.raises(DiedError):
            await world.commit(1, [task], Accident(append_count - 2, is_stored=True))
        await world.commit(1, [task])
        tiered = await bench.client.offsets([TopicPartition("t", 0)], "latest-tiered")
        assert tiered == {TopicPartition("t", 0): 7 if durability == "object" else -1}
        assert await values(bench) == [value for _, value in rows] * 2


async def test_delivery_at_least_once_appends_in_the_task(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=2)
    world = SinkWorld(bench, topic="t", delivery="atLeastOnce", compression="lz4")

    def write() -> int:
        with world.options.service.sync_client() as client:
            return append_rows(client, [table(rows_of_task(0, 30)), table([])], world.options)

    assert await asyncio.to_thread(write) == 30
    assert len(await values(bench)) == 30
    assert world.staging_topic not in await bench.topic_names()


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
async def test_rows_that_cannot_be_sent_name_their_topic(bench: ServiceBench, delivery: str) -> None:
    await bench.client.topics.create("t", partitions=2)
    world = SinkWorld(bench, topic="t", delivery=delivery)
    early = pa.array([-1_000], pa.timestamp("us", "UTC"))

    def append(batch: pa.RecordBatch) -> None:
        with world.options.service.sync_client() as client:
            append_rows(client, [batch], world.options)

    for batch in (
        table([("a", b"1")], partition=pa.array([2], pa.int32())),
        table([("a", b"1")], timestamp=early),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            await (world.stage([batch]) if delivery == "exactlyOnce" else asyncio.to_thread(append, batch))
        assert refused.value.fields["topic"] == "t"


async def test_a_delivery_that_changes_at_a_decided_batch_is_refused(bench: ServiceBench) -> None:
    """Tasks would append the rows that the decision appends, too."""
    pytest.importorskip("pyspark")
    from stratalog.pipeline.sink.topic_writer import TopicWriter

    await bench.client.topics.create("t", partitions=1)
    world = SinkWorld(bench, "load", topic="t")
    named = replace(world.options, job_id="load", is_exactly_once=False)
    rows = rows_of_task(0, 3)
    task = await world.stage([table(rows)])
    assert await world.dies(0, [task], Accident(1))
    for is_pending in (True, False):
        if not is_pending:
            await world.commit(0, [task])
        with pytest.raises(InvalidRequestError) as refused:
            await asyncio.to_thread(TopicWriter(named).write, iter([table(rows)]))
        assert refused.value.fields == {"staging_topic": "spark-sink-load", "batch": 0, "decided_batch": 0}
    assert await values(bench) == [value for _, value in rows]
    await asyncio.to_thread(TopicWriter(replace(named, job_id="other")).write, iter([table(rows)]))
    assert len(await values(bench)) == 6


async def test_the_writer_of_a_job_keeps_nothing_behind_its_end(
    bench: ServiceBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    from stratalog.pipeline.sink.topic_writer import TopicWriter

    await bench.client.topics.create("t", partitions=1)
    options = SinkWorld(bench, topic="t").options

    def run(options: SinkOptions, *, is_aborted: bool) -> None:
        writer = TopicWriter(options)
        task: TopicWriter = pickle.loads(pickle.dumps(writer))
        messages = [task.write(iter([table(rows_of_task(0, 3))])), task.write(iter([]))]
        if is_aborted:
            writer.abort([messages[0], None])
        else:
            writer.commit([*messages])

    await asyncio.to_thread(run, options, is_aborted=True)
    assert await bench.topic_names() == ["t"]
    assert await values(bench) == []
    await asyncio.to_thread(run, options, is_aborted=False)
    assert await bench.topic_names() == ["t"]
    named = replace(options, job_id="load")
    await asyncio.to_thread(run, named, is_aborted=False)
    assert "jobId" not in caplog.text
    await asyncio.to_thread(run, named, is_aborted=False)
    (said,) = (one.getMessage() for one in caplog.records if "jobId" in one.getMessage())
    assert "jobId=`load` batchId=`` written_record_count=`3` left_out_record_count=`3`" in said
    # An older version did not note how many rows it wrote.
    older = replace(options, job_id="older")
    applied = Decision.applied

    def without_count(decision: Decision) -> Decision:
        return applied(decision)._replace(record_count=None)

    with monkeypatch.context() as patch:
        patch.setattr(Decision, "applied", without_count)
        await asyncio.to_thread(run, older, is_aborted=False)
    await asyncio.to_thread(run, older, is_aborted=False)
    assert "jobId=`older` batchId=`` written_record_count=`unknown` left_out_record_count=`3`" in caplog.text
    staged = [TopicPartition("spark-sink-load", ROWS)]
    assert await bench.client.offsets(staged, "earliest") == await bench.client.offsets(staged, "latest")
    # Spark aborts when a commit has failed, though the job is decided on.
    await asyncio.to_thread(run, named, is_aborted=True)
    assert await bench.topic_names() == ["spark-sink-load", "spark-sink-older", "t"]
    assert len(await values(bench)) == 9


async def test_a_job_writes_batch_after_batch_under_one_name(
    bench: ServiceBench, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pyspark")
    from stratalog.pipeline.sink.topic_writer import TopicWriter

    await bench.client.topics.create("t", partitions=1)
    options = replace(SinkWorld(bench, topic="t").options, job_id="counts")

    async def run(number: int, rows: list[Row], *, is_aborted: bool = False) -> None:
        def write() -> None:
            writer = TopicWriter(replace(options, batch_id=number))
            task: TopicWriter = pickle.loads(pickle.dumps(writer))
            messages = [task.write(iter([table(rows)])), task.write(iter([]))]
            (writer.abort if is_aborted else writer.commit)([*messages])

        await asyncio.to_thread(write)

    rows = rows_of_task(0, 9)
    await run(0, rows[:3], is_aborted=True)
    assert await bench.topic_names() == ["t"]
    await run(0, rows[:3])
    assert "jobId" not in caplog.text
    # Spark makes the newest batch again, and aborts others, without loss of the decisions.
    await run(0, rows[:3])
    left_out = "jobId=`counts` batchId=`0` written_record_count=`3` left_out_record_count=`3`"
    assert left_out in caplog.text
    await run(1, rows[3:5], is_aborted=True)
    await run(1, rows[3:5])
    await run(7, rows[5:])
    await run(7, rows[5:])
    assert await values(bench) == [value for _, value in rows]
    assert await bench.topic_names() == ["spark-sink-counts", "t"]
    staged = [TopicPartition("spark-sink-counts", ROWS)]
    assert await bench.client.offsets(staged, "earliest") == await bench.client.offsets(staged, "latest")
    for number, some in ((7, rows[6:]), (6, rows[5:])):
        with pytest.raises(InvalidRequestError):
            await run(number, some)
    assert await values(bench) == [value for _, value in rows]


@pytest.mark.parametrize("is_pending", [False, True], ids=["written", "decided"])
async def test_a_stream_whose_batch_was_committed_with_other_rows_fails(
    bench: ServiceBench, is_pending: bool
) -> None:
    """Its checkpoint is a copy of another query's. Rows that were made again are no other rows."""
    pytest.importorskip("pyspark")
    from stratalog.pipeline.sink.topic_writer import StagedMessage, TopicStreamWriter

    for topic in ("t", "u"):
        await bench.client.topics.create(topic, partitions=2)
    first, copied = (SinkWorld(bench, topic=topic) for topic in ("t", "u"))
    rows: list[Row] = [(None, b"%d" % number) for number in range(6)]

    async def commit(world: SinkWorld, *tasks: StagedTask) -> None:
        messages = [StagedMessage(world.staging_topic, task) for task in tasks]
        await asyncio.to_thread(TopicStreamWriter(world.options).commit, [*messages], 3)

    task = await first.stage([table(rows)])
    if is_pending:
        assert await first.dies(3, [task], Accident(1))
    else:
        await commit(first, task)
    for world, some in ((copied, rows), (first, rows[:5]), (first, [])):
        with pytest.raises(InvalidRequestError) as refused:
            await commit(world, await world.stage([table(some)]))
        assert str(refused.value.fields["written"]).startswith("6 to t (")
        of_some = f"{len(some)} to {world.options.topic} (" if some else "nothing"
        assert str(refused.value.fields["left_out"]).startswith(of_some)
    # The rows have no keys, so these tasks place them in the partitions in another way.
    again = [await first.stage([table(rows[:2])], 1), await first.stage([table(rows[2:])], 1)]
    assert dict(again[0].record_counts).keys() != dict(task.record_counts).keys()
    await commit(first, *again)
    assert await values(bench) == [value for _, value in rows]
    assert await values(bench, "u") == []
