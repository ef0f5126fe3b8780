"""One server below gRPC, in the thread of a test: the engine with all of its parts, on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.objectstore.protocol import ObjectStore
from stratalog.server.append.pending_append import PendingAppend
from stratalog.server.background_tasks import start_background_tasks
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.engine.engine_builder import StorageEngineBuilder
from stratalog.server.engine.storage_engine import EngineSeams, StorageEngine
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.opening.partition_opener import DirectoryThreads, PartitionHost
from stratalog.server.request_memory import RequestMemory
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.plain_calls import PlainCalls
from tests.support.tier_model.inline_threads import InlineExecutor, InlineScheduler
from tests.support.tier_model.still_clock import StillClock
from tests.support.tier_model.store_weather import StoreWeather


class EngineProcess:
    """A server that runs, until it is killed or stopped. Not thread-safe: one test drives it.

    Its tasks on local logs and on the store run when the test calls them, or once it has started them;
    commits of tails, and removals of files, run as time passes.
    """

    def __init__(
        self,
        disk: FaultyFileSystem,
        bucket: ObjectStore,
        clock: StillClock,
        loop: asyncio.AbstractEventLoop,
        seed: int,
        *,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Does nothing yet. `loop` does not run but within the calls of this object."""
        self.disk = disk
        self.weather = StoreWeather(Random(seed))
        self.store = FaultyObjectStore(bucket, Random(seed), self.weather)
        self._clock = clock
        self._loop = loop
        self._ids = SequentialIds(seed)
        self._memory = RequestMemory(1 << 30)
        self._schedulers = (InlineScheduler(clock), InlineScheduler(clock))
        self._settings = ServerSettings(data_dir="/data", metadata_cache_bytes=1 << 20, config=config or {})
        self.dies_at: int | None = None
        """The operation of the disk at which it dies."""
        self.engine: StorageEngine

    def open(self) -> None:
        """Start. Raises as `StorageEngineBuilder.open`, and the death of the process."""
        scheduler, long_scheduler = self._schedulers
        executor = InlineExecutor()

        def executor_of(_log_dir: str) -> InlineExecutor:
            return executor

        seams = EngineSeams(
            filesystem=self.disk,
            store=self.store,
            clock=self._clock,
            scheduler=scheduler,
            long_scheduler=long_scheduler,
            ids=self._ids,
            stop=StopSignal(),
        )
        self.engine = StorageEngineBuilder(seams, self._settings, "here:1").open(
            PartitionHost(
                self._clock,
                self._loop,
                PlainCalls(self._loop),
                DirectoryThreads(executor_of, executor_of, executor_of),
            ),
            lambda _path, _count: executor,
            lambda: None,
        )

    def start_tasks(self) -> None:
        """Let the periodic tasks of a server run as time passes."""
        start_background_tasks(self._schedulers[0], self.engine, self._settings)

    def die_at(self, operation: int, *, part: float) -> None:
        """Die at that operation of the disk, counted from 1, after the fraction `part` of it, if it has not
        died before."""
        if self.dies_at is not None:
            return
        self.disk.crash_at(operation, part=part)
        self.dies_at = operation

    @property
    def is_dead(self) -> bool:
        is_cut_off = self.dies_at is not None and self.disk.operation_count >= self.dies_at
        return self.store.is_stopped or is_cut_off

    def partitions(self) -> Sequence[HostedPartition]:
        """All partitions that it serves."""
        return list(self.engine.topics.registry.partitions())

    def append(
        self, partition: HostedPartition, batch: bytes, level: Durability | None
    ) -> asyncio.Future[AppendInfo]:
        """Append a batch; the answer may come later, with the commit of the tail. Raises LogStoreError if the
        append is refused before it gets to the log."""
        partition.ensure_served()
        partition.ensure_room()
        future: asyncio.Future[AppendInfo] = self._loop.create_future()
        append = PendingAppend(
            batches=batch,
            durability=partition.effective_durability(level),
            future=future,
            memory=self._memory.lease(len(batch)),
            identity=partition.identity,
        )
        # A process that dies asks no more.
        future.add_done_callback(lambda one: one.cancelled() or one.exception())
        partition.writer.submit(append)
        self.answer()
        return future

    def answer(self) -> None:
        """Let the answers that are ready arrive."""
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def stop(self) -> None:
        """Stop as a server stops that was asked to."""
        self.engine.end_commits()
        self.answer()
        self.engine.end_long_work()
        self._close_schedulers()
        self.engine.close(lambda _: InlineExecutor())

    def abandon(self) -> None:
        """Nothing of it runs any more."""
        self._close_schedulers()

    def _close_schedulers(self) -> None:
        for scheduler in self._schedulers:
            scheduler.close()
