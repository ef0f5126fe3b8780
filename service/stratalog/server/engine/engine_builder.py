"""Assembles all components below the servicers, and opens them in order.

Opening, in this order, because each step protects the next:

1. Lock the data directory. From here on no other process writes the local logs.
2. Read the store's identity, or create it if the data directory belongs to no store yet. A directory that
   belongs to another store stops the start here, before anything is written to either. Probe the store's
   conditional writes. Read the catalog, with the server's configuration in it, and the shards' metadata:
   nothing is deleted or compacted by a configuration that was not read. Bind the data directory to this
   store.
3. Refuse heads of shards that went back to an older state. Claim every shard, or those of `own_shards`. A
   former owner is fenced from here on. Read the catalog again, because until here the former owner could set
   the fencing tokens of partitions.
4. Open the local logs, several at a time, compare each with the bucket, set aside what cannot go on, leave
   offline what cannot be opened, and publish the topics.

A failed step releases the lock and leaves the store as it is: a claim without a server is harmless.

A read-only server takes the same steps on an empty directory, and writes nothing to the store: it creates no
identity, probes nothing, and follows the shards instead of claiming them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial

from stratalog.base.errors import DataDirectoryError, InvalidConfigError
from stratalog.base.posix_filesystem import open_file_limit
from stratalog.base.randomness import seeded_random
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.compaction.compactor import ExecutionElsewhere
from stratalog.compaction.tier_verification import VERIFIED_AT_ONCE
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.objectstore.timed import TimedObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.head.page_loader import PageLoader
from stratalog.remote.metadata.ownership.head_witness import HeadWitness
from stratalog.remote.metadata.ownership.ownership import claim_shard
from stratalog.remote.metadata.ownership.seen_heads import SeenHeads, require_newest_heads
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.read.disk_cache import DiskCache
from stratalog.remote.read.object_reads import ObjectReads, ReadThreads
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout, shard_of
from stratalog.segment.open_files import max_open_below
from stratalog.server.background.confirmed_topics import ConfirmedTopics
from stratalog.server.background.disk_pressure import DiskPressure, YieldCache
from stratalog.server.background.local_cleaning import LocalCleaning
from stratalog.server.background.local_retention import LocalRetention
from stratalog.server.background.pass_registry import PassRegistry
from stratalog.server.background.pass_rounds import (
    MAX_DIRECTORY_COUNT,
    PassRounds,
    hanging_directory,
    hanging_shard,
)
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.background.tail_commits import (
    PASS_NAME,
    commit_backlog,
)
from stratalog.server.background.tier_compaction import TierCompaction
from stratalog.server.background.tier_manager import TierManager, TierWaits
from stratalog.server.background.tier_retention import TierRetention
from stratalog.server.background.tier_upkeep import TierUpkeep
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.copy_lag import CopyLag
from stratalog.server.engine.component_settings import reader_settings
from stratalog.server.engine.storage_engine import (
    EngineSeams,
    HostedTopics,
    LocalLogs,
    ObjectTier,
    StorageEngine,
)
from stratalog.server.engine.store_wait import tell_of_waiting
from stratalog.server.engine.tier_builder import OpenedStore, TierBuilder, online_directories
from stratalog.server.operations.operation_registry import OperationRegistry
from stratalog.server.operations.verification_log import VerificationLog
from stratalog.server.partitions.directory_admin import DirectoryAdmin
from stratalog.server.partitions.followed_shard import FollowedShard
from stratalog.server.partitions.foreign_shard import ForeignShard
from stratalog.server.partitions.free_space import FreeSpace
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.opening.partition_opener import Host, PartitionHost, PartitionOpener
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.partitions.patient_disk_calls import PatientDiskCalls
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.partitions.store_contact import ContactFaults
from stratalog.server.topics.partition_fencing import PartitionFencing
from stratalog.server.topics.producer_ids import ProducerIds
from stratalog.server.topics.topic_host import TopicHost
from stratalog.server.topics.topic_manager import TopicManager
from stratalog.server.worker_pools import begin, flush_threads, run_together

logger = logging.getLogger(__name__)


START_PATIENCE_S = 30.0
"""How long a start waits for a log directory whose disk does nothing."""


class StorageEngineBuilder:
    """Opens an engine. One use; belongs to one thread."""

    def __init__(
        self,
        seams: EngineSeams,
        settings: ServerSettings,
        endpoint: str,
        threads: ReadThreads | None = None,
        run_request: RunBeside = run_here,
        execution_elsewhere: ExecutionElsewhere | None = None,
    ) -> None:
        """`endpoint`: HOST:PORT where clients reach this server; its claims have it. `threads` are for the
        readers of tiered data, which do everything by themselves without. `run_request` runs a request for
        metadata, or work on a log directory, which may hang for ever; here it would have no deadline.
        `execution_elsewhere` executes jobs of compaction in other processes, which have the same store and
        disk."""
        self._seams = seams
        self._execution_elsewhere = execution_elsewhere
        self._run_request = run_request
        self._endpoint = endpoint
        self._store = seams.store
        self._clock = seams.clock
        self._ids = seams.ids
        self._random = seeded_random(seams.ids)
        self._settings = settings
        self._data_dir = os.path.abspath(settings.data_dir)
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._registry = PartitionRegistry()
        threads = threads or ReadThreads.none()
        config = BrokerConfig.from_overrides(settings.config)
        self._disk_cache = DiskCache(
            seams.filesystem, f"{self._data_dir}/cache", config.read_disk_cache_bytes, threads.ahead
        )
        # What is written here was just fetched or stored, by a thread that may wait for the disk.
        self._page_disk = DiskCache(
            seams.filesystem, f"{self._data_dir}/pages", settings.metadata_disk_cache_bytes, run_here
        )
        self._reads = ObjectReads(
            self._store, self._clock, threads, reader_settings(config), self._disk_cache
        )
        self._start_calls = PatientDiskCalls(
            self._clock, run_request, len(settings.all_log_dirs), START_PATIENCE_S
        )
        self._passes = PassRegistry(self._clock)
        beside = seams.long_scheduler.once
        self._rounds = PassRounds[int](self._clock, partial(beside, "work on a shard"), hanging_shard)
        self._local_rounds = PassRounds[str](
            self._clock, partial(beside, "work on a log directory"), hanging_directory, MAX_DIRECTORY_COUNT
        )

    def open(
        self,
        host: PartitionHost,
        opening: Callable[[str, int], Executor],
        on_fenced: Callable[[], None],
        on_all_failed: Callable[[], None] = lambda: None,
        on_logs: Callable[[LogManager], None] = lambda _: None,
    ) -> StorageEngine:
        """Open everything. Takes disk and network for as long as recovery needs. Raises DataDirectoryError
        (in use, bound to another store, or not readable), StoreError, and InvalidConfigError if this version
        refuses the configuration in the catalog.

        `opening` returns the executor for a log directory and a number of threads, which open its logs; and
        one each for the requests of the metadata, for verifications, and for the fsyncs of waiting tails.
        `on_all_failed` is called, under any lock, when the last log directory goes offline; `on_logs` with
        the log manager, before it opens a log.
        """
        with ExitStack() as undo:
            undo.callback(self._store.close)
            logs = self._open_logs(on_all_failed)
            undo.callback(logs.close, disk_calls=self._start_calls)
            on_logs(logs)
            if self._data_dir in online_directories(logs):
                self._disk_cache.open()
                self._page_disk.open()
            with tell_of_waiting(self._seams.scheduler, self._clock, self._store.url):
                engine = self._open_store(logs, host, opening, on_fenced)
            engine.topics.manager.open_all()
            logs.end_start(engine.topics.manager.claim_of)
            _require_a_disk(logs)
            undo.pop_all()
        logger.info(
            "opened store %s, id %s, with %d topics",
            self._store.url,
            engine.tier.identity.store_id,
            len(self._registry.topics()),
        )
        return engine

    def _open_store(
        self,
        logs: LogManager,
        host: PartitionHost,
        opening: Callable[[str, int], Executor],
        on_fenced: Callable[[], None],
    ) -> StorageEngine:
        """Open the store, claim the shards, and put the parts together. Raises as `open` does."""
        identity = self._open_identity(logs)
        if not self._settings.read_only:
            require_conditional_writes(self._store, self._ids)
        threads = opening("metadata", self._settings.metadata_thread_count)
        catalog, shards = self._open_metadata(logs, identity, threads)
        static, limit = self._settings.config, self._settings.max_request_bytes
        runtime = RuntimeConfig(catalog, logs, static, limit)
        logs.directories.bind_store(str(identity.store_id))
        disk_calls = PatientDiskCalls(self._clock, self._run_request, len(logs.data_dirs))
        logs.directories.disk_calls = disk_calls
        opened = OpenedStore(logs, identity, catalog, runtime, disk_calls)
        building = TierBuilder(
            self._seams,
            self._settings,
            opened,
            self._reads,
            self._passes,
            partial(_run_on_disk, opening),
            partial(run_together, opening("verification", VERIFIED_AT_ONCE)),
        )
        claimed = self._claim_shards(opened, self._owned(shards), on_fenced)
        tiers = [building.tier(shard, self._execution_elsewhere, len(claimed)) for shard in claimed]
        known = {entry.topic_id for entry in catalog.topics().values()}
        if any(entry.topic_id not in known for entry in catalog.refresh().topics().values()):
            # An import commits slices before it creates the topic, perhaps since the claims.
            for metadata in shards:
                metadata.refresh()
        return self._assemble(opened, tiers, self._foreign(shards), host, opening)

    def _open_logs(self, on_all_failed: Callable[[], None]) -> LogManager:
        """Open the log manager. Raises DataDirectoryError, DataDirectoryInUseError."""
        # What was altered at run time is applied before a log is opened, see `DirectoryAdmin`.
        config = BrokerConfig.from_overrides(self._settings.config)
        settings = LogManagerSettings(
            data_dirs=self._settings.all_log_dirs,
            cordoned_dirs=tuple(
                path for path in self._settings.all_log_dirs if path in config.cordoned_log_dirs
            ),
            max_open_files=max_open_below(open_file_limit()),
            tail_bytes=self._settings.tail_bytes,
            producer_id_expiration_ms=config.producer_expiration_ms,
            producer_id_expiration_check_interval_ms=config.producer_expiration_check_ms,
            max_log_producer_count=self._settings.max_partition_producer_count,
            max_producer_count=self._settings.max_producer_count,
            file_delete_delay_ms=config.topic_defaults.file_delete_delay_ms,
        )
        logs = LogManager.open(
            filesystem=self._seams.filesystem,
            clock=self._clock,
            scheduler=self._seams.scheduler,
            ids=self._ids,
            settings=settings,
            on_all_failed=on_all_failed,
            disk_calls=self._start_calls,
        )
        logs.leave_free(config.min_free_bytes)
        return logs

    def _open_identity(self, logs: LogManager) -> StoreIdentity:
        """Open the store's identity, or create it. Raises DataDirectoryError.

        Only a directory that belongs to no store yet may create one, so that a wrong URL leaves nothing
        behind.
        """
        if self._settings.read_only:
            _require_no_logs(logs)
            return StoreIdentity.open(self._store)
        bound_id = logs.directories.bound_store_id
        if bound_id is None:
            return StoreIdentity.open_or_create(self._store, self._ids, self._settings.shard_count or None)
        identity = StoreIdentity.find(self._store)
        if identity is None:
            raise DataDirectoryError(
                "this log directory belongs to another object store, and this one is empty; use that store,"
                " or another directory; if the bucket was emptied, put its objects back, or save the local"
                " records: `docs/store_repairs.md` says how",
                path=self._data_dir,
                store_id=bound_id,
                wanted_store=self._store.url,
            )
        logs.directories.bind_store(str(identity.store_id))
        identity.require_shard_count(self._settings.shard_count or None)
        return identity

    def _require_own_shards(self, identity: StoreIdentity) -> None:
        """Raise InvalidConfigError if the store does not have a shard that this server should own."""
        last = max(self._settings.own_shards, default=0)
        if last >= identity.shard_count:
            raise InvalidConfigError(
                "the store does not have this shard; own others, or use the store that has it",
                name="own_shards",
                value=last,
                allowed=f"0 to {identity.shard_count - 1}",
            )

    def _owned(self, shards: Iterable[MetadataLog]) -> list[MetadataLog]:
        own_shards = self._settings.own_shards
        return [metadata for metadata in shards if not own_shards or metadata.shard in own_shards]

    def _foreign(self, shards: Iterable[MetadataLog]) -> list[ForeignShard]:
        own_shards = self._settings.own_shards
        return [
            ForeignShard(metadata) for metadata in shards if own_shards and metadata.shard not in own_shards
        ]

    def _open_metadata(
        self, logs: LogManager, identity: StoreIdentity, threads: Executor
    ) -> tuple[Catalog, list[MetadataLog]]:
        """Open the catalog and the metadata logs of the shards, which use `threads` for requests. Raises
        DataDirectoryError, StoreError, and InvalidConfigError if a shard to own is not there."""
        witness = HeadWitness(logs.filesystem, logs.data_dirs)
        writer = Writer("owner", self._owner)
        deadline_s = self._settings.metadata_request_ms / 1000
        actor = StoreActor(
            store=TimedObjectStore(self._store, self._clock, self._run_request, deadline_s),
            clock=self._clock,
            random_source=self._random,
            ids=self._ids,
            identity=identity,
            writer=writer,
            loader=PageLoader(
                self._settings.metadata_cache_bytes, partial(run_together, threads), self._page_disk
            ),
        )
        self._require_own_shards(identity)
        catalog = Catalog.open(actor, witness=witness.of_catalog)
        shards = [
            MetadataLog.open(
                actor,
                number,
                partial(read_directory, self._store, StoreLayout(number)),
                witness=witness.of_shard(number, catalog),
            )
            for number in range(identity.shard_count)
        ]
        return catalog, shards

    def _assemble(
        self,
        opened: OpenedStore,
        tiers: Sequence[ShardTier],
        foreign: Sequence[ForeignShard],
        host: PartitionHost,
        opening: Callable[[str, int], Executor],
    ) -> StorageEngine:
        logs, _, catalog, runtime, _ = opened
        shards = ShardSet([tier.shard for tier in tiers], foreign)
        space = _free_space(opened)
        opener = self._opener(opened, shards, self._hosting(host, catalog, tiers, space), opening)
        topics = TopicManager(
            clock=self._clock,
            ids=self._ids,
            catalog=catalog,
            shards=shards,
            host=TopicHost(logs, shards, self._registry, opener, runtime),
            settings=self._settings,
            runtime=runtime,
        )
        confirmed = ConfirmedTopics(self._clock, topics)
        cleaning = LocalCleaning(
            clock=self._clock,
            scheduler=self._seams.long_scheduler,
            ids=self._ids,
            logs=logs,
            shards=shards,
            confirmed=confirmed,
            config=runtime.current,
        )
        operations = OperationRegistry(self._clock, self._seams.long_scheduler, self._ids, self._seams.stop)
        directories = DirectoryAdmin(operations, logs, self._registry, runtime)
        for reconfigurable in (directories, cleaning, space):
            runtime.add(reconfigurable)
        workers, rounds = cleaning.workers, self._local_rounds
        local_retention = LocalRetention(self._registry, logs, workers, confirmed, tiers, rounds)
        manager = self._manager(opened, tiers, topics, foreign)
        self._passes.add(PASS_NAME, lambda: commit_backlog(manager.commits), is_frequent=True)
        return StorageEngine(
            local=LocalLogs(
                logs=logs,
                directories=directories,
                cleaning=cleaning,
                retention=local_retention,
                rounds=rounds,
                pressure=self._pressure(opened, space, tiers),
                disk_calls=opened.disk_calls,
            ),
            tier=self._object_tier(opened, shards, tiers, manager, local_retention, operations),
            topics=self._hosted_topics(catalog, shards, runtime, topics),
            operations=operations,
            passes=self._passes,
            seen_heads=self._note_heads(logs, tiers),
        )

    def _opener(
        self, opened: OpenedStore, shards: ShardSet, host: Host, opening: Callable[[str, int], Executor]
    ) -> PartitionOpener:
        runtime = opened.runtime
        return PartitionOpener(
            self._clock,
            shards,
            opened.logs,
            host,
            lambda directory: opening(directory, runtime.current.recovery_thread_count),
            self._run_request,
            START_PATIENCE_S,
        )

    def _pressure(self, opened: OpenedStore, space: FreeSpace, tiers: Sequence[ShardTier]) -> DiskPressure:
        cache = YieldCache(self._data_dir, self._yield_cache)
        return DiskPressure(self._registry, space, opened.logs.removals, tiers, cache, opened.disk_calls)

    def _manager(
        self,
        opened: OpenedStore,
        tiers: Sequence[ShardTier],
        topics: TopicManager,
        foreign: Sequence[ForeignShard],
    ) -> TierManager:
        waits = TierWaits(self._rounds, opened.disk_calls)
        return TierManager(self._clock, opened.catalog, tiers, self._registry, topics, waits, foreign)

    def _object_tier(
        self,
        opened: OpenedStore,
        shards: ShardSet,
        tiers: Sequence[ShardTier],
        manager: TierManager,
        local_retention: LocalRetention,
        operations: OperationRegistry,
    ) -> ObjectTier:
        return ObjectTier(
            store=self._store,
            identity=opened.identity,
            shards=shards,
            manager=manager,
            compaction=TierCompaction(tiers, self._registry, self._rounds, operations),
            retention=TierRetention(self._registry, manager, local_retention, opened.disk_calls),
            upkeep=TierUpkeep(
                tiers=tuple(tiers),
                shards=shards,
                catalog=opened.catalog,
                registry=self._registry,
                verifications=VerificationLog(self._clock),
                reads=self._reads,
                store_remarks=tuple(self._look_at_store()),
            ),
        )

    def _note_heads(self, logs: LogManager, tiers: Sequence[ShardTier]) -> SeenHeads:
        """Note the heads with the new claims, and return what notes later ones."""
        owned = [] if self._settings.read_only else [tier.shard.metadata for tier in tiers]
        seen_heads = SeenHeads(logs.filesystem, owned)
        for directory in online_directories(logs):
            seen_heads.try_note(directory)
        return seen_heads

    def _look_at_store(self) -> Sequence[str]:
        """Log the store's remarks, and return them."""
        remarks = self._store.remarks()
        for remark in remarks:
            logger.warning("store `%s`: %s", self._store.url, remark)
        return remarks

    def _yield_cache(self, wanted_bytes: int) -> int:
        """Let the caches on disk give so many bytes back, that of data first; returns how many they had."""
        freed_bytes, least_bytes = 0, min(wanted_bytes, 1)
        for cache in (self._disk_cache, self._page_disk):
            freed_bytes += cache.yield_space(max(wanted_bytes - freed_bytes, least_bytes))
        return freed_bytes

    def _hosted_topics(
        self, catalog: Catalog, shards: ShardSet, runtime: RuntimeConfig, manager: TopicManager
    ) -> HostedTopics:
        return HostedTopics(
            catalog=catalog,
            runtime=runtime,
            manager=manager,
            registry=self._registry,
            producer_ids=ProducerIds(catalog, shards),
            fencing=PartitionFencing(catalog, shards),
            copy_lag=CopyLag(self._registry),
        )

    def _hosting(
        self, host: PartitionHost, catalog: Catalog, tiers: Sequence[ShardTier], space: FreeSpace
    ) -> Host:
        """Makes the hosted partitions of logs, with readers of their shards and the tokens of the catalog."""
        by_shard = {tier.shard: tier for tier in tiers}

        def hosted(log: UnifiedLog, shard: HostedShard) -> HostedPartition:
            fencing_token = partial(catalog.fencing_token, log.topic_id, log.topic_partition.partition)
            tier = by_shard[shard]
            partition = host.host(log, shard, tier.reader, fencing_token, space.ensure_room)
            tier.uploads.tails.follow(partition)
            return partition

        return hosted

    def _claim_shards(
        self, opened: OpenedStore, shards: Sequence[MetadataLog], on_fenced: Callable[[], None]
    ) -> list[HostedShard]:
        """Claim the shards; a read-only server follows them. Raises DataDirectoryError, StoreError."""
        if self._settings.read_only:
            return [FollowedShard(self._clock, metadata) for metadata in shards]
        logs = opened.logs
        # All of them first: while one is refused, nothing is written to any.
        require_newest_heads(logs.filesystem, online_directories(logs), opened.catalog, shards)
        local_epochs = _highest_epochs(logs, opened.identity.shard_count)
        claimed_shards: list[HostedShard] = []
        faults = ContactFaults.none()
        for metadata in shards:
            number = metadata.shard
            claimed = claim_shard(
                logs.filesystem,
                self._ids,
                metadata,
                logs.data_dirs,
                shard=number,
                owner=self._owner,
                at_least=local_epochs.get(number, -1) + 1,
                endpoint=self._endpoint,
            )
            silence_ms = self._settings.max_silence_ms
            claimed_shards.append(HostedShard(self._clock, metadata, claimed, on_fenced, silence_ms, faults))
        return claimed_shards


