"""Partitions that are opened together: which of them are created, and with how many writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import Durability, TopicIdPartition, TopicPartition
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.manifest import MANIFEST_FILE
from stratalog.remote.metadata.ownership.ownership import ClaimedShard
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.server.append.pending_append import PendingAppend
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_opener import PartitionHost, PartitionOpener, WantedPartition
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


class Opening:
    """Two log directories and an opener. Used by one thread."""

    def __init__(self, executor: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
        self.disk = FaultyFileSystem()
        self._executor, self.loop = executor, loop
        self.asked: list[tuple[str, str]] = []
        """The kinds of threads and the log directories for which writers have asked."""
        self._host = PartitionHost(
            ManualClock(),
            loop,
            PlainCalls(loop),
            lambda path: self._ask("append", path),
            lambda path: self._ask("flush", path),
        )
        self._harness = MetadataHarness()
        metadata = self._harness.log()
        claimed = ClaimedShard(metadata.claim("owner", self._harness.ids.uuid()), 0)
        self._shard = HostedShard(self._harness.clock, metadata, claimed, lambda: None, 0)
        self.opener = self.start(A, B)

    def start(self, *data_dirs: str) -> PartitionOpener:
        """A process with these log directories."""
        self.disk.inner.release_locks()
        manager = LogMachine(self.disk, data_dirs=data_dirs, ids=SequentialIds()).open()
        manager.directories.bind_store("store")
        reader = RemoteReader(inline_reads(self._harness.store), self._shard.metadata)
        return PartitionOpener(
            self._harness.clock,
            ShardSet([self._shard]),
            manager,
            lambda log, shard: self._host.host(log, shard, reader),
            lambda _: self._executor,
        )

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


@pytest.fixture
def opening() -> Iterator[Opening]:
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as executor:
        yield Opening(executor, loop)
    loop.close()


def wanted(*numbers: int, is_new: bool = False) -> list[WantedPartition]:
    return [
        WantedPartition(
            TopicPartition("orders", number), TopicIdPartition(TOPIC_ID, number), LogConfig(), is_new
        )
        for number in numbers
    ]


def states(opened: Sequence[HostedPartition | OfflinePartition]) -> list[bool]:
    return [isinstance(one, HostedPartition) for one in opened]


def test_a_start_creates_what_a_crash_has_kept_from_being_created_with_one_write(opening: Opening) -> None:
    since = opening.disk.operation_count
    assert states(opening.opener.open_what_can_be(wanted(*range(6)))) == [True] * 6
    assert opening.manifest_writes(since) == [A, B]


def test_new_partitions_open_beside_others_while_a_directory_is_missing(opening: Opening) -> None:
    opening.opener.open(wanted(0, is_new=True))
    opener = opening.start(A)
    group = [*wanted(0), *wanted(1, is_new=True)]
    assert [one.topic_partition.partition for one in opener.open(group)] == [0, 1]
    with pytest.raises(DataDirectoryError) as failure:
        opener.open([*wanted(0, 1), *wanted(2, is_new=True), *wanted(3)])
    assert failure.value.fields["path"] == f"{B}/orders-3"
    assert states(opener.open_what_can_be([*wanted(2, is_new=True), *wanted(3)])) == [True, False]


def test_appends_and_flushes_have_the_threads_of_the_directory_of_their_log(opening: Opening) -> None:
    used: set[str] = set()
    for partition in opening.opener.open(wanted(0, 1, is_new=True)):
        directory = partition.log.local_log.log_dir
        assert opening.append(partition).base_offset == 0
        # The leader epoch of the first append is made durable before its turn.
        assert opening.asked == [("append", directory), ("flush", directory)] * 2
        opening.asked.clear()
        used.add(directory)
    assert used == {A, B}
