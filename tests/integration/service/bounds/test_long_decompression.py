"""Batches that are small and decompress to much hold up neither plain appends nor a stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from stratalog.base.errors import LogStoreError, StoppingError
from stratalog.base.filesystem import Buffer
from stratalog.client.errors import error_of_call
from stratalog.log.append import unpacking
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec, decompress
from stratalog.record.record import Record
from stratalog.server import app
from stratalog.server.append.long_validation import LongValidations
from stratalog.server.call_counts import CallKind
from stratalog.server.worker_pools import COMPUTING_THREAD_COUNT, PoolUse
from stratalog.v1 import log_pb2
from tests.support.gate import Gate
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until

MIB = 1 << 20
BATCH = encode_batch([Record(0, 1, b"k", bytes(6 * MIB))], codec=Codec.GZIP)
BOMB = BATCH * 2
THREAD_COUNT = COMPUTING_THREAD_COUNT


@contextmanager
def gated_decompression(gate: Gate) -> Generator[list[str]]:
    """Decompression on threads for long validation stands at the gate; yields the names of the threads that
    have come there."""
    names: list[str] = []

    def gated(codec: Codec, data: Buffer, max_bytes: int) -> Buffer:
        name = threading.current_thread().name
        if name.startswith("stratalog-validate"):
            names.append(name)
            gate.pass_through()
        return decompress(codec, data, max_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacking, "decompress", gated)
        yield names


async def bomb(bench: ServiceBench, partition: int) -> int:
    """The offset of a request with two bombs."""
    request = log_pb2.AppendRequest(topic="bombs", partition=partition, batches=BOMB)
    return (await bench.client.log.Append(request, timeout=PATIENCE_S)).base_offset


async def refusal_of(call: Coroutine[object, object, int]) -> LogStoreError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of_call(caught.value, "")


async def test_a_plain_append_is_answered_beside_four_that_decompress_for_long(tmp_path: Path) -> None:
    gate = Gate()
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("bombs", THREAD_COUNT + 1)
        await bench.client.admin.create_topic("t")
        with gated_decompression(gate) as names:
            gate.close()
            try:
                calls = [asyncio.ensure_future(bomb(bench, number)) for number in range(THREAD_COUNT + 1)]
                await until(lambda: len(names) == THREAD_COUNT)
                async with asyncio.timeout(PATIENCE_S):
                    assert await bench.append("t", [b"plain"]) == 0
                    assert await bench.append("t", [b"plain"]) == 1
                pools = bench.server._pools  # pyright: ignore[reportPrivateUsage]  # only tests look
                await until(lambda: pools.uses()["validate"] == PoolUse(THREAD_COUNT, 1))
            finally:
                gate.open()
            assert [await call for call in calls] == [0] * (THREAD_COUNT + 1)


async def test_a_stop_ends_long_validation_and_closes_all_logs(tmp_path: Path) -> None:
    gate = Gate()
    async with service_bench(tmp_path, shutdown_grace_s=PATIENCE_S) as bench:
        await bench.client.admin.create_topic("bombs", 12)
        with gated_decompression(gate) as names, pytest.MonkeyPatch.context() as patch:
            end = LongValidations.end

            def end_and_go_on(validations: LongValidations) -> None:
                end(validations)
                gate.open()

            patch.setattr(LongValidations, "end", end_and_go_on)
            # The stop need not wait for the part of its grace that calls have to end by themselves.
            patch.setattr(app, "COMMIT_SHARE_OF_GRACE", 0)
            gate.close()
            refused = [asyncio.ensure_future(refusal_of(bomb(bench, number))) for number in range(12)]
            appends = bench.server.calls[CallKind.APPEND]
            await until(lambda: len(names) == THREAD_COUNT and appends.open_count == len(refused))
            await bench.server.stop()
            assert len(names) == THREAD_COUNT, "nothing else was decompressed"
        assert {type(await one) for one in refused} == {StoppingError}
        assert not bench.server.has_left_threads
        assert (tmp_path / "data" / CLEAN_SHUTDOWN_FILE).exists()
    async with service_bench(tmp_path) as bench:
        assert set((await bench.client.latest("bombs")).values()) == {0}
