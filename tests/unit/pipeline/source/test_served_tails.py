"""Queries and streams with a service, as Spark calls them, without its JVM: a server in this process has the
records that are not tiered."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from queue import SimpleQueue
from random import Random
from threading import Event
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from stratalog.base.errors import (
    InvalidConfigError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.pipeline.source.read_options import parse_options
from stratalog.pipeline.source.served_log import ServedLogs
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.topics.topic_host import TopicHost
from tests.support.logs.sampling import IS_WHOLE
from tests.support.service.service_bench import ServiceBench, end_transaction, service_bench
from tests.support.tiered.unstable_uploads import unstable_uploads

pytest.importorskip("pyspark")
pytestmark = pytest.mark.asyncio(loop_scope="module")

START_MS = 1_700_000_000_000
COLUMNS = ("partition", "offset", "key", "value")
PARTITION_COUNT = 2
_NUMBERS = itertools.count()


class Row(NamedTuple):
    """A row of a scan."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Topic:
    """A topic on a server, with the records that were appended. Belongs to the event loop; readers have a
    thread."""

    def __init__(self, bench: ServiceBench, store_url: str, name: str) -> None:
        self.bench = bench
        self.name = name
        self.given = {"store": store_url, "server": bench.client.address, "topic": name}
        self.written: dict[int, list[Row]] = {number: [] for number in range(PARTITION_COUNT)}

    async def append(self, partition: int, count: int, key_count: int = 1_000) -> None:
        rows = self.written[partition]
        new = [
            Row(partition, offset, b"k%d" % (offset % key_count), b"v%d" % offset)
            for offset in range(len(rows), len(rows) + count)
        ]
        records = [Record(0, START_MS + row.offset, row.key, row.value) for row in new]
        ack = await self.bench.client.append(self.name, partition, records)
        assert ack.base_offset == len(rows)
        rows += new

    async def upload(self, *, delete_local: bool = False) -> None:
        await self.bench.client.admin.upload([self.name], delete_local=delete_local)

    async def delete_before(self, partition: int, offset: int) -> None:
        await self.bench.client.admin.delete_records(self.name, partition, offset)

    def rows(self, partition: int, first: int = 0, end: int | None = None) -> list[Row]:
        return self.written[partition][first:end]

    def query(self, **options: str) -> Query:
        return Query({**self.given, **options})

    async def read(self, **options: str) -> list[Row]:
        query = self.query(**options)
        await query.plan()
        return await query.rows()


class Query:
    """A query in its two steps: the plan on the driver, and the tasks on executors."""

    def __init__(self, options: dict[str, str]) -> None:
        from stratalog.pipeline.source.topic_reader import TopicReader

        self.reader = TopicReader(parse_options(options, is_stream=False), COLUMNS)
        self.tasks: Any = []

    async def plan(self) -> None:
        self.tasks = await asyncio.to_thread(self.reader.partitions)

    async def rows(self) -> list[Row]:
        """The rows in the order of partition and offset."""
        return await asyncio.to_thread(_rows, self.reader, self.tasks)


def _rows(reader: Any, tasks: Any) -> list[Row]:
    """The rows that an instance returns which has travelled to an executor."""
    reader, tasks = pickle.loads(pickle.dumps((reader, tasks)))
    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted(Row(**row) for row in found)


class Stream:
    """A stream as Spark runs it: a batch at a time, with offsets that pass through JSON."""

    def __init__(self, topic: Topic, start: dict[str, Any] | None = None, /, **options: str) -> None:
        from stratalog.pipeline.source.stream_reader import TopicStreamReader

        given = {"startingOffsets": "earliest", "idlePollMs": "0", **topic.given, **options}
        if "topicPattern" in options:
            del given["topic"]
        self.reader = TopicStreamReader(parse_options(given, is_stream=True), COLUMNS)
        self.offsets = start

    async def begin(self) -> Stream:
        if self.offsets is None:
            self.offsets = await asyncio.to_thread(self.reader.initialOffset)
        return self

    async def next_batch(self) -> list[Row]:
        start = self.offsets
        assert start is not None
        limit = self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(await asyncio.to_thread(self.reader.latestOffset, start, limit)))
        rows = await self.rows(start, end)
        self.offsets = end
        return rows

    async def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        tasks = await asyncio.to_thread(self.reader.partitions, start, end)
        return await asyncio.to_thread(_rows, self.reader, tasks)


