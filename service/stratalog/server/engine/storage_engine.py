"""The open components below the servicers, and the outside world that they are built on.

Closing: the caller has stopped all requests and tasks. The log manager flushes, writes its checkpoints and,
as its last step, the marker of a clean shutdown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from stratalog.base.clock import Clock
from stratalog.base.disk_calls import DIRECT_DISK_CALLS, DiskCalls
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import Scheduler
from stratalog.base.stop_signal import StopSignal
from stratalog.manager.log_manager import LogManager, Threads
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.ownership.seen_heads import SeenHeads
from stratalog.remote.store_identity import StoreIdentity
from stratalog.server.background.disk_pressure import DiskPressure
from stratalog.server.background.local_cleaning import LocalCleaning
from stratalog.server.background.local_retention import LocalRetention
from stratalog.server.background.pass_registry import PassRegistry
from stratalog.server.background.pass_rounds import PassRounds
from stratalog.server.background.tier_compaction import TierCompaction
from stratalog.server.background.tier_manager import TierManager
from stratalog.server.background.tier_retention import TierRetention
from stratalog.server.background.tier_upkeep import TierUpkeep
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.server.copy_lag import CopyLag
from stratalog.server.operations.operation_registry import OperationRegistry
from stratalog.server.partitions.directory_admin import DirectoryAdmin
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.partitions.patient_disk_calls import PatientDiskCalls
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.topics.partition_fencing import PartitionFencing
from stratalog.server.topics.producer_ids import ProducerIds
from stratalog.server.topics.topic_manager import TopicManager


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeams:
    """The outside world of an engine: disk, store, time, threads and chance."""

    filesystem: FileSystem
    store: ObjectStore
    clock: Clock
    scheduler: Scheduler
    long_scheduler: Scheduler
    """Has a thread for each operation and each clean of local logs, however many run."""
    ids: IdGenerator
    stop: StopSignal
    """Ends long work that a later pass repeats: uploads, compactions, the collector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLogs:
    """The logs on the disks of this machine, and the work on them."""

    logs: LogManager
    directories: DirectoryAdmin
    cleaning: LocalCleaning
    retention: LocalRetention
    rounds: PassRounds[str]
    """Keeps the log directories of a pass apart."""
    pressure: DiskPressure
    disk_calls: PatientDiskCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectTier:
    """The object store, the shards that this server owns, and the work on their objects."""

    store: ObjectStore
    identity: StoreIdentity
    shards: ShardSet
    manager: TierManager
    compaction: TierCompaction
    retention: TierRetention
    upkeep: TierUpkeep


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedTopics:
    """The catalog of topics and configuration, and the partitions that this server hosts."""

    catalog: Catalog
    runtime: RuntimeConfig
    manager: TopicManager
    registry: PartitionRegistry
    producer_ids: ProducerIds
    fencing: PartitionFencing
    copy_lag: CopyLag


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageEngine:
    """The open components. Thread-safe; `end_long_work` and `close` are for one caller. Owns no threads."""

    local: LocalLogs
    tier: ObjectTier
    topics: HostedTopics
    operations: OperationRegistry
    passes: PassRegistry
    seen_heads: SeenHeads
    """Notes the newest heads of the store in the log directories."""

    def hurry_commits(self) -> None:
        """Commit the appends that wait, and those of calls that go on, without waiting for others."""
        for one in self.tier.manager.commits:
            one.hurry()

    def end_commits(self) -> None:
        """End the commits, and fail the appends that still wait for one."""
        for one in self.tier.manager.commits:
            one.stop()

    def end_long_work(self) -> None:
        """End running cleans and moves; they continue after a restart."""
        self.local.cleaning.workers.stop()
        self.local.logs.moves.close()

    def close(
        self,
        threads: Callable[[str], Threads] | None = None,
        disk_calls: DiskCalls = DIRECT_DISK_CALLS,
        *,
        are_tasks_left: bool = False,
    ) -> None:
        """Note the newest heads, flush, checkpoint, mark the shutdown as clean, release the data directory
        and the store: see `LogManager.close`."""
        try:
            if not are_tasks_left:
                note = self.seen_heads.try_note
                disk_calls.run_each({path: partial(note, path) for path in self.local.logs.tasks.paths()})
            self.local.logs.close(threads, disk_calls, are_tasks_left=are_tasks_left)
        finally:
            self.tier.store.close()
