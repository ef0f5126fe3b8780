"""Pages of partitions, explanations, plans and metadata over gRPC, and answers that stay below the 4 MiB that
clients take."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from random import Random
from typing import Any, cast
from uuid import UUID

import grpc
import pytest
import pytest_asyncio

from stratalog.base.errors import DataDirectoryError, InvalidRequestError, PlanChangedError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.cleaner.cleaner_failures import CleaningFailure
from stratalog.cleaner.failure_kind import FailureKind
from stratalog.client import values
from stratalog.client.errors import error_of_call
from stratalog.compaction.job_history import Exclusion
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.manager.moves.log_move import MoveProgress, MoveState
from stratalog.record.record import Record
from stratalog.server.background.tier_compaction import PlannedCompaction
from stratalog.server.partitions.directory_admin import DescribedMove
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.rpc import paging
from stratalog.server.rpc.admin import admin_convert
from stratalog.v1 import admin_pb2, admin_pb2_grpc, log_pb2, tier_pb2, tier_pb2_grpc
from tests.support.service.service_bench import ServiceBench


@pytest_asyncio.fixture(loop_scope="session")
async def channel(bench: ServiceBench) -> AsyncGenerator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        yield channel


async def refusal(call: Any) -> InvalidRequestError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = error_of_call(caught.value, "")
    assert isinstance(error, InvalidRequestError)
    return error


async def test_a_page_of_partitions_looks_at_no_other(
    bench: ServiceBench, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, stub = bench.client.admin, admin_pb2_grpc.AdminServiceStub(channel)
    await admin.create_topic("t", 5, {"remote.storage.enable": "false"})
    await admin.create_topic("u", 2, {"remote.storage.enable": "false"})
    other = bench.partition("t", 4)
    monkeypatch.setattr(other, "watermarks", None)
    monkeypatch.setattr(other.log.retention, "explain", None)
    first = await stub.DescribeLog(
        admin_pb2.DescribeLogRequest(topic="t", partitions=[4, 1, 3, 0], page_size=3)
    )
    assert [one.partition for one in first.partitions] == [0, 1, 3]
    tiers = tier_pb2_grpc.TierServiceStub(channel)
    explained = await tiers.ExplainRetention(tier_pb2.ExplainRetentionRequest(topics=["u", "t"], page_size=4))
    assert [(one.topic, one.partition) for one in explained.partitions] == [("t", n) for n in range(4)]
    monkeypatch.undo()
    token = first.next_page_token
    rest = await stub.DescribeLog(
        admin_pb2.DescribeLogRequest(topic="t", partitions=[0, 1, 3, 4], page_token=token)
    )
    assert ([one.partition for one in rest.partitions], rest.next_page_token) == ([4], "")
    # The token is of these numbers of this topic.
    for topic, numbers in (("t", [0, 1, 3]), ("t", []), ("u", [])):
        await refusal(
            stub.DescribeLog(admin_pb2.DescribeLogRequest(topic=topic, partitions=numbers, page_token=token))
        )
    twice = await refusal(stub.DescribeLog(admin_pb2.DescribeLogRequest(topic="t", partitions=[1, 0, 1])))
    assert twice.fields == {"topic": "t", "partition": 1}
    last = await tiers.ExplainRetention(
        tier_pb2.ExplainRetentionRequest(topics=["t", "u"], page_token=explained.next_page_token)
    )
    assert [(one.topic, one.partition) for one in last.partitions] == [("t", 4), ("u", 0), ("u", 1)]
    await refusal(
        tiers.ExplainRetention(tier_pb2.ExplainRetentionRequest(page_token=explained.next_page_token))
    )


async def test_the_client_reads_all_pages(bench: ServiceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = bench.client.admin
    for name in ("a", "b"):
        await admin.create_topic(name, 5)
    excluded = {
        TopicIdPartition(UUID(int=number), number % 3): Exclusion("damaged", 1, None, 1)
        for number in range(5)
    }
    monkeypatch.setattr(bench.server.engine.tier.compaction, "exclusions", lambda: excluded)

    async def explained() -> list[values.ExplainedPartition]:
        # The clocks differ by other milliseconds at each look.
        found = await admin.explain_retention()
        return [one._replace(clock_skew_ms=0) for one in found]

    expected = (
        await admin.describe_log("a"),
        await explained(),
        await admin.excluded_partitions(),
        await admin.plan_compaction(),
    )
    assert [len(found) for found in expected[:3]] == [5, 10, 5]
    assert [one.topic for one in expected[3].idle_topics] == ["a", "b"]
    monkeypatch.setattr(paging, "MAX_PAGE_SIZE", 2)
    assert expected == (
        await admin.describe_log("a"),
        await explained(),
        await admin.excluded_partitions(),
        await admin.plan_compaction(),
    )


async def test_descriptions_come_in_pages_in_the_order_of_the_request(
    bench: ServiceBench, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    names = ["c", "a", "d", "a", "b"]
    for name in sorted(set(names)):
        await bench.client.admin.create_topic(name)
    found: list[str] = []
    token, page_count = "", 0
    while token or not page_count:
        page = await stub.DescribeTopics(
            admin_pb2.DescribeTopicsRequest(names=names, page_size=2, page_token=token)
        )
        assert len(page.topics) <= 2
        found += [one.name for one in page.topics]
        token, page_count = page.next_page_token, page_count + 1
        if token:
            # The token is of these names in this order.
            other = admin_pb2.DescribeTopicsRequest(names=sorted(names), page_token=token)
            await refusal(stub.DescribeTopics(other))
    assert (found, page_count) == (names, 3)
    expected = await bench.client.admin.describe_topics(names)
    # As heavy as a page may be: one topic has five.
    monkeypatch.setattr(paging, "MAX_PAGE_WEIGHT", 10)
    page = await stub.DescribeTopics(admin_pb2.DescribeTopicsRequest(names=names))
    assert [one.name for one in page.topics] == names[:2]
    assert await bench.client.admin.describe_topics(names) == expected


async def test_a_topic_names_some_of_its_offline_partitions_and_counts_all(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.client.admin.create_topic("t", 5)
    for number in range(4):
        fail(bench, monkeypatch, number)
    monkeypatch.setattr(admin_convert, "MAX_OFFLINE_COUNT", 3)
    [topic] = await bench.client.admin.describe_topics(["t"])
    assert [one.partition for one in topic.offline_partitions] == [0, 1, 2]
    assert topic.offline_partition_count == 4
    shown = await bench.command("topic", "describe", "t")
    assert "1 more are offline" in shown.stdout
    monkeypatch.undo()


async def test_the_tier_status_comes_in_pages(
    bench: ServiceBench, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tier_pb2_grpc.TierServiceStub(channel)
    for name, is_tiered in (("a", True), ("b", False), ("c", True), ("d", True)):
        await bench.client.admin.create_topic(name, 2, {"remote.storage.enable": is_tiered})
    await bench.client.admin.create_topic("t", 5, {"remote.storage.enable": False})
    for number in (1, 3):
        fail(bench, monkeypatch, number)
    pages: list[tier_pb2.TierStatusResponse] = []
    while not pages or pages[-1].next_page_token:
        token = pages[-1].next_page_token if pages else ""
        pages.append(await stub.TierStatus(tier_pb2.TierStatusRequest(page_size=2, page_token=token)))
    places = [
        [*(one.topic for one in page.topics), *(str(one.partition) for one in page.offline_partitions)]
        for page in pages
    ]
    assert places == [["a", "c"], ["d", "1"], ["3"]]
    assert [bool(page.shards) and bool(page.passes) for page in pages] == [True, False, False]
    assert [len(page.shards) for page in pages[1:]] == [0, 0]
    assert len({page.store_id for page in pages}) == 1
    for token in ("x", "eA=="):
        await refusal(stub.TierStatus(tier_pb2.TierStatusRequest(page_token=token)))
    monkeypatch.setattr(paging, "MAX_PAGE_SIZE", 2)
    status = await bench.client.admin.tier_status()
    assert [one.topic for one in status.topics] == ["a", "c", "d"]
    assert [(one.topic, one.partition) for one in status.offline_partitions] == [("t", 1), ("t", 3)]
    assert len(status.shards) == len(pages[0].shards)
    assert [one.name for one in status.passes] == [one.name for one in pages[0].passes]
    monkeypatch.undo()


def fail(bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let a partition of the topic `t` have a failed disk until the end of the patch."""
    partition = bench.partition("t", number)
    offline = OfflinePartition(
        partition.topic_partition,
        partition.topic_id_partition,
        partition.shard,
        "/disks/one",
        DataDirectoryError("its disk has failed"),
    )
    monkeypatch.setattr(partition, "offline", lambda: offline)


