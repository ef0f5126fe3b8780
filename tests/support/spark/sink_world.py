"""A write to a running service as Spark makes it, without Spark: tasks in threads, a driver that may die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from stratalog.base.errors import UnsupportedOperationError
from stratalog.client.client import Client
from stratalog.client.messages import AppendAck
from stratalog.client.retry import RetryPolicy
from stratalog.pipeline.sink.batch_commit import BatchCommit
from stratalog.pipeline.sink.sink_options import SinkOptions, parse_sink_options
from stratalog.pipeline.sink.staging_topic import StagedTask, staging_topic_name
from stratalog.pipeline.sink.task_staging import TaskStaging
from stratalog.v1 import log_pb2
from tests.support.service.service_bench import ServiceBench

_Answer = TypeVar("_Answer")

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


class Accident(NamedTuple):
    """A failure of a driver at an append."""

    number: int
    """That of the append, from 0. If the server refuses it, the next one that it takes."""
    is_stored: bool = False
    """The append has its effect, without the durability that was asked for, and no answer."""
    error: type[Exception] | None = DiedError
    """None: the driver only waits there."""
    meanwhile: Callable[[], Awaitable[object]] | None = None
    """Happens at that time."""


class MortalClient(Client):
    """A client that has an accident. Belongs to one event loop."""

    def __init__(self, address: str, accident: Accident | None, *, copies: bool = True) -> None:
        """Without `copies` its server copies no batches, as an older one."""
        super().__init__(address, retry=RetryPolicy(deadline_s=10, first_pause_s=0.001))
        self._accident = accident
        self._copies = copies
        self._copy_batches: Callable[..., Awaitable[log_pb2.CopyBatchesResponse]] = self.log.CopyBatches
        setattr(self.log, "CopyBatches", self._copy)  # noqa: B010 - the stub's class has no such method to assign to
        self.append_count = 0

    async def append(self, *arguments: Any, **options: Any) -> AppendAck:
        return await self._mortal(partial(super().append, *arguments), options)

    async def append_batches(self, *arguments: Any, **options: Any) -> AppendAck:
        return await self._mortal(partial(super().append_batches, *arguments), options)

    def _copy(self, request: log_pb2.CopyBatchesRequest, timeout: float) -> _Repeatable:
        return _Repeatable(partial(self._copied, request, timeout))

    async def _copied(
        self, request: log_pb2.CopyBatchesRequest, timeout: float
    ) -> log_pb2.CopyBatchesResponse:
        if not self._copies:
            raise UnsupportedOperationError("the server has no such call")

        async def copy(**changes: object) -> log_pb2.CopyBatchesResponse:
            for one in request.copies if changes else ():
                one.ClearField("durability")
            return await self._copy_batches(request, timeout=timeout)

        return await self._mortal(copy, {})

    async def _mortal(self, append: Callable[..., Awaitable[_Answer]], options: dict[str, Any]) -> _Answer:
        number, self.append_count = self.append_count, self.append_count + 1
        accident = self._accident
        if accident is None or number < accident.number:
            return await append(**options)
        if accident.is_stored:
            await append(**{**options, "durability": None})
        self._accident = None
        if accident.meanwhile is not None:
            await accident.meanwhile()
        if accident.error is None:
            return await append(**options)
        raise accident.error("an accident")


class _Repeatable(NamedTuple):
    """A call that begins each time that it is awaited, as those of a client's stubs."""

    begin: Callable[[], Awaitable[log_pb2.CopyBatchesResponse]]

    def __await__(self) -> Generator[Any, None, log_pb2.CopyBatchesResponse]:
        return self.begin().__await__()


class SinkWorld:
    """A query that writes to a server. Belongs to one event loop."""

    def __init__(
        self, bench: ServiceBench, query: str = "query", *, copies: bool = True, **options: str
    ) -> None:
        """`copies`: whether its server copies batches."""
        given = {"server": bench.client.address, **options}
        self.bench = bench
        self.options: SinkOptions = parse_sink_options(given, is_stream=False)
        self._copies = copies
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

    async def commit(self, batch: int, tasks: Sequence[StagedTask], accident: Accident | None = None) -> int:
        """Commit as a driver with that accident; returns the number of appends. Raises the error of it."""
        async with MortalClient(self.bench.client.address, accident, copies=self._copies) as client:
            await BatchCommit(client, self.staging_topic, self.options.durability).commit(batch, tasks)
            return client.append_count

    async def dies(self, batch: int, tasks: Sequence[StagedTask], accident: Accident) -> bool:
        """Commit in the same way. Returns whether the driver died: there were so many appends."""
        try:
            await self.commit(batch, tasks, accident)
        except DiedError:
            return True
        return False


def dying_after(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The input of a task that dies behind these batches."""
    yield from batches
    raise DiedError
