"""Long work as a client sees it: it is started, listed, watched and cancelled, and needs no client to end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    InvalidRequestError,
    StoreUnavailableError,
    UnknownOperationError,
    UnknownTopicOrPartitionError,
)
from stratalog.client import values
from stratalog.client.client import Client
from stratalog.client.operations import OperationCancelledError, result_of
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.operations import operation as operation_module
from stratalog.server.operations.operation_registry import MAX_ENDED_COUNT
from stratalog.server.rpc.admin.operation_servicer import WATCH_PERIOD_S
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from stratalog.v1 import operation_pb2
from tests.support.gate import Gate
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until

RUNNING = values.OperationState.RUNNING
SUCCEEDED = values.OperationState.SUCCEEDED
CANCELLED = values.OperationState.CANCELLED
FAILED = values.OperationState.FAILED
UPLOAD, COMPACTION = values.OperationKind.UPLOAD, values.OperationKind.COMPACTION


class Store:
    """A store whose data stands still while the gate is closed, or fails."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.is_away = False
        self.store = FaultyObjectStore(
            MemoryObjectStore(SystemClock()), Random(0), self._fault, before=self._before
        )

    def _before(self, operation: Operation) -> None:
        if "/data/" in operation.key and operation.verb == "PUT":
            self.gate.pass_through()

    def _fault(self, operation: Operation) -> Fault:
        return Fault.FAILS if self.is_away and "/data/" in operation.key else Fault.NONE


async def stalled(bench: ServiceBench, store: Store) -> values.Operation:
    """An upload that stands at the store."""
    await bench.append("t", [b"x"])
    store.gate.close()
    started = await bench.client.admin.start_upload(["t"])
    await until(store.gate.is_reached.is_set)
    return started


async def test_an_operation_is_listed_watched_and_ends_with_its_result(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"x"] * 3)
    started = await bench.client.admin.start_upload(["t"], delete_local=True)
    assert (started.kind, list(started.topics), started.end_time_ms) == (UPLOAD, ["t"], -1)
    async with aclosing(bench.client.operations.watch(started.operation_id)) as watched:
        seen = [one async for one in watched]
    assert [one.state for one in seen[:-1]] == [RUNNING] * (len(seen) - 1)
    ended = seen[-1]
    uploaded = result_of(ended, values.UploadResult)
    assert (ended.state, uploaded.slice_count, uploaded.deleted_segment_count) == (SUCCEEDED, 1, 1)
    assert ended.end_time_ms >= ended.start_time_ms == started.start_time_ms
    assert ended.progress.done_bytes == uploaded.size_bytes == ended.progress.total_bytes > 0
    assert await bench.client.operations.get(started.operation_id) == ended
    # A list is without the results.
    listed = ended._replace(result=None)
    assert (await bench.client.operations.list([UPLOAD], [SUCCEEDED]))[0] == listed
    assert listed not in await bench.client.operations.list([COMPACTION])
    assert listed not in await bench.client.operations.list([], [FAILED])
    again = [one async for one in bench.client.operations.watch(started.operation_id)]
    assert again == [ended], "the end at once"
    assert (await bench.client.operations.cancel(started.operation_id)) == ended


async def test_changes_that_follow_quickly_come_together(bench: ServiceBench) -> None:
    is_seen = threading.Event()

    def work(operation: operation_module.Operation) -> None:
        number = 0
        while not is_seen.is_set():
            number += 1
            operation.report(operation_module.OperationProgress("counts", number))
            is_seen.wait(0.001)

    kind, loop = operation_module.OperationKind.VERIFICATION, asyncio.get_running_loop()
    started = bench.server.engine.operations.start(kind, (), work)
    seen: list[values.Operation] = []
    begun_s = loop.time()
    async for one in bench.client.operations.watch(str(started.view.operation_id)):
        seen.append(one)
        if len(seen) == 4:
            is_seen.set()
    assert loop.time() - begun_s >= 3 * WATCH_PERIOD_S, "between two messages is a pause"
    assert seen[-1].state == SUCCEEDED
    counts = [one.progress.done_count for one in seen]
    assert counts == sorted(counts)