class CountedJobs(list[CompactionJob]):
    """Jobs that know how often one was made."""

    made_count = 0

    def __getitem__(self, index: Any) -> Any:
        self.made_count += 1
        return cast("Any", super().__getitem__(index))


async def planned_job(bench: ServiceBench) -> CompactionJob:
    """A job, beside the topics `idle-0` to `idle-2` that have none."""
    admin = bench.client.admin
    await admin.create_topic("k", config={"cleanup.policy": "compact"})
    for number in range(3):
        await admin.create_topic(f"idle-{number}")
    for _ in range(2):
        await bench.client.append("k", 0, [Record(0, 0, b"k", b"v")])
        await admin.upload(["k"])
    [job] = bench.server.engine.tier.compaction.plan().jobs
    return job


async def test_a_plan_comes_in_pages_with_the_idle_topics_behind_the_jobs(
    bench: ServiceBench, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, plan = await planned_job(bench), bench.server.engine.tier.compaction.plan

    jobs = CountedJobs([job] * 5)

    def plan_of_five(topics: Sequence[str]) -> PlannedCompaction:
        return plan(topics)._replace(jobs=jobs)

    monkeypatch.setattr(bench.server.engine.tier.compaction, "plan", plan_of_five)
    stub, token, counts = tier_pb2_grpc.TierServiceStub(channel), "", list[tuple[int, int]]()
    names = list[str]()
    while True:
        page = await stub.PlanCompaction(tier_pb2.PlanCompactionRequest(page_size=2, page_token=token))
        counts.append((len(page.jobs), len(page.idle_topics)))
        names += [one.topic for one in page.idle_topics]
        token = page.next_page_token
        if not token:
            break
    assert counts == [(2, 0), (2, 0), (1, 1), (0, 2)]
    assert jobs.made_count == len(jobs), "a page makes no others than its own"
    assert names == ["idle-0", "idle-1", "idle-2"]
    # Jobs with many inputs and runs make a page heavy: each page has one at least.
    monkeypatch.setattr(paging, "MAX_PAGE_WEIGHT", 1)
    page = await stub.PlanCompaction(tier_pb2.PlanCompactionRequest())
    assert len(page.jobs) == 1
    assert page.next_page_token


async def test_a_page_of_another_plan_is_refused(
    bench: ServiceBench, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, plan = await planned_job(bench), bench.server.engine.tier.compaction.plan
    stub = tier_pb2_grpc.TierServiceStub(channel)
    first = await stub.PlanCompaction(tier_pb2.PlanCompactionRequest(page_size=1))
    assert len(first.jobs) == 1
    again = tier_pb2.PlanCompactionRequest(page_size=1, page_token=first.next_page_token)
    second = await stub.PlanCompaction(again)
    assert [one.topic for one in second.idle_topics] == ["idle-0"]
    # The first job was done meanwhile: by its number, the next page would begin behind the wrong item.
    name = job.inputs[0].ref.name
    runs = (
        dataclasses.replace(run, slices=RunSlices([live for live in run.slices if live.object_name == name]))
        for run in job.runs
    )
    other = dataclasses.replace(job, inputs=job.inputs[:1], runs=tuple(runs))

    def plan_of_another(topics: Sequence[str]) -> PlannedCompaction:
        return plan(topics)._replace(jobs=[other], digest="of another plan")

    monkeypatch.setattr(bench.server.engine.tier.compaction, "plan", plan_of_another)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.PlanCompaction(again)
    assert isinstance(error_of_call(caught.value, ""), PlanChangedError)
    assert (await stub.PlanCompaction(tier_pb2.PlanCompactionRequest())).jobs, "it begins again"
    # A topic that came in between is a change, too.
    monkeypatch.undo()
    await bench.client.admin.create_topic("idle-00")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.PlanCompaction(again)
    assert isinstance(error_of_call(caught.value, ""), PlanChangedError)
    await refusal(
        stub.PlanCompaction(tier_pb2.PlanCompactionRequest(topics=["k"], page_token=again.page_token))
    )


PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in (2, 10)]


async def test_moves_come_in_pages_and_the_directories_with_the_first(
    bench: ServiceBench, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = [
        DescribedMove(
            MoveProgress(
                partition=one,
                source_path="/disk1",
                target_path="/disk2",
                state=MoveState.COPYING,
                copied_bytes=1,
                remaining_bytes=2,
                reason="",
            ),
            operation_id="",
        )
        for one in PARTITIONS
    ]
    directories, stub = bench.server.engine.local.directories, admin_pb2_grpc.AdminServiceStub(channel)
    strays = [f"/disk1/{number:04}-stray" for number in range(150)]
    described = [one._replace(set_aside=strays) for one in directories.describe({})[0]]

    def describe(_: object) -> object:
        return described, moves

    monkeypatch.setattr(directories, "describe", describe)
    first = await stub.DescribeLogDirs(admin_pb2.DescribeLogDirsRequest(page_size=3))
    assert (len(first.log_dirs), len(first.moves)) == (1, 3)
    [log_dir] = first.log_dirs
    assert (len(log_dir.set_aside_paths), log_dir.set_aside_count) == (100, 150)
    token = first.next_page_token
    rest = await stub.DescribeLogDirs(admin_pb2.DescribeLogDirsRequest(page_token=token))
    assert (len(rest.log_dirs), len(rest.moves), rest.next_page_token) == (0, 1, "")
    # A token is of one list.
    await refusal(stub.CleanerStatus(admin_pb2.CleanerStatusRequest(page_token=token)))
    # The client reads all pages.
    monkeypatch.setattr(paging, "MAX_PAGE_SIZE", 1)
    found = await bench.client.admin.describe_log_dirs()
    assert ([(one.topic, one.partition) for one in found.moves], len(found.log_dirs)) == (PARTITIONS, 1)


async def test_uncleanable_partitions_come_in_pages_with_the_counts(
    bench: ServiceBench, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = tuple(
        CleaningFailure(
            partition=one,
            directory="/disk1",
            kind=FailureKind.DAMAGE,
            reason="it is damaged " * 1_000,
            since_ms=1,
            failure_count=1,
            next_try_ms=2,
            dirty_bytes=3,
            no_progress_count=0,
        )
        for one in PARTITIONS
    )
    cleaner, stub = bench.server.engine.local.cleaning.workers, admin_pb2_grpc.AdminServiceStub(channel)
    stats = dataclasses.replace(cleaner.stats(), failures=failures, clean_count=7)
    monkeypatch.setattr(cleaner, "stats", lambda: stats)
    first = await stub.CleanerStatus(admin_pb2.CleanerStatusRequest(page_size=3))
    assert (len(first.uncleanable_partitions), first.clean_count) == (3, 7)
    assert {len(one.reason.encode()) for one in first.uncleanable_partitions} == {1_000}
    token = first.next_page_token
    rest = await stub.CleanerStatus(admin_pb2.CleanerStatusRequest(page_token=token))
    assert (len(rest.uncleanable_partitions), rest.clean_count, rest.next_page_token) == (1, 7, "")
    # The client reads all pages.
    monkeypatch.setattr(paging, "MAX_PAGE_SIZE", 1)
    cleaned = await bench.client.admin.cleaner_status()
    assert [(one.topic, one.partition) for one in cleaned.uncleanable_partitions] == PARTITIONS
    assert cleaned.clean_count == 7


@pytest.mark.parametrize("seed", range(3))
async def test_metadata_of_topics_that_stay_are_in_one_page(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    admin, source = bench.client.admin, Random(seed)
    monkeypatch.setattr(paging, "MAX_PAGE_WEIGHT", 4)
    existing = {f"t{number:02}" for number in range(0, 16, 2)}
    for name in sorted(existing):
        await admin.create_topic(name, source.randrange(1, 6))
    throughout, seen, token = set(existing), list[str](), ""
    while True:
        page = await bench.client.log.Metadata(log_pb2.MetadataRequest(page_token=token, page_size=3))
        assert len(page.topics) == 1 or sum(len(one.partitions) for one in page.topics) <= 4
        assert len(page.topics) <= 3
        assert page.topics or not page.next_page_token, "only the last page is empty"
        seen += [one.topic for one in page.topics]
        token = page.next_page_token
        if not token:
            break
        for name in source.sample([f"t{number:02}" for number in range(16)], 2):
            if name in existing:
                await admin.delete_topic(name)
                existing.discard(name)
                throughout.discard(name)
            else:
                await admin.create_topic(name, source.randrange(1, 6))
                existing.add(name)
    assert seen == sorted(set(seen))
    assert throughout <= set(seen)
    # Names without a topic have their places, too.
    found, token = list[str](), ""
    while True:
        named = log_pb2.MetadataRequest(topics=["x", "a", "c"], page_token=token, page_size=2)
        page = await bench.client.log.Metadata(named)
        found, token = found + [one.topic for one in page.topics], page.next_page_token
        if not token:
            break
    assert found == ["a", "c", "x"]