class StreamBatch:
    """The next batch of a stream in its two steps, as those of a query."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.tasks: Any = []

    async def plan(self) -> None:
        reader, start = self.stream.reader, self.stream.offsets
        assert start is not None
        end = await asyncio.to_thread(reader.latestOffset, start, reader.getDefaultReadLimit())
        self.tasks = await asyncio.to_thread(reader.partitions, start, end)

    async def rows(self) -> list[Row]:
        """The rows in the order of partition and offset."""
        return await asyncio.to_thread(_rows, self.stream.reader, self.tasks)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[tuple[ServiceBench, str]]:
    """A server, and the URL of its store."""
    folder = tmp_path_factory.mktemp("served")
    async with service_bench(folder) as bench:
        yield bench, f"file://{folder}/data.store"


@pytest_asyncio.fixture(loop_scope="module")
async def topic(served: tuple[ServiceBench, str]) -> Topic:
    """A topic of its own for each test."""
    bench, url = served
    name = f"t{next(_NUMBERS)}"
    config = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0", "retention.ms": "-1"}
    await bench.client.admin.create_topic(name, PARTITION_COUNT, config)
    return Topic(bench, url, name)


async def test_a_query_has_objects_and_tails_once(topic: Topic) -> None:
    await topic.append(0, 10)
    await topic.upload(delete_local=True)
    await topic.append(0, 5)
    await topic.append(1, 3)
    assert await topic.read() == topic.rows(0) + topic.rows(1)
    assert await topic.read(maxPartitionBytes="100") == topic.rows(0) + topic.rows(1)
    assert await topic.read(partitions="1") == topic.rows(1)
    ends = json.dumps({topic.name: {"0": 12, "1": 2}})
    starts = json.dumps({topic.name: {"0": 8, "1": 1}})
    found = await topic.read(startingOffsets=starts, endingOffsets=ends)
    assert found == topic.rows(0, 8, 12) + topic.rows(1, 1, 2)
    times = {"startingTimestamp": str(START_MS + 2), "endingTimestamp": str(START_MS + 12)}
    assert await topic.read(**times) == topic.rows(0, 2, 12) + topic.rows(1, 2)
    without = topic.query()
    del topic.given["server"]
    assert await topic.read() == topic.rows(0, 0, 10)
    await without.plan()
    assert "TailPartition" in repr(without.tasks)
    assert topic.bench.client.address not in repr(without.tasks)


async def test_bounds_behind_the_log_are_refused(topic: Topic) -> None:
    await topic.append(0, 10)
    ends = json.dumps({topic.name: {"0": 12, "1": 0}})
    with pytest.raises(OffsetOutOfRangeError) as error:
        await topic.read(endingOffsets=ends)
    assert (error.value.fields["offset"], error.value.fields["log_end_offset"]) == (12, 10)
    assert await topic.read(endingOffsets=ends, failOnDataLoss="false") == topic.rows(0)


Step = Callable[[Topic], Awaitable[None]]


async def _change(topic: Topic, chance: Random) -> None:
    """A change of the log or of its tiers."""
    kind = chance.randrange(4)
    if kind == 0:
        await topic.upload()
    elif kind == 1:
        await topic.upload(delete_local=True)
    else:
        await topic.append(chance.randrange(PARTITION_COUNT), chance.randrange(1, 30))


@pytest.mark.parametrize("seed", range(40 if IS_WHOLE else 2))
async def test_the_plan_fixes_the_rows_whatever_moves_afterwards(topic: Topic, seed: int) -> None:
    chance = Random(seed)
    log_start = 0
    for _ in range(6):
        for _ in range(2):
            await _change(topic, chance)
        if chance.random() < 0.3:
            log_start = chance.randrange(log_start, len(topic.written[0]) + 1)
            await topic.delete_before(0, log_start)
        query = topic.query(maxPartitionBytes=str(chance.choice([300, 1 << 20])))
        await query.plan()
        expected = topic.rows(0, log_start) + topic.rows(1)
        for _ in range(2):
            await _change(topic, chance)
        assert await query.rows() == expected


async def test_a_log_start_that_passes_the_tail_fails_the_query_or_leaves_it_out(topic: Topic) -> None:
    await topic.append(0, 10)
    await topic.append(1, 2)
    queries = topic.query(), topic.query(failOnDataLoss="false")
    for query in queries:
        await query.plan()
    await topic.delete_before(0, 6)
    with pytest.raises(OffsetOutOfRangeError) as error:
        await queries[0].rows()
    fields = error.value.fields
    assert (fields["topic"], fields["partition"], fields["tail"]) == (topic.name, 0, "0-10")
    assert await queries[1].rows() == topic.rows(0, 6) + topic.rows(1)


async def test_a_tail_that_was_compacted_since_the_plan_is_not_mixed_with_older_objects(topic: Topic) -> None:
    """The objects of the plan have older records of the same keys."""
    await topic.append(0, 10, key_count=5)
    await topic.upload()
    await topic.append(0, 10, key_count=5)
    strict, tolerant = topic.query(), topic.query(failOnDataLoss="false")
    for query in (strict, tolerant):
        await query.plan()
    await topic.append(0, 10, key_count=5)
    await topic.upload(delete_local=True)
    assert await strict.rows() == topic.rows(0, 0, 20), "not compacted yet"
    assert await topic.bench.client.admin.run_compaction([topic.name])
    assert await tolerant.rows() == topic.rows(0, 0, 10)
    with pytest.raises(OffsetOutOfRangeError) as error:
        await strict.rows()
    assert error.value.fields["offset"] == 10, "the first one that compaction has removed"
    assert await topic.read() == topic.rows(0, 25)


async def lose_tail(topic: Topic) -> None:
    """The disk of the server loses the tail, which was not uploaded."""
    log = topic.bench.partition(topic.name, 0).log
    await asyncio.to_thread(log.roll)
    assert await asyncio.to_thread(log.retention.drop_for_space, 1 << 40, may_lose=True)


@pytest.mark.parametrize("when", ["before the plan", "after the plan", "and recorded"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_records_that_the_disk_lost_before_their_upload_fail_a_reader_or_leave_a_warning(
    topic: Topic, when: str, is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await topic.append(0, 3)
    await topic.upload(delete_local=True)
    await topic.append(0, 3)
    if when == "before the plan":
        await lose_tail(topic)
    await topic.append(0, 3)
    caplog.clear()

    async def plan(**options: str) -> Query | StreamBatch:
        if not is_stream:
            query = topic.query(**options)
            await query.plan()
            return query
        batch = StreamBatch(await Stream(topic, **options).begin())
        await batch.plan()
        return batch

    strict, tolerant = await plan(), await plan(failOnDataLoss="false")
    if when != "before the plan":
        await lose_tail(topic)
        # The active segment goes, too.
        lost = {"offset": 3, "end_offset": 9}
        await topic.append(0, 1)
    else:
        lost = {"offset": 3, "end_offset": 6}
    if when == "and recorded":
        await topic.upload(delete_local=True)
    with pytest.raises(OffsetOutOfRangeError) as error:
        await strict.rows()
    found = error.value.fields
    assert {**found, **lost, "topic": topic.name, "partition": 0, "tail": "3-9"} == found
    assert ("reason" in found) == (when == "and recorded")
    caplog.clear()
    assert await tolerant.rows() == topic.rows(0, 0, 3) + topic.rows(0, int(lost["end_offset"]), 9)
    (warning,) = caplog.records
    assert all(f"{name}=`{value}`" in warning.getMessage() for name, value in lost.items())


async def test_a_tail_that_was_compacted_since_the_plan_is_no_loss_for_a_stream(topic: Topic) -> None:
    await topic.append(0, 10, key_count=5)
    batch = StreamBatch(await Stream(topic).begin())
    await batch.plan()
    await topic.append(0, 3, key_count=5)
    await topic.upload(delete_local=True)
    assert await topic.bench.client.admin.run_compaction([topic.name])
    assert await batch.rows() == topic.rows(0, 8, 10)


async def test_committed_records_of_both_tiers(topic: Topic) -> None:
    """Producer 1 aborts in the objects, 2 is undecided there and commits behind them, 3 is undecided."""
    hosted = topic.bench.partition(topic.name, 0)
    await topic.bench.take_producer_ids(3)

    def send(producer: int, sequence: int = 0) -> int:
        batch = encode_batch(
            [Record(0, START_MS, b"k", b"p%d" % producer)],
            producer=BatchProducer(producer, 0, sequence, is_transactional=True),
        )
        # No client can send a transaction yet.
        appended = hosted.log.appender.append_as_leader(batch, hosted.shard.leader_epoch())
        hosted.log.flusher.flush()
        return appended.base_offset

    def end(producer: int, *, committed: bool) -> None:
        end_transaction(hosted, producer, committed=committed)

    send(1)
    kept = [send(2)]
    end(1, committed=False)
    with unstable_uploads():
        await topic.upload(delete_local=True)
    assert hosted.tiered_end_offset == 3, "the objects have more than a reader of them may see"
    kept.append(send(2, 1))
    end(2, committed=True)
    aborted = send(1, 1)
    end(1, committed=False)
    undecided = send(3)
    found = await topic.read(isolationLevel="read_committed")
    assert [row.offset for row in found] == kept
    everything = [row.offset for row in await topic.read()]
    assert everything == [0, *kept, aborted, undecided]


async def test_a_stream_goes_on_as_records_are_appended(topic: Topic) -> None:
    stream = await Stream(topic).begin()
    await topic.append(0, 10)
    assert await stream.next_batch() == topic.rows(0)
    start = stream.offsets
    await topic.upload(delete_local=True)
    assert await stream.next_batch() == []
    await topic.append(0, 5)
    await topic.append(1, 3)
    end = (await Stream(topic, start).begin()).offsets
    restarted = Stream(topic, end)
    assert await restarted.next_batch() == topic.rows(0, 10) + topic.rows(1)
    await topic.upload(delete_local=True)
    assert start is not None
    assert restarted.offsets is not None
    replayed = Stream(topic, start)
    assert await replayed.rows(start, restarted.offsets) == topic.rows(0, 10) + topic.rows(1)


async def test_a_stream_may_give_up_its_service(topic: Topic) -> None:
    await topic.append(0, 10)
    stream = await Stream(topic).begin()
    await stream.next_batch()
    del topic.given["server"]
    alone = Stream(topic, stream.offsets)
    assert await alone.next_batch() == []
    alone = Stream(topic, alone.offsets)
    assert await alone.next_batch() == [], "the records that it has read may be on their way to the store"
    await topic.append(0, 5)
    await topic.upload()
    assert stream.offsets is not None
    assert "epochs" in stream.offsets["topics"][topic.name]
    assert await alone.next_batch() == topic.rows(0, 10)
    assert alone.offsets is not None
    assert alone.offsets["topics"][topic.name]["epochs"].keys() == {"1"}, "that of another offset goes"


@pytest.mark.parametrize("limits", [{"maxOffsetsPerTrigger": "12"}, {"maxBytesPerTrigger": "300"}])
async def test_limits_and_available_now_count_the_tail(topic: Topic, limits: dict[str, str]) -> None:
    await topic.append(0, 20)
    await topic.upload()
    await topic.append(0, 60)
    await topic.append(1, 20)
    stream = await Stream(topic, **limits).begin()
    await asyncio.to_thread(stream.reader.prepareForTriggerAvailableNow)
    await topic.append(0, 50)
    batches: list[list[Row]] = []
    while batch := await stream.next_batch():
        batches.append(batch)
    assert sorted(row for batch in batches for row in batch) == topic.rows(0, 0, 80) + topic.rows(1, 0, 20)
    assert len(batches) > 3
    assert max(map(len, batches)) < 60


async def test_a_server_of_another_store_is_refused(topic: Topic, tmp_path: Path) -> None:
    async with service_bench(tmp_path) as other:
        with pytest.raises(InvalidConfigError) as error:
            await topic.read(server=other.client.address)
    assert error.value.fields["name"] == "server"


async def test_a_server_that_took_over_without_the_tail_fails_the_stream(tmp_path: Path) -> None:
    """The lost records were read already; those that the new owner puts into their place are others."""
    async with service_bench(tmp_path / "a") as first:
        url = f"file://{tmp_path}/a/data.store"
        await first.client.admin.create_topic("t", PARTITION_COUNT, {})
        topic = Topic(first, url, "t")
        await topic.append(0, 10)
        await topic.upload()
        await topic.append(0, 10)
        stream = await Stream(topic).begin()
        query = topic.query()
        await query.plan()
        assert len(await stream.next_batch()) == 20
    async with service_bench(tmp_path / "b", store_url=url) as second:
        successor = Topic(second, url, "t")
        assert await successor.read() == topic.rows(0, 0, 10)
        with pytest.raises(OffsetOutOfRangeError) as error:
            await Stream(successor, stream.offsets).next_batch()
        assert (error.value.fields["offset"], error.value.fields["end_offset"]) == (20, 10)
        tolerant = Stream(successor, stream.offsets, failOnDataLoss="false")
        assert await tolerant.next_batch() == []
        successor.written[0] = topic.rows(0, 0, 10)
        await successor.append(0, 4)
        assert await tolerant.next_batch() == successor.rows(0, 10)
        # Now the log is longer than the place of the first stream.
        await successor.append(0, 10)
        with pytest.raises(OffsetOutOfRangeError) as error:
            await Stream(successor, stream.offsets).next_batch()
        assert (error.value.fields["offset"], error.value.fields["end_offset"]) == (20, 10)
        later = Stream(successor, stream.offsets, failOnDataLoss="false")
        assert await later.next_batch() == [], "it goes back"
        assert await later.next_batch() == successor.rows(0, 10)
    async with service_bench(tmp_path / "b", store_url=url) as third:
        restarted = Topic(third, url, "t")
        restarted.written[0] = successor.rows(0)
        await restarted.append(0, 3)
        goes_on = Stream(restarted, tolerant.offsets)
        assert await goes_on.next_batch() == restarted.rows(0, 14), "a restart loses nothing"


async def test_a_stream_that_is_behind_log_start_may_go_on_after_a_restart(tmp_path: Path) -> None:
    """The server has another epoch then, and no record by which the epochs could be compared."""
    async with service_bench(tmp_path / "a") as first:
        url = f"file://{tmp_path}/a/data.store"
        await first.client.admin.create_topic("t", PARTITION_COUNT, {})
        topic = Topic(first, url, "t")
        await topic.append(0, 10)
        stream = await Stream(topic).begin()
        await stream.next_batch()
        await topic.append(0, 10)
        await topic.upload()
    async with service_bench(tmp_path / "b", store_url=url) as second:
        successor = Topic(second, url, "t")
        successor.written[0] = topic.rows(0)
        await successor.append(0, 5)
        await successor.delete_before(0, 15)
        with pytest.raises(OffsetOutOfRangeError) as error:
            await Stream(successor, stream.offsets).next_batch()
        # Our own report of a loss, which has the end of the batch, too.
        assert (error.value.fields["offset"], error.value.fields["end_offset"]) == (10, 25)
        tolerant = Stream(successor, stream.offsets, failOnDataLoss="false")
        assert await tolerant.next_batch() == successor.rows(0, 15)


def note_failures(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[LogStoreError]:
    """The failures of plans to learn how far the logs reach, from now on."""
    failures: SimpleQueue[LogStoreError] = SimpleQueue()
    logs_of = ServedLogs.logs_of

    def noted(*arguments: Any) -> Any:
        try:
            return logs_of(*arguments)
        except LogStoreError as error:
            failures.put(error)
            raise

    monkeypatch.setattr(ServedLogs, "logs_of", noted)
    return failures


def note_looks(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[None]:
    """The plans that begin to learn how far the logs reach, from now on."""
    looks: SimpleQueue[None] = SimpleQueue()
    logs_of = ServedLogs.logs_of

    def noted(*arguments: Any) -> Any:
        looks.put(None)
        return logs_of(*arguments)

    monkeypatch.setattr(ServedLogs, "logs_of", noted)
    return looks


async def test_a_stream_waits_for_a_server_that_does_not_know_a_new_topic_yet(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog has the topic first. A reader that looks at this moment sees it there alone."""
    is_in_catalog, publish = Event(), TopicHost.publish
    looks = note_looks(monkeypatch)

    def publish_late(*arguments: Any, **options: Any) -> Any:
        is_in_catalog.set()
        looks.get(timeout=10)
        return publish(*arguments, **options)

    pattern = {"topicPattern": f"{topic.name}(-new)?"}
    await topic.append(0, 3)
    stream = await Stream(topic, **pattern).begin()
    monkeypatch.setattr(TopicHost, "publish", publish_late)
    new = topic.bench.client.admin.create_topic(f"{topic.name}-new", 1, {})
    creation = asyncio.ensure_future(new)
    assert await asyncio.to_thread(is_in_catalog.wait, 10)
    assert await stream.next_batch() == topic.rows(0)
    await creation
    assert set((stream.offsets or {})["topics"]) == {topic.name, f"{topic.name}-new"}


