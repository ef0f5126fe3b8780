"""Fence over a loopback connection: tokens that outlive restarts, takeovers and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from stratalog.base.errors import (
    FencingTokenMismatchError,
    InvalidRequestError,
    NotOwnerError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.errors import error_of_call
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.metadata.ownership.ownership import ClaimedShard, claim_shard
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.v1 import log_pb2
from tests.support.service.service_bench import ServiceBench, catalog_elsewhere, service_bench


async def fence(
    bench: ServiceBench, token: str, current: str | None = None, *, topic: str = "t", partition: int = 0
) -> int:
    """Set the token; returns the end of the log."""
    request = log_pb2.FenceRequest(topic=topic, partition=partition, token=token, current_token=current)
    try:
        return (await bench.client.log.Fence(request)).log_end_offset
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error, "") from None


async def append(bench: ServiceBench, token: str | None, *, topic: str = "t", partition: int = 0) -> int:
    request = log_pb2.AppendRequest(
        topic=topic,
        partition=partition,
        records=log_pb2.Records(records=[log_pb2.Record(value=b"%r" % token)]),
        fencing_token=token,
    )
    try:
        return (await bench.client.log.Append(request)).base_offset
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error, "") from None


async def test_only_appends_with_the_token_or_without_any_are_applied(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 2)
    assert await append(bench, "") == 0
    assert await fence(bench, "a") == 1
    assert await append(bench, "a") == 1
    assert await append(bench, None) == 2
    for token in ("", "b", "a" * 1000):
        with pytest.raises(FencingTokenMismatchError) as caught:
            await append(bench, token)
        assert caught.value.fields["current_token"] == "a"
    assert await append(bench, "", partition=1) == 0, "the other partition has none"
    assert await fence(bench, "b") == 3
    with pytest.raises(FencingTokenMismatchError):
        await append(bench, "a")
    assert await fence(bench, "") == 3
    assert await append(bench, "") == 3
    assert await bench.values("t") == [[b"''", b"'a'", b"None", b"''"], [b"''"]]


async def test_a_token_is_taken_over_by_one_of_several_rivals(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    assert await fence(bench, "a", "") == 0
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await bench.client.log.Fence(
            log_pb2.FenceRequest(topic="t", partition=0, token="b", current_token="")
        )
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    error = error_of_call(refused.value, "")
    assert type(error) is FencingTokenMismatchError
    named = {"topic": "t", "partition": 0}
    assert error.fields == {**named, "fencing_token": "", "current_token": "a"}
    assert await fence(bench, "b", "a") == 0
    assert await fence(bench, "b", "a") == 0, "a retry whose first answer was lost"
    assert await append(bench, "b") == 0


async def test_a_refusal_names_a_token_of_digits_as_it_was_set(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.client.fence("t", 0, "042")
    with pytest.raises(FencingTokenMismatchError) as caught:
        await append(bench, "041")
    token = caught.value.fields["current_token"]
    assert isinstance(token, str)
    await bench.client.fence("t", 0, "043", current_token=token)
    assert await append(bench, "043") == 0


async def test_a_fence_that_cannot_be_is_refused(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    with pytest.raises(InvalidRequestError):
        await fence(bench, "x" * 37)
    for topic, partition in (("nope", 0), ("t", 1)):
        with pytest.raises(UnknownTopicOrPartitionError):
            await fence(bench, "a", topic=topic, partition=partition)
    with pytest.raises(InvalidRequestError):
        await fence(bench, "a", partition=-1)
    assert await append(bench, "") == 0


async def test_a_token_belongs_to_the_topic_that_was_fenced(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await fence(bench, "a")
    topic_id = bench.partition().topic_id_partition.topic_id
    catalog = bench.server.engine.topics.catalog
    catalog.alter(topic_id, partition_count=2)
    await bench.refresh()
    assert await append(bench, "", partition=1) == 0, "an added partition has none"
    assert await append(bench, "a") == 0
    await bench.client.admin.delete_topic("t")
    await bench.client.admin.create_topic("t")
    assert await append(bench, "") == 0


async def test_a_token_survives_a_restart_and_the_loss_of_the_machine(tmp_path: Path) -> None:
    store = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        await fence(bench, "a")
        assert await append(bench, "a") == 0
    async with service_bench(tmp_path, store=store) as bench:
        with pytest.raises(FencingTokenMismatchError):
            await append(bench, "")
        assert await append(bench, "a") == 1
    async with service_bench("/", filesystem=MemoryFileSystem(), store=store) as bench:
        with pytest.raises(FencingTokenMismatchError):
            await append(bench, "")
        await append(bench, "a")


async def test_a_former_owner_sets_no_token(tmp_path: Path) -> None:
    store = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path / "one", store=store) as former:
        await former.client.admin.create_topic("t")
        async with service_bench(tmp_path / "two", store=store) as owner:
            # It has not noticed yet: it looks before the commit.
            with pytest.raises(NotOwnerError):
                await fence(former, "a")
            assert (
                catalog_elsewhere(store).fencing_token(owner.partition().topic_id_partition.topic_id, 0) == ""
            )


async def test_an_owner_that_is_replaced_during_a_fence_does_not_answer_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path / "one", store=store) as former:
        await former.client.admin.create_topic("t")
        catalog = former.server.engine.topics.catalog
        commit, commits = catalog.fence, list[str]()

        def commit_and_wait(*arguments: Any) -> None:
            commit(*arguments)
            commits.append("done")
            claim_elsewhere()

        def claim_elsewhere() -> None:
            for shard in former.server.engine.tier.shards:
                shard.metadata.claim("another", former.server.engine.tier.identity.store_id)

        monkeypatch.setattr(catalog, "fence", commit_and_wait)
        with pytest.raises(NotOwnerError):
            await fence(former, "a")
        assert commits == ["done"]
    async with service_bench(tmp_path / "two", store=store) as owner:
        with pytest.raises(FencingTokenMismatchError):
            await append(owner, "")


async def test_a_new_owner_knows_a_token_that_was_set_while_it_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the catalog before its claim, and reads it again behind it."""
    store = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path / "one", store=store) as former:
        await former.client.admin.create_topic("t")
        topic_id = former.partition().topic_id_partition.topic_id

        def fenced_before_the_claim(*arguments: Any, **named: Any) -> ClaimedShard:
            catalog_elsewhere(store).fence(topic_id, 0, "a")
            return claim_shard(*arguments, **named)

        monkeypatch.setattr("stratalog.server.engine.engine_builder.claim_shard", fenced_before_the_claim)
        async with service_bench(tmp_path / "two", store=store) as owner:
            with pytest.raises(FencingTokenMismatchError):
                await append(owner, "")
            await append(owner, "a")