async def test_pages_of_operations_are_the_whole_list(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    for _ in range(5):
        await bench.client.admin.run_compaction(["t"])
    expected = [one.operation_id for one in await bench.client.operations.list([COMPACTION])]
    stub = bench.client.operations._stub  # pyright: ignore[reportPrivateUsage]  # only tests page by hand
    found: list[str] = []
    token = ""
    while True:
        page = await stub.ListOperations(
            operation_pb2.ListOperationsRequest(
                page_size=2, page_token=token, kinds=[operation_pb2.OPERATION_KIND_COMPACTION]
            )
        )
        assert len(page.operations) <= 2
        found += [one.operation_id for one in page.operations]
        token = page.next_page_token
        if not token:
            break
    assert found == expected


@pytest.mark.parametrize("fields", [{"page_size": -1}, {"page_token": "x"}, {"kinds": [99]}, {"states": [0]}])
async def test_a_wrong_list_is_refused(bench: ServiceBench, fields: dict[str, object]) -> None:
    request = operation_pb2.ListOperationsRequest(**fields)  # type: ignore[arg-type]  # of several types
    operations = bench.client.operations
    with pytest.raises(InvalidRequestError):
        await operations._channel.call(operations._stub.ListOperations(request))  # pyright: ignore[reportPrivateUsage]  # the client sends no such request


async def test_an_unknown_operation_is_not_found(bench: ServiceBench) -> None:
    operations, unknown = bench.client.operations, "00000000-0000-4000-8000-000000000000"
    for call in (operations.get, operations.cancel, operations.wait):
        with pytest.raises(UnknownOperationError) as failure:
            await call(unknown)
        assert failure.value.fields == {"operation_id": unknown}


async def test_an_unknown_topic_starts_nothing(bench: ServiceBench) -> None:
    admin = bench.client.admin
    before = await bench.client.operations.list()
    for start in (
        admin.start_upload,
        admin.start_compaction,
        admin.start_retention,
        admin.start_verification,
        admin.plan_compaction,
        admin.explain_retention,
    ):
        with pytest.raises(UnknownTopicOrPartitionError):
            await start(["nope"])
    assert await bench.client.operations.list() == before


async def test_a_cancelled_upload_ends_and_the_next_one_waits_for_it(tmp_path: Path) -> None:
    store = Store()
    async with service_bench(tmp_path, store=store.store) as bench:
        await bench.client.admin.create_topic("t")
        first = await stalled(bench, store)
        second = await bench.client.admin.start_upload()
        assert second.progress.phase == "waits for its turn"
        cancelled = await bench.client.operations.cancel(first.operation_id)
        assert (cancelled.state, cancelled.cancel_requested) == (RUNNING, True)
        store.gate.open()
        with pytest.raises(OperationCancelledError):
            await bench.client.operations.done(first)
        ended = await bench.client.operations.done(second)
        assert result_of(ended, values.UploadResult).slice_count <= 1
        await bench.client.admin.upload()
        [log] = await bench.client.admin.describe_log("t")
        assert log.tiered_end_offset == 1
        assert (await bench.client.admin.verify()).finding_count == 0


async def test_the_work_goes_on_when_its_client_leaves(tmp_path: Path) -> None:
    store = Store()
    async with service_bench(tmp_path, store=store.store) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"x"])
        store.gate.close()
        async with Client(bench.client.address) as leaving:
            upload = asyncio.create_task(leaving.admin.upload(["t"]))
            await until(store.gate.is_reached.is_set)
            upload.cancel()
            await asyncio.wait([upload])
        store.gate.open()
        [operation] = await bench.client.operations.list()
        async with asyncio.timeout(PATIENCE_S):
            assert (await bench.client.operations.wait(operation.operation_id)).state == SUCCEEDED


async def test_a_failure_has_the_error_and_the_result_up_to_then(tmp_path: Path) -> None:
    store = Store()
    async with service_bench(tmp_path, store=store.store) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"x"])
        store.is_away = True
        started = await bench.client.admin.start_upload(["t"])
        ended = await bench.client.operations.wait(started.operation_id)
        assert isinstance(ended.result, values.UploadResult)
        assert (ended.state, ended.result.object_count) == (FAILED, 0)
        with pytest.raises(StoreUnavailableError):
            await bench.client.operations.done(started)


async def test_the_history_is_bounded(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        first = await bench.client.admin.start_collection(dry_run=True)
        for _ in range(MAX_ENDED_COUNT // 50):
            started = [await bench.client.admin.start_collection(dry_run=True) for _ in range(50)]
            await bench.client.operations.wait(started[-1].operation_id)
        assert len(await bench.client.operations.list()) == MAX_ENDED_COUNT
        with pytest.raises(UnknownOperationError):
            await bench.client.operations.get(first.operation_id)
    async with service_bench(tmp_path) as bench:
        assert await bench.client.operations.list() == [], "a restart forgets"
