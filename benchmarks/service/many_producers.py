"""64 producers of one record each at `disk`, beside the same at `os`, on one partition and on 16.

A producer appends a record by a unary call, waits for its answer, and appends the next one. At `disk` the
appends that arrive while the disk works share the next fsync.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator

import grpc

from append_fetch import LOG, OPTIONS, SMALL_BYTES, batch_of
from report import Row, run
from server_process import running, stratalog_command
from stratalog.v1 import admin_pb2, admin_pb2_grpc, log_pb2

TARGET = 0.7
PRODUCER_COUNT = 64
PARTITION_COUNTS = (1, 16)
OS, DISK = log_pb2.DURABILITY_OS, log_pb2.DURABILITY_DISK


async def produce(
    channel: grpc.aio.Channel, partition_count: int, durability: log_pb2.Durability.ValueType, count: int
) -> float:
    """Appends a second of all producers, each of which makes `count` calls."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LOG + "Append")
    batch = batch_of(SMALL_BYTES, SMALL_BYTES - 75)

    async def one(number: int) -> None:
        request = log_pb2.AppendRequest(
            topic=f"t{partition_count}",
            partition=number % partition_count,
            durability=durability,
            batches=batch,
        ).SerializeToString()
        for _ in range(count):
            await call(request)

    os.sync()
    begin = time.perf_counter()
    await asyncio.gather(*map(one, range(PRODUCER_COUNT)))
    return PRODUCER_COUNT * count / (time.perf_counter() - begin)


async def measure_counts(address: str, count: int, round_count: int) -> list[Row]:
    rows: list[Row] = []
    async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
        for partition_count in PARTITION_COUNTS:
            await admin_pb2_grpc.AdminServiceStub(channel).CreateTopic(
                admin_pb2.CreateTopicRequest(name=f"t{partition_count}", partition_count=partition_count)
            )
            best = {OS: 0.0, DISK: 0.0}
            for turn in range(round_count + 1):
                for durability, former in best.items():
                    rate = await produce(channel, partition_count, durability, count)
                    if turn:
                        best[durability] = max(rate, former)
            partitions = "1 partition" if partition_count == 1 else f"{partition_count} partitions"
            rows.append(
                Row(
                    work=f"{PRODUCER_COUNT} producers at disk, {partitions}, beside os",
                    unit="appends/s",
                    ours=best[DISK],
                    reference=best[OS],
                    target=TARGET,
                )
            )
    return rows


def measure(quick: bool) -> Iterator[Row]:
    """The rates at `disk`, by those at `os`."""
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(*stratalog_command(f"{folder}/data")) as server,
    ):
        yield from asyncio.run(measure_counts(server.address, *((20, 3) if quick else (100, 5))))


if __name__ == "__main__":
    sys.exit(run(measure))
