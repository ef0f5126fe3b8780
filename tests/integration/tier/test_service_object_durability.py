"""Appends at `object`: acknowledged once they are in the bucket, visible then, and never before."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    InvalidConfigError,
    InvalidRequestError,
    NotOwnerError,
    RecordsLostError,
    StoppingError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability, TopicPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.support.gate import Gate
from tests.support.service.service_bench import ServiceBench, metadata_elsewhere, service_bench, until

OBJECT = {"min.durability": "object"}
SOON = {"remote.append.commit.interval.ms": "20"}
IMPATIENT = SOON | {"remote.append.commit.timeout.ms": "200"}


def keyed(*values: bytes, producer: BatchProducer | None = None) -> bytes:
    records = [Record(0, 0, b"k", value) for value in values]
    return encode_batch(records) if producer is None else encode_batch(records, producer=producer)


def of(producer_id: int, sequence: int) -> BatchProducer:
    return BatchProducer(producer_id, 0, sequence)


def has_end(log: UnifiedLog, end_offset: int) -> bool:
    return log.offsets.log_end_offset == end_offset


class Bucket:
    """A store that a test takes away. Thread-safe: one assignment."""

    def __init__(self) -> None:
        self.memory = MemoryObjectStore(SystemClock())
        self.fault: Callable[[Operation], Fault] = lambda _: Fault.NONE
        self.store = FaultyObjectStore(self.memory, Random(0), self._fault_of)

    def _fault_of(self, operation: Operation) -> Fault:
        return self.fault(operation)

    def go_away(self) -> None:
        self.fault = lambda _: Fault.FAILS

    def come_back(self) -> None:
        self.fault = lambda _: Fault.NONE

    def committed_end(self, bench: ServiceBench, partition: int = 0) -> int:
        """The tiered end as another process finds it in the bucket."""
        tip = bench.partition("t", partition).topic_id_partition
        return metadata_elsewhere(self.memory).state().partition(tip).tiered_end_offset


async def test_a_batch_goes_on_filling_while_five_of_its_partition_wait_for_a_commit(tmp_path: Path) -> None:
    """Otherwise records that come slowly leave in small batches, and each five of them take a commit."""
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=SOON) as bench:
        await bench.client.admin.create_topic("t", 1, OBJECT)
        log = bench.partition().log
        async with bench.client.producer(linger_ms=0) as producer:
            await producer.send("t", b"k", b"0")
            bucket.go_away()
            for number in range(1, 6):
                producer.send("t", b"k", b"%d" % number)
                await until(partial(has_end, log, number + 1))
            for number in range(6, 40):
                producer.send("t", b"k", b"%d" % number)
                for _ in range(3):
                    # A linger of 0 is over by then.
                    await asyncio.sleep(0)
            assert log.offsets.log_end_offset == 6
            bucket.come_back()
            await producer.flush()
        [source] = log.reader.tail_candidates(0)
        assert len(list(batches(log.reader.read_segment(source, 0, source.size_bytes)))) == 7
        assert await bench.values("t") == [[b"%d" % number for number in range(40)]]


async def test_what_is_acknowledged_survives_the_loss_of_the_machine(tmp_path: Path) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=SOON) as bench:
        await bench.client.admin.create_topic("t", 3)
        async with bench.client.producer(durability="object") as producer:
            sent = [producer.send("t", b"%d" % n, b"%d" % n) for n in range(300)]
            deliveries = [await one for one in sent]
        assert {one.durability for one in deliveries} == {Durability.OBJECT}
        ends = [bucket.committed_end(bench, number) for number in range(3)]
        before = await bench.read_all("t")
        assert ends == [len(part) for part in before]
        # Nothing was rolled for it.
        assert [len(bench.partition("t", n).log.reader.segments()) for n in range(3)] == [1, 1, 1]
    shutil.rmtree(tmp_path / "data")
    async with service_bench(tmp_path, store=bucket.store, config=SOON) as bench:
        assert await bench.read_all("t") == before
        assert sorted(int(one.value or b"") for part in before for one in part) == list(range(300))


async def test_all_partitions_that_wait_share_an_object(tmp_path: Path) -> None:
    # No turn begins by itself.
    config = {"remote.append.commit.interval.ms": str(24 * 3600 * 1000)}
    async with service_bench(tmp_path, config=config) as bench:
        await bench.client.admin.create_topic("t", 50, OBJECT)
        [commits] = bench.server.engine.tier.manager.commits
        batch = keyed(b"a")
        appends = [asyncio.ensure_future(bench.client.append_batches("t", n, batch)) for n in range(50)]
        await until(lambda: commits.stats.waiting_count == 50)
        assert commits.stats.waiting_bytes >= 50 * len(batch)
        assert not any(append.done() for append in appends)
        commits.hurry()
        await asyncio.gather(*appends)
        stats = commits.stats
        assert (stats.object_count, stats.slice_count, stats.append_count) == (1, 50, 50)
        assert (stats.waiting_count, stats.waiting_bytes, stats.timeout_count) == (0, 0, 0)
        assert stats.wait_s > 0
        await until(lambda: bench.server.engine.passes.status("object-commit").total_done.get("slices") == 50)


async def test_what_comes_before_a_turn_begins_shares_its_object(tmp_path: Path) -> None:
    # Each batch alone is less than what begins a turn, and both are more.
    config = {
        "remote.append.commit.interval.ms": str(24 * 3600 * 1000),
        "remote.append.buffer.max.bytes": str(1 << 16),
    }
    async with service_bench(tmp_path, config=config) as bench:
        await bench.client.admin.create_topic("t", 2, OBJECT)
        batch = keyed(bytes(50_000))
        await asyncio.gather(*(bench.client.append_batches("t", n, batch) for n in range(2)))
        [commits] = bench.server.engine.tier.manager.commits
        # Appends are answered before the upload ends, which counts.
        await until(lambda: commits.stats.object_count > 0)
        assert (commits.stats.object_count, commits.stats.slice_count) == (1, 2)


async def test_consumers_wake_with_the_commit_and_see_nothing_before_it(tmp_path: Path) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=SOON) as bench:
        await bench.client.admin.create_topic("t", 1, OBJECT)
        responses = bench.fetch_stream({TopicPartition("t", 0): 0})
        waiting = asyncio.ensure_future(anext(responses))
        await bench.until_waiting(1)
        bucket.go_away()
        appending = asyncio.ensure_future(bench.client.append_batches("t", 0, keyed(b"a")))
        await until(lambda: bench.partition().log_end_offset == 1)
        [described] = await bench.client.admin.describe_log("t")
        assert described.high_watermark == 0
        assert await bench.values("t") == [[]]
        assert not waiting.done()
        bucket.come_back()
        answer = await appending
        assert (answer.base_offset, answer.durability) == (0, Durability.OBJECT)
        assert bucket.committed_end(bench) == 1
        assert (await waiting).partitions[0].high_watermark == 1
        assert await bench.values("t") == [[b"a"]]


async def test_a_request_at_object_does_not_hold_back_the_consumers_of_a_weaker_topic(tmp_path: Path) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=SOON) as bench:
        await bench.client.admin.create_topic("t", 1)
        bucket.go_away()
        appending = asyncio.ensure_future(
            bench.client.append_batches("t", 0, keyed(b"a"), durability="object")
        )
        await until(lambda: bench.partition().log_end_offset == 1)
        assert await bench.values("t") == [[b"a"]]
        assert not appending.done()
        bucket.come_back()
        assert (await appending).durability == Durability.OBJECT
        assert bucket.committed_end(bench) == 1


async def test_without_the_store_an_append_fails_and_its_repetition_waits_for_the_commit(
    tmp_path: Path,
) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=IMPATIENT) as bench:
        await bench.client.admin.create_topic("t", 1, OBJECT)
        await bench.take_producer_ids(7)
        bucket.go_away()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError) as failure:
                await bench.client.append_batches("t", 0, keyed(b"a", producer=of(7, 0)))
            assert "may be committed later" in str(failure.value)
            assert bench.partition().log_end_offset == 1, "the repetition is not stored again"
        assert bucket.committed_end(bench) == 0
        await until(lambda: bench.server.engine.passes.status("object-commit").failed_turn_count > 0)
        bucket.come_back()
        await bench.client.admin.alter_configs({"remote.append.commit.timeout.ms": "30000"})
        answer = await bench.client.append_batches("t", 0, keyed(b"a", producer=of(7, 0)))
        assert answer.base_offset == 0
        assert bucket.committed_end(bench) == 1
        # What is committed is answered at once, also without the store.
        bucket.go_away()
        again = await bench.client.append_batches("t", 0, keyed(b"a", producer=of(7, 0)))
        assert (again.base_offset, again.durability) == (0, Durability.OBJECT)
        assert await bench.values("t") == [[b"a"]]
        [commits] = bench.server.engine.tier.manager.commits
        assert commits.stats.timeout_count == 2


async def test_an_append_whose_records_the_disk_has_lost_is_never_acknowledged(tmp_path: Path) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=IMPATIENT) as bench:
        await bench.client.admin.create_topic("t", 1, {"remote.copy.backlog.policy": "drop"})
        await bench.take_producer_ids(7)
        await bench.client.append_batches("t", 0, keyed(b"a", producer=of(7, 0)), durability="object")
        bucket.go_away()
        with pytest.raises(StoreUnavailableError):
            await bench.client.append_batches("t", 0, keyed(b"b", producer=of(7, 1)), durability="object")
        log = bench.partition().log
        log.roll()
        # As for a disk without space.
        await until(lambda: log.retention.drop_for_space(1 << 40, may_lose=True) > 0)
        assert log.offsets.local_log_start_offset == 2
        bucket.come_back()
        await bench.client.append_batches("t", 0, keyed(b"c", producer=of(7, 2)), durability="object")
        assert bucket.committed_end(bench) == 3
        with pytest.raises(RecordsLostError) as failure:
            await bench.client.append_batches("t", 0, keyed(b"b", producer=of(7, 1)), durability="object")
        assert failure.value.fields == {"topic": "t", "partition": 0, "base_offset": 1, "end_offset": 2}
        again = await bench.client.append_batches("t", 0, keyed(b"a", producer=of(7, 0)), durability="object")
        assert again.base_offset == 0
        assert await bench.values("t") == [[b"a", b"c"]]
        # The gap is gone with what lies below the log start.
        await bench.client.admin.delete_records("t", 0, 2)
        assert bench.partition().log_start_offset == 2
        with pytest.raises(RecordsLostError):
            await bench.client.append_batches("t", 0, keyed(b"b", producer=of(7, 1)), durability="object")
        kept = await bench.client.append_batches("t", 0, keyed(b"c", producer=of(7, 2)), durability="object")
        assert kept.base_offset == 2


async def test_a_commit_of_unknown_outcome_is_found_out_and_nothing_is_stored_twice(tmp_path: Path) -> None:
    bucket = Bucket()
    count = 0

    def unknown(operation: Operation) -> Fault:
        nonlocal count
        if operation.verb == "PUT" and operation.key.startswith("shards/"):
            count += 1
            return (Fault.LANDS_UNKNOWN, Fault.FAILS, Fault.NONE)[count % 3]
        return Fault.NONE

    async with service_bench(tmp_path, store=bucket.store, config=SOON) as bench:
        await bench.client.admin.create_topic("t", 1, OBJECT)
        bucket.fault = unknown
        async with bench.client.producer() as producer:
            for number in range(20):
                await producer.send("t", b"k", b"%d" % number)
        assert await bench.values("t") == [[b"%d" % number for number in range(20)]]
        metadata = metadata_elsewhere(bucket.memory)
        metadata.check()
        assert bucket.committed_end(bench) == 20
    assert count > 20


async def test_a_tail_that_was_not_committed_is_so_at_once_after_a_restart(tmp_path: Path) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=IMPATIENT) as bench:
        await bench.client.admin.create_topic("t", 1, OBJECT)
        await bench.client.append_batches("t", 0, keyed(b"a"))
        bucket.go_away()
        with pytest.raises(StoreUnavailableError):
            await bench.client.append_batches("t", 0, keyed(b"b"))
        assert await bench.values("t") == [[b"a"]]
    bucket.come_back()
    async with service_bench(tmp_path, store=bucket.store, config=SOON) as bench:
        await until(lambda: bench.partition().log.offsets.high_watermark == 2)
        assert bucket.committed_end(bench) == 2
        assert await bench.values("t") == [[b"a", b"b"]]


async def test_a_stopping_server_commits_the_appends_that_wait(tmp_path: Path) -> None:
    bucket = Bucket()
    config = {"remote.append.commit.interval.ms": "60000"}
    async with service_bench(tmp_path, store=bucket.store, config=config, shutdown_grace_s=30) as bench:
        await bench.client.admin.create_topic("t", 1, OBJECT)
        appending = asyncio.ensure_future(bench.client.append_batches("t", 0, keyed(b"a")))
        await until(lambda: bench.partition().log_end_offset == 1)
        tip = bench.partition().topic_id_partition
        await bench.server.stop()
        assert (await appending).base_offset == 0
    assert metadata_elsewhere(bucket.memory).state().partition(tip).tiered_end_offset == 1


async def test_a_server_that_stops_without_its_store_answers_within_its_grace(tmp_path: Path) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=SOON, shutdown_grace_s=1) as bench:
        await bench.client.admin.create_topic("t", 1, OBJECT)
        bucket.go_away()
        appending = asyncio.ensure_future(bench.client.append_batches("t", 0, keyed(b"a")))
        await until(lambda: bench.partition().log_end_offset == 1)
        await bench.server.stop()
        with pytest.raises(StoppingError) as failure:
            await appending
        assert "send it again" in str(failure.value)


async def test_another_owner_ends_the_waiting(tmp_path: Path) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path / "a", store=bucket.store, config=SOON) as first:
        await first.client.admin.create_topic("t", 1, OBJECT)
        await first.client.append_batches("t", 0, keyed(b"a"))
        async with service_bench(tmp_path / "b", store=bucket.memory, config=SOON) as second:
            with pytest.raises(NotOwnerError):
                await first.client.append_batches("t", 0, keyed(b"lost"))
            with pytest.raises(NotOwnerError):
                await first.client.append_batches("t", 0, keyed(b"lost"))
            await second.client.append_batches("t", 0, keyed(b"b"))
            assert await second.values("t") == [[b"a", b"b"]]
            assert bucket.committed_end(second) == 2


async def test_topics_that_are_not_uploaded_refuse_the_level(tmp_path: Path) -> None:
    async with service_bench(tmp_path, config=SOON) as bench:
        topics = bench.client.admin
        with pytest.raises(InvalidConfigError) as refused:
            await topics.create_topic("t", 1, OBJECT | {"remote.storage.enable": "false"})
        assert refused.value.fields["name"] == "min.durability"
        await topics.create_topic("local", 1, {"remote.storage.enable": "false"})
        await topics.create_topic("disabled", 1, {"remote.log.copy.disable": "true"})
        for name in ("local", "disabled"):
            with pytest.raises(InvalidRequestError) as failure:
                await bench.client.append_batches(name, 0, keyed(b"a"), durability="object")
            assert failure.value.fields["topic"] == name
        await topics.create_topic("paused", 1, {"remote.copy.pause": "true"})
        with pytest.raises(StoreUnavailableError) as paused:
            await bench.client.append_batches("paused", 0, keyed(b"a"), durability="object")
        assert "tier resume" in str(paused.value)
        await bench.client.topics.alter("paused", {"remote.copy.pause": "false"})
        assert (await bench.client.append_batches("paused", 0, keyed(b"a"), durability="object")).durability


async def test_the_level_of_a_topic_grows_while_it_is_written(tmp_path: Path) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=SOON) as bench:
        await bench.client.admin.create_topic("t", 1)
        for number in range(10):
            await bench.client.append_batches("t", 0, keyed(b"%d" % number))
        await bench.client.topics.alter("t", OBJECT)
        assert await bench.values("t") == [[b"%d" % number for number in range(10)]], "they stay visible"
        await until(lambda: bucket.committed_end(bench) == 10)
        await bench.client.append_batches("t", 0, keyed(b"10"))
        assert bucket.committed_end(bench) == 11


async def test_appends_to_a_deleted_topic_do_not_wait(tmp_path: Path) -> None:
    bucket = Bucket()
    async with service_bench(tmp_path, store=bucket.store, config=SOON) as bench:
        await bench.client.admin.create_topic("t", 1, OBJECT)
        is_held = True

        def hold(operation: Operation) -> Fault:
            is_data = operation.verb == "PUT" and "/data/" in operation.key
            return Fault.FAILS if is_held and is_data else Fault.NONE

        bucket.fault = hold
        appending = asyncio.ensure_future(bench.client.append_batches("t", 0, keyed(b"a")))
        await until(lambda: bench.partition().log_end_offset == 1)
        await bench.client.admin.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartitionError):
            await appending


async def test_a_disk_that_hangs_holds_up_the_appends_of_its_own_partitions_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 2)
        flusher = bench.partition("t", 0).log.flusher
        flush = type(flusher).flush

        def held(self: object, *args: object, **kwargs: object) -> object:
            if self is flusher:
                gate.pass_through()
            return flush(self, *args, **kwargs)  # type: ignore[arg-type]  # it is the flusher

        monkeypatch.setattr(type(flusher), "flush", held)

        async def append(number: int) -> object:
            return await bench.client.append(
                "t", number, [Record(0, 1000, b"k", b"v")], durability=Durability.OBJECT
            )

        await append(1)
        gate.close()
        hanging = asyncio.create_task(append(0))
        assert await asyncio.to_thread(gate.is_reached.wait, 30)
        try:
            await asyncio.wait_for(append(1), 10)
        finally:
            gate.open()
            await hanging
