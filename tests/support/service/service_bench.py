"""A server and a client in the test's own event loop, over a real loopback connection.

Example::

    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
from click.testing import CliRunner, Result

from stratalog.base.clock import Clock, SystemClock
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.scheduler import ScheduledTask
from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from stratalog.client.client import Client
from stratalog.client.errors import error_of_call
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchStart, fetch_request
from stratalog.client.retry import RetryPolicy
from stratalog.log.append_info import AppendInfo
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from stratalog.server.app import Server
from stratalog.server.background_tasks import start_background_tasks
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.tracing.call_tracing import CallTracing
from stratalog.v1 import log_pb2
from tests.support.decoded_records import plain_record

PATIENCE_S = 60.0
HOUR_MS = 3_600_000
"""Periods of background tasks: they never run by themselves, unless a test asks for it."""

QUIET: Mapping[str, Any] = {
    "listen": "127.0.0.1:0",
    "upload_ms": HOUR_MS,
    "remote_retention_ms": HOUR_MS,
    "collector_ms": HOUR_MS,
    "compaction_ms": HOUR_MS,
    "fold_ms": HOUR_MS,
    "head_refresh_ms": HOUR_MS,
    "max_silence_ms": 0,
    "shutdown_grace_s": 0.2,
}

QUIET_CONFIG: Mapping[str, str] = {
    "log.initial.task.delay.ms": str(HOUR_MS),
    "log.dir.min.free.bytes": "0",
}
"""The tasks that work on local logs do not begin, either, and a disk may be full. The `config` of a test is
beside it."""


class _TaskTable:
    """A scheduler that only notes its tasks. Belongs to one thread."""

    def __init__(self) -> None:
        self.by_name: dict[str, Callable[[], None]] = {}

    def every(
        self,
        name: str,
        task: Callable[[], None],
        period_ms: int,
        delay_ms: int = 0,
    ) -> ScheduledTask:
        assert min(period_ms, delay_ms) > 0
        self.by_name[name] = task
        return self

    def once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> ScheduledTask:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.by_name.clear()


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceBench:
    """A server and a client of it. Belongs to the event loop."""

    server: Server
    client: Client

    def partition(self, topic: str = "t", number: int = 0) -> HostedPartition:
        return self.server.engine.topics.registry.partition(topic, number)

    async def refresh(self) -> None:
        """Look at the heads of the catalog and of the shards, as a background task does."""
        await asyncio.to_thread(self.server.engine.tier.manager.refresh_pass)

    async def retain(self) -> None:
        """Run one pass of retention over local logs, and one over objects."""
        await asyncio.to_thread(self.server.engine.local.retention.run)
        await asyncio.to_thread(self.server.engine.tier.manager.remote_retention_pass)

    async def run_task(self, name: str) -> None:
        """Run a background task once, as the scheduler does."""
        tasks = _TaskTable()
        start_background_tasks(tasks, self.server.engine, self.server.settings)
        await asyncio.to_thread(tasks.by_name[name])

    async def take_producer_ids(self, last_id: int) -> None:
        """Let the server give ids up to this one, so that a test may choose among them."""
        producer_ids = self.server.engine.topics.producer_ids
        while not producer_ids.is_given(last_id):
            await asyncio.to_thread(producer_ids.give)

    async def command(self, *arguments: str) -> Result:
        """Run `stratalog` against the server, in a thread with an event loop of its own."""
        command = [*arguments, "--server", self.client.address]
        return await asyncio.to_thread(CliRunner().invoke, stratalog, command)

    async def values(
        self, topic: str, *, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> list[list[bytes | None]]:
        """The values of every partition from its log start to its end, in order."""
        records = await self.read_all(topic, isolation=isolation)
        return [[record.value for record in part] for part in records]

    async def topic_names(self) -> list[str]:
        return [topic.name for topic in await self.client.admin.list_topics()]

    async def read_all(
        self,
        topic: str,
        *,
        start: Mapping[TopicPartition, int] | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[list[Record]]:
        """The records of every partition from its log start (or `start`) to its end, in order."""
        ends = await self.client.latest(topic, isolation=isolation)
        records: list[list[Record]] = [[] for _ in ends]
        consumer = self.client.consume(
            topic,
            start="earliest" if start is None else {one.partition: at for one, at in start.items()},
            until={one.partition: at for one, at in ends.items()},
            isolation=isolation,
        )
        async for batch in consumer.batches():
            records[batch[0].partition] += map(plain_record, batch)
        return records

    async def fetch_stream(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 0,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> AsyncIterator[log_pb2.FetchResponse]:
        """The responses of one FetchStream, until the caller leaves."""
        starts = {one: FetchStart(offset) for one, offset in positions.items()}
        call = self.client.log.FetchStream(fetch_request(starts, 0, 1, max_bytes, 0, isolation))
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self.client.address) from None
        finally:
            call.cancel()

    async def until_waiting(self, count: int, topic: str = "t", partition: int = 0) -> None:
        """Wait until that many calls wait for the partition."""
        signal = self.partition(topic, partition).signal
        async with asyncio.timeout(PATIENCE_S):
            while waiting_count(signal) != count:
                await asyncio.sleep(0)

    async def append(self, topic: str, values: Sequence[bytes], partition: int = 0) -> int:
        """Append keyless records with timestamp 0 as one batch; returns the base offset."""
        records = [Record(0, 0, None, value) for value in values]
        return (await self.client.append(topic, partition, records)).base_offset


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that gives the test no signal."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


def waiting_count(signal: PartitionSignal) -> int:
    """The number of calls that wait for a partition."""
    return len(signal._waiters)  # pyright: ignore[reportPrivateUsage]  # only tests look


def catalog_elsewhere(store: ObjectStore) -> Catalog:
    """The catalog as another process opens it."""
    return Catalog.open(_actor_elsewhere(store))


def metadata_elsewhere(store: ObjectStore) -> MetadataLog:
    """The first shard as another process opens it."""
    load_directory = partial(read_directory, store, StoreLayout(0))
    return MetadataLog.open(_actor_elsewhere(store), 0, load_directory)


def _actor_elsewhere(store: ObjectStore) -> StoreActor:
    ids = SystemIdGenerator()
    return StoreActor(
        store=store,
        clock=SystemClock(),
        random_source=Random(0),
        ids=ids,
        identity=StoreIdentity.open_or_create(store, ids),
        writer=Writer("tool", "elsewhere"),
    )


def end_transaction(
    partition: HostedPartition, producer_id: int, producer_epoch: int = 0, *, committed: bool
) -> AppendInfo:
    """Append a marker as durable as the topic, and wake the readers."""
    epoch = partition.shard.leader_epoch()
    marker = partition.log.appender.append_end_transaction_marker(
        producer_id, producer_epoch, 0, committed=committed, leader_epoch=epoch
    )
    partition.log.flusher.flush()
    partition.signal.notify()
    return marker


@asynccontextmanager
async def service_bench(
    folder: Path | str,
    *,
    filesystem: FileSystem | None = None,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    tracing: CallTracing | None = None,
    has_processes: bool = False,
    **settings: Any,
) -> AsyncGenerator[ServiceBench, None]:
    """Serve from `folder/data` (and `folder/data.store`, unless a store is given) for as long as the block
    lasts. It compacts in this process, unless it `has_processes`.
    """
    values: dict[str, Any] = {**QUIET, "data_dir": f"{folder}/data", **settings}
    values["config"] = {**QUIET_CONFIG, **values.get("config", {})}
    async with (
        Server(
            ServerSettings(**values),
            filesystem=filesystem,
            store=store,
            clock=clock,
            tracing=tracing,
            has_processes=has_processes,
        ) as server,
        Client(f"127.0.0.1:{server.port}", retry=RetryPolicy(deadline_s=0)) as client,
    ):
        yield ServiceBench(server, client)
