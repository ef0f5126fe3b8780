"""Operations that are cancelled at each of their steps: the store and the disk stay consistent, every record
is readable, and the next operation does the rest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import StoppingError
from stratalog.base.filesystem import FileSystem
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicPartition
from stratalog.client import values
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.operations.operation import Operation, OperationKind, OperationState, OperationView
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.stop_at_look import StopAtLook
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench
from tests.support.tiered.stores.cancelling_store import CancellingStore

COMPACTED = {"cleanup.policy": "compact", "retention.ms": "-1"}
PARTITION_COUNT = 2
INPUT_COUNT = 3
"""The most inputs of a job: two uploads, and the output of the job before them."""


def operation_with(stop: StopSignal, kind: OperationKind) -> Operation:
    view = OperationView(operation_id=SequentialIds(7).uuid(), number=1, kind=kind, topics=(), start_ms=0)
    return Operation(SystemClock(), view, stop)


async def put(bench: ServiceBench, number: int) -> None:
    """Update the same keys of each partition."""
    for partition in range(PARTITION_COUNT):
        records = [Record(0, 1000, key, b"%d" % number) for key in (b"a", b"b")]
        await bench.client.append("t", partition, records)


async def latest(bench: ServiceBench) -> list[dict[bytes | None, bytes | None]]:
    """The last value of each key, by partition."""
    return [{record.key: record.value for record in part} for part in await bench.read_all("t")]


async def check_consistent(bench: ServiceBench, number: int) -> None:
    assert await latest(bench) == [{b"a": b"%d" % number, b"b": b"%d" % number}] * PARTITION_COUNT
    for shard in bench.server.engine.tier.shards:
        shard.metadata.check()
    assert (await bench.client.admin.verify()).finding_count == 0
    for partition in range(PARTITION_COUNT):
        bench.partition("t", partition).log.check()


@pytest.mark.parametrize("kind", [OperationKind.UPLOAD, OperationKind.COMPACTION, OperationKind.RETENTION])
async def test_an_operation_may_end_at_each_step(kind: OperationKind) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench("/bench", filesystem=MemoryFileSystem(), store=store) as bench:
        await bench.client.admin.create_topic("t", PARTITION_COUNT, COMPACTED)
        tier, scratch = bench.server.engine.tier, bench.server.settings.data_dir + "/scratch"
        works: dict[OperationKind, Callable[[Operation], PassOutcome]] = {
            OperationKind.UPLOAD: lambda one: tier.manager.upload(["t"], one, delete_local=True),
            OperationKind.COMPACTION: lambda one: tier.compaction.compact(["t"], one),
            OperationKind.RETENTION: lambda one: tier.retention.run(["t"], one),
        }
        number = at = 0
        while True:
            at += 1
            for _ in range(2):
                number += 1
                await put(bench, number)
                if kind is not OperationKind.UPLOAD:
                    await bench.client.admin.upload()
            stop = StopAtLook(at)
            operation = operation_with(stop, kind)
            try:
                await asyncio.to_thread(works[kind], operation)
            except StoppingError:
                # The first requests of all inputs of a job run beside each other, and each looks first.
                beside_count = INPUT_COUNT - 1 if kind is OperationKind.COMPACTION else 0
                assert at <= stop.look_count <= at + beside_count, "it looks no more"
                await check_consistent(bench, number)
                left = bench.server.engine.local.logs.filesystem
                files = [name for place in ("upload", "compaction") for name in _files(left, scratch, place)]
                assert files == [], "no scratch file is left"
                # The rest is done by the next one, and the next round begins anew.
                await asyncio.to_thread(works[kind], operation_with(StopSignal(), kind))
                await check_consistent(bench, number)
                continue
            break
        assert at > {OperationKind.RETENTION: PARTITION_COUNT}.get(kind, 2 * PARTITION_COUNT)
        await check_consistent(bench, number)


async def test_a_periodic_compaction_is_shown_and_may_be_cancelled_at_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stratalog.compaction.compactor.REST_OF_PLAN", 0)
    store = CancellingStore(MemoryObjectStore(SystemClock()))
    config = {"remote.compaction.retry.backoff.ms": "0"}
    async with service_bench("/bench", filesystem=MemoryFileSystem(), store=store, config=config) as bench:
        await bench.client.admin.create_topic("t", PARTITION_COUNT, COMPACTED)
        engine = bench.server.engine
        scratch, files = bench.server.settings.data_dir + "/scratch", engine.local.logs.filesystem
        seen: list[Operation] = []

        def cancel() -> None:
            [running] = [one for one in engine.operations.operations() if not one.view.state.is_final]
            seen.append(running)
            engine.operations.cancel(str(running.view.operation_id))

        for number in range(2):
            await put(bench, number)
            await bench.client.admin.upload()
        while len(seen) == store.at:
            store.at, store.request_count, store.cancel = store.at + 1, 0, cancel
            outcome = await asyncio.to_thread(engine.tier.compaction.compact_pass)
            store.cancel = None
            engine.operations.check()
            assert _files(files, scratch, "compaction") == []
            await check_consistent(bench, 1)
            assert outcome.done["jobs"] == (len(seen) < store.at)
        assert len(seen) >= 4, "GETs and PUTs"
        for one in seen:
            assert one.view.kind is OperationKind.COMPACTION
            assert one.view.state is OperationState.CANCELLED
            shown = one.view.progress.compaction
            assert shown is not None
            assert (shown.done_job_count, shown.job_count) == (0, 1)
            assert shown.partition_count == PARTITION_COUNT
        [listed] = await bench.client.operations.list(
            [values.OperationKind.COMPACTION], [values.OperationState.SUCCEEDED]
        )
        told = listed.progress.compaction
        assert told is not None
        assert (told.done_job_count, told.job_count, told.remaining_ms) == (1, 1, 0)
        assert told.read_bytes == told.planned_read_bytes > 0
        assert (told.kept_record_count, told.resumed_get_request_count) == (2 * PARTITION_COUNT, 0)
        assert 0 < told.get_request_count <= 2 * 2
        assert told.put_request_count == 1
        assert told.dropped_record_count > 0 < told.written_bytes


async def test_a_cancelled_compaction_does_not_begin_again_at_once() -> None:
    store = CancellingStore(MemoryObjectStore(SystemClock()))
    async with service_bench("/bench", filesystem=MemoryFileSystem(), store=store) as bench:
        await bench.client.admin.create_topic("t", PARTITION_COUNT, COMPACTED)
        for number in range(2):
            await put(bench, number)
            await bench.client.admin.upload()
        engine = bench.server.engine
        store.at = 1

        def cancel() -> None:
            engine.operations.operations()[0].cancel()

        store.cancel = cancel
        for _ in range(2):
            outcome = await asyncio.to_thread(engine.tier.compaction.compact_pass)
            assert outcome.done["jobs"] == 0
        assert store.request_count == 1, "the second pass has asked for nothing"
        # A person who asks for it does not wait.
        [job] = await bench.client.admin.run_compaction(["t"])
        assert job.outcome is values.CompactionOutcome.COMMITTED
        assert (job.put_request_count, job.resumed_get_request_count, job.failed_attempt_count) == (1, 0, 0)


def _files(filesystem: FileSystem, scratch: str, place: str) -> list[str]:
    path = f"{scratch}/0000/{place}"
    return list(filesystem.list_directory(path)) if filesystem.exists(path) else []


async def test_a_move_may_be_cancelled_at_each_step(tmp_path: Path) -> None:
    data, other = f"{tmp_path}/data", f"{tmp_path}/other"
    expected: dict[str, tuple[str, list[bytes]]] = {}
    is_done = False
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        registry = bench.server.engine.operations
        step = 0
        while not is_done:
            step += 1
            topic = f"t{step}"
            values = [bytes([number]) * 300_000 for number in range(9)]
            await bench.client.admin.create_topic(topic, 1, {"remote.storage.enable": "false"})
            for value in values:
                await bench.append(topic, [value])
            source = str(Path(bench.partition(topic).log.local_log.directory).parent)
            target = other if source == data else data
            operation = await asyncio.to_thread(_move_and_cancel, bench, topic, target, step)
            async with asyncio.timeout(PATIENCE_S):
                ended = await bench.client.operations.wait(str(operation.view.operation_id))
            registry.check()
            state = operation.view.state
            assert state in (OperationState.CANCELLED, OperationState.SUCCEEDED), ended
            is_done = state is OperationState.SUCCEEDED
            place = target if is_done else source
            assert str(Path(bench.partition(topic).log.local_log.directory).parent) == place
            assert not Path(f"{target if place == source else source}/{topic}-0").exists() or is_done
            expected[topic] = (place, values)
            await bench.append(topic, [b"behind"])
    assert step > 3, "several steps were cancelled"
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        assert await bench.client.operations.list() == [], "nothing is resumed"
        for topic, (place, values) in expected.items():
            assert str(Path(bench.partition(topic).log.local_log.directory).parent) == place
            assert await bench.values(topic) == [[*values, b"behind"]]


def _move_and_cancel(bench: ServiceBench, topic: str, target: str, step: int) -> Operation:
    """Start a move, and cancel it at its change number `step`. It begins once it is listened to."""
    engine, is_listening = bench.server.engine, threading.Event()
    engine.operations.start(
        OperationKind.MOVE,
        (),
        lambda _: assert_true(is_listening.wait(PATIENCE_S)),
        lane=(OperationKind.MOVE, TopicPartition(topic, 0)),
    )
    operation = engine.local.directories.move(topic, 0, target)
    changes = 0

    def listen() -> None:
        nonlocal changes
        changes += 1
        if changes == step and not operation.view.state.is_final:
            operation.cancel()

    operation.listen(listen)
    is_listening.set()
    return operation


def assert_true(is_true: bool) -> None:
    assert is_true