def _run_on_disk(
    opening: Callable[[str, int], Executor], partition: HostedPartition, task: Callable[[], None]
) -> None:
    """Run a task on a thread of the partition's log directory, so that no disk waits for another. Raises
    StoppingError."""
    directory = partition.log.local_log.log_dir
    begin(flush_threads(opening, directory), task)


def _free_space(opened: OpenedStore) -> FreeSpace:
    """The free space of the log directories, with a first look at it."""
    logs = opened.logs
    space = FreeSpace(
        logs.filesystem, lambda: online_directories(logs), opened.runtime.current, opened.disk_calls
    )
    space.look()
    return space


def _require_a_disk(logs: LogManager) -> None:
    """Check that a log directory is still online. Raises DataDirectoryError if the last log directory failed
    while logs were opened."""
    found = logs.directories.statuses()
    if all(directory.state is DirectoryState.OFFLINE for directory in found):
        raise DataDirectoryError(
            "every log directory has failed, so there is nothing to serve; repair a disk and start again",
            log_dirs=", ".join(directory.path for directory in found),
            reason=found[0].reason,
        )


def _require_no_logs(logs: LogManager) -> None:
    """Check that no local log is here, because a read-only server neither serves nor keeps them. Raises
    DataDirectoryError."""
    found = next(iter(logs.found.with_topics()), None)
    if found is not None:
        raise DataDirectoryError(
            "a read-only server needs an empty data directory, and this one has local logs; name another",
            path=logs.data_dirs[0],
            topic_partition=found[0],
        )


def _highest_epochs(logs: LogManager, shard_count: int) -> dict[int, int]:
    """The highest leader epoch of the local logs, by shard. Appends have that epoch or a higher one."""
    highest: dict[int, int] = {}
    for tip, epoch in logs.found.epochs():
        shard = shard_of(tip, shard_count)
        highest[shard] = max(epoch, highest.get(shard, epoch))
    return highest
