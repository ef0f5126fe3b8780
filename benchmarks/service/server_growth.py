"""The memory of a server that has appended 10 GiB and given them back.

One stream appends batches of 1 MiB at `os`, and one reads them from the begin of the log. What the store has
leaves the local log at the next pass of retention, so most of it is read from the store, and the caches of
tiered data are full at the end, too. A quick run appends 512 MiB, more than what a server keeps of the newest
batches.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator

import grpc

from append_fetch import (
    BATCH_BYTES,
    LOG,
    OPTIONS,
    RECORD_BYTES,
    appends_of,
    batch_of,
    fetched_batches,
    pull_stream,
    push_stream,
)
from report import Row, promised_cost, run
from server_process import running, stratalog_command
from stratalog.base.process_tuning import keep_freed_memory
from stratalog.v1 import admin_pb2, admin_pb2_grpc, log_pb2

PROMISED_MB = 400 * (1 << 20) / 1e6
TOPIC = "grown"
CONFIG = {"retention.ms": "-1", "local.retention.ms": "1000"}


async def append_and_read(address: str, total_bytes: int) -> None:
    """Append so many bytes, then read them."""
    batch = batch_of(BATCH_BYTES, RECORD_BYTES)
    count = total_bytes // len(batch)
    fetch = log_pb2.FetchRequest(max_bytes=BATCH_BYTES)
    fetch.partitions.add(topic=TOPIC, max_bytes=BATCH_BYTES, start=log_pb2.Position(offset=0))
    async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
        await admin_pb2_grpc.AdminServiceStub(channel).CreateTopic(
            admin_pb2.CreateTopicRequest(name=TOPIC, config=CONFIG)
        )
        await push_stream(channel, LOG + "AppendStream", appends_of(TOPIC, 1, batch), count)
        await pull_stream(
            channel, LOG + "FetchStream", fetch.SerializeToString(), count * len(batch), fetched_batches
        )


def measure(quick: bool) -> Iterator[Row]:
    """The memory after it."""
    keep_freed_memory()
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(*stratalog_command(f"{folder}/data")) as server,
    ):
        total_bytes = (512 << 20) if quick else (10 << 30)
        asyncio.run(append_and_read(server.address, total_bytes))
        work = f"{total_bytes >> 20} MiB appended and read: memory of the server"
        yield promised_cost(work, "MB", server.resident_bytes() / 1e6, PROMISED_MB)


if __name__ == "__main__":
    sys.exit(run(measure))
