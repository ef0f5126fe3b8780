"""A write to a running service as Spark makes it, without Spark: tasks in threads, a driver that may die."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.messages import AppendAck
from stratalog.client.retry import RetryPolicy
from stratalog.pipeline.sink.batch_commit import BatchCommit
from stratalog.pipeline.sink.sink_options import SinkOptions, parse_sink_options
from stratalog.pipeline.sink.staging_topic import StagedTask, staging_topic_name
from stratalog.pipeline.sink.task_staging import TaskStaging
from tests.support.service.service_bench import ServiceBench

Row = tuple[str | None, bytes | None]
"""Key and value."""


class DiedError(Exception):
    """The process is gone. Nothing of ours catches it."""


def table(rows: Sequence[Row], **columns: Any) -> pa.RecordBatch:
    """Rows as Spark passes them to a writer."""
    keys, values = zip(*rows, strict=True) if rows else ((), ())
    return pa.RecordBatch.from_pydict(
        {"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.binary()), **columns}
    )


class MortalClient(Client):
    """A client whose process dies at an append, or whose connection breaks there. Belongs to one event
    loop."""

    def __init__(self, address: str, fatal_append: int | None, *, is_stored: bool, is_fatal: bool) -> None:
        """`fatal_append` is the number of the append, from 0; None: none. `is_stored`: behind its effect, and
        that of a later append if the server refuses it."""
        super().__init__(address, retry=RetryPolicy(deadline_s=10, first_pause_s=0.001))
        self._fatal_append = fatal_append
        self._is_stored = is_stored
        self._is_fatal = is_fatal
        self.append_count = 0

    async def append(self, *arguments: Any, **options: Any) -> AppendAck:
        return await self._mortal(super().append(*arguments, **options))

    async def append_batches(self, *arguments: Any, **options: Any) -> AppendAck:
        return await self._mortal(super().append_batches(*arguments, **options))

    async def _mortal(self, append: Coroutine[Any, Any, AppendAck]) -> AppendAck:
        number, self.append_count = self.append_count, self.append_count + 1
        if self._fatal_append is None or number < self._fatal_append:
            return await append
        if self._is_stored:
            await append
        append.close()
        self._fatal_append = None
        raise DiedError if self._is_fatal else ServerUnavailableError("the connection broke")


class SinkWorld:
    """A query that writes to a server. Belongs to one event loop."""

    def __init__(self, bench: ServiceBench, query: str = "query", **options: str) -> None:
        given = {"server": bench.client.address, **options}
        self.bench = bench
        self.options: SinkOptions = parse_sink_options(given, is_stream=False)
        self.staging_topic = staging_topic_name(query)
        self._attempts = count(1)

    async def stage(self, batches: Iterable[pa.RecordBatch], first_partition: int = 0) -> StagedTask:
        """Run an attempt of a task."""
        name = f"attempt-{next(self._attempts)}"

        def stage() -> StagedTask:
            with self.options.service.sync_client() as client:
                return TaskStaging(client, self.staging_topic, name, self.options).stage(
                    batches, first_partition
                )

        return await asyncio.to_thread(stage)

    async def commit(
        self,
        batch: int,
        tasks: Sequence[StagedTask],
        fatal_append: int | None = None,
        *,
        is_stored: bool = False,
        is_fatal: bool = True,
    ) -> int:
        """Commit as a driver that dies at that append; returns the number of appends. Raises DiedError."""
        address = self.bench.client.address
        async with MortalClient(address, fatal_append, is_stored=is_stored, is_fatal=is_fatal) as client:
            await BatchCommit(client, self.staging_topic, self.options.durability).commit(batch, tasks)
            return client.append_count

    async def dies(
        self, batch: int, tasks: Sequence[StagedTask], fatal_append: int, *, is_stored: bool
    ) -> bool:
        """Commit in the same way. Returns whether the driver died: there were so many appends."""
        try:
            await self.commit(batch, tasks, fatal_append, is_stored=is_stored)
        except DiedError:
            return True
        return False


def dying_after(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The input of a task that dies behind these batches."""
    yield from batches
    raise DiedError
