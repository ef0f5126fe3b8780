"""Two log directories, and an opener of partitions over them, without a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

from stratalog.base.clock import Clock
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.base.types import Durability, TopicIdPartition, TopicPartition
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.manifest import MANIFEST_FILE
from stratalog.manager.log_manager import LogManager
from stratalog.remote.metadata.ownership.ownership import ClaimedShard
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.server.append.pending_append import PendingAppend
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.opening.partition_opener import (
    DirectoryThreads,
    PartitionHost,
    PartitionOpener,
    WantedPartition,
)
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.request_memory import RequestMemory
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.log_machine import TOPIC_ID, LogMachine
from tests.support.logs.plain_batches import batch
from tests.support.plain_calls import PlainCalls
from tests.support.tiered.inline_reads import inline_reads
from tests.support.tiered.metadata_harness import MetadataHarness

A, B = "/disk-a/logs", "/disk-b/logs"
PATIENCE_S = 30.0


class LookClock(ManualClock):
    """A clock that moves while an opener waits. For one waiting thread."""

    def __init__(self, settle: Callable[[], None]) -> None:
        """`settle` returns once nothing more happens before time passes; other threads go on meanwhile."""
        super().__init__()
        self._settle = settle

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None
        condition.release()
        try:
            self._settle()
        finally:
            condition.acquire()
        self.advance(round(timeout_s * 1000))
        return False


class Opening:
    """Two log directories and an opener. Used by one thread."""

    def __init__(
        self,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        *,
        disk: FaultyFileSystem | None = None,
    ) -> None:
        self.disk = disk or FaultyFileSystem()
        self._executor, self.loop = executor, loop
        self.asked: list[tuple[str, str]] = []
        """The kinds of threads and the log directories for which writers have asked."""
        self._host = PartitionHost(
            ManualClock(),
            loop,
            PlainCalls(loop),
            DirectoryThreads(
                partial(self._ask, "append"),
                partial(self._ask, "flush"),
                partial(self._ask, "validate"),
            ),
        )
        self._harness = MetadataHarness()
        metadata = self._harness.log()
        claimed = ClaimedShard(metadata.claim("owner", self._harness.ids.uuid()), 0)
        self._shard = HostedShard(self._harness.clock, metadata, claimed, lambda: None, 0)
        self.before_host: Callable[[UnifiedLog], None] = lambda _: None
        self.hosted: list[HostedPartition] = []
        """Each partition that was hosted, whatever became of it."""
        self.opener = self.start(A, B)

    def start(
        self,
        *data_dirs: str,
        clock: Clock | None = None,
        executor_of: Callable[[str], Executor] | None = None,
        run_beside: RunBeside = run_here,
    ) -> PartitionOpener:
        """A process with these log directories."""
        self.disk.inner.release_locks()
        self.manager: LogManager = LogMachine(self.disk, data_dirs=data_dirs, ids=SequentialIds()).open()
        self.manager.directories.bind_store("store")
        self.reader = RemoteReader(inline_reads(self._harness.store), self._shard.metadata)
        return PartitionOpener(
            clock or self._harness.clock,
            ShardSet([self._shard]),
            self.manager,
            self._hosted,
            executor_of or (lambda _: self._executor),
            run_beside,
            PATIENCE_S,
        )

    def _hosted(self, log: UnifiedLog, shard: HostedShard) -> HostedPartition:
        self.before_host(log)
        hosted = self._host.host(log, shard, self.reader)
        self.hosted.append(hosted)
        return hosted

    def _ask(self, kind: str, path: str) -> Executor:
        self.asked.append((kind, path))
        return self._executor

    def append(self, partition: HostedPartition) -> AppendInfo:
        """Append a record at `disk`."""
        future: asyncio.Future[AppendInfo] = self.loop.create_future()
        memory = RequestMemory(1).lease()
        partition.writer.submit(PendingAppend(batch(), Durability.DISK, future, memory, partition.identity))
        return self.loop.run_until_complete(future)

    def manifest_writes(self, since: int) -> list[str]:
        """The log directories whose manifests were replaced since that operation."""
        replaced = {f"rename {path}/{MANIFEST_FILE}.tmp {path}/{MANIFEST_FILE}": path for path in (A, B)}
        return [replaced[line] for line in self.disk.trace[since:] if line in replaced]


def wanted(*numbers: int, is_new: bool = False) -> list[WantedPartition]:
    return [
        WantedPartition(
            TopicPartition("orders", number), TopicIdPartition(TOPIC_ID, number), LogConfig(), is_new
        )
        for number in numbers
    ]


def states(opened: Sequence[HostedPartition | OfflinePartition]) -> list[bool]:
    return [isinstance(one, HostedPartition) for one in opened]