async def test_a_topic_that_is_deleted_between_catalog_and_server_is_left_out(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, admin, name = asyncio.get_running_loop(), topic.bench.client.admin, f"{topic.name}-old"
    logs_of = ServedLogs.logs_of
    deleted: list[str] = []

    def delete_first(served: ServedLogs, tips: Any) -> Any:
        if not deleted:
            deleted.append(name)
            asyncio.run_coroutine_threadsafe(admin.delete_topic(name), loop).result(10)
        return logs_of(served, tips)

    await admin.create_topic(name, 1, {})
    await topic.append(0, 3)
    monkeypatch.setattr(ServedLogs, "logs_of", delete_first)
    for given in ({"topicPattern": f"{topic.name}(-old)?"}, {"topic": f"{topic.name},{name}"}):
        deleted.clear()
        query = Query({**{key: value for key, value in topic.given.items() if key != "topic"}, **given})
        if "topic" in given:
            await admin.create_topic(name, 1, {})
            with pytest.raises(UnknownTopicOrPartitionError):
                await query.plan()
        else:
            await query.plan()
            assert await query.rows() == topic.rows(0)
        assert deleted


async def test_a_stream_waits_for_an_owner_that_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server describes what the object store has of its partitions, and no more."""
    url = f"file://{tmp_path}/store"
    failures = note_failures(monkeypatch)

    def bench(number: int) -> AbstractAsyncContextManager[ServiceBench]:
        folder = tmp_path / str(number)
        return service_bench(folder, store_url=url, shard_count=2, own_shards=(number,))

    async with bench(0) as first, Client(first.client.address) as client:
        async with bench(1):
            await first.refresh()
            await client.topics.create("t", partitions=8)
            for number in range(8):
                await client.append("t", number, [Record(0, START_MS, b"k", b"v")])
            stream = await Stream(Topic(first, url, "t")).begin()
            assert len(await stream.next_batch()) == 8
            query = Topic(first, url, "t").query()
            await query.plan()
        rows = asyncio.ensure_future(query.rows())
        batch = asyncio.ensure_future(stream.next_batch())
        failure = await asyncio.to_thread(failures.get, timeout=10)
        assert isinstance(failure, ServerUnavailableError)
        assert failure.fields["topic"] == "t"
        async with bench(1):
            await first.refresh()
            assert await batch == []
            assert len(await rows) == 8


async def test_a_snapshot_has_no_tail() -> None:
    given = {"store": "file:///s", "topic": "t", "server": "h:1", "snapshot": "5"}
    with pytest.raises(InvalidConfigError) as error:
        parse_options(given, is_stream=False)
    assert error.value.fields["name"] == "server"
