"""Builds the components that work on the objects of one shard: uploads, retention, compaction, collection,
reads and verification.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from stratalog.base.stop_signal import StopSignal
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import (
    Compactor,
    CompactorConfig,
    CompactorScratch,
    ExecutionElsewhere,
)
from stratalog.compaction.job_execution import CompactedShard
from stratalog.compaction.tier_verification import TierVerification
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.log_manager import LogManager
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.page_loader import RunAll
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.object_writer import ObjectWriterSettings
from stratalog.remote.objects.scratch_disk import ScratchDisk
from stratalog.remote.objects.spool_memory import SpoolMemory
from stratalog.remote.read.object_reads import ObjectReads
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.remote.retention.remote_retention import RemoteRetention
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.tier.collector import Collector, CollectorSettings
from stratalog.remote.tier.object_builder import ObjectBuilder
from stratalog.remote.tier.tier_drop import TierDrop
from stratalog.remote.tier.upload_budget import UploadBudget
from stratalog.remote.tier.upload_turns import UploadTurns
from stratalog.remote.tier.uploader import UploadedShard, Uploader
from stratalog.remote.tier.uploader_settings import UploaderSettings
from stratalog.server.background.pass_registry import PassRegistry
from stratalog.server.background.shard_tier import ShardTier, ShardUploads
from stratalog.server.background.tail_commits import (
    CommitThreads,
    RunOnDisk,
    TailCommits,
)
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.engine.component_settings import (
    UPLOAD_MEMORY_BYTES,
    commit_settings,
    compaction_settings,
    tail_settings,
    uploader_settings,
)
from stratalog.server.engine.storage_engine import EngineSeams
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.patient_disk_calls import PatientDiskCalls
from stratalog.server.partitions.scratch_filesystem import ScratchFileSystem
from stratalog.server.partitions.scratch_space import ScratchSpace


class OpenedStore(NamedTuple):
    """The parts of an engine that are open before a shard is claimed."""

    logs: LogManager
    identity: StoreIdentity
    catalog: Catalog
    runtime: RuntimeConfig
    disk_calls: PatientDiskCalls
    """Waits for the disks of the log directories."""


class TierBuilder:
    """Builds the tiers of an engine, a shard at a time. Belongs to the thread that opens the engine."""

    def __init__(
        self,
        seams: EngineSeams,
        settings: ServerSettings,
        opened: OpenedStore,
        reads: ObjectReads,
        passes: PassRegistry,
        run_on_disk: RunOnDisk,
        run_verifications: RunAll,
    ) -> None:
        """`reads`: of all shards. `run_on_disk` runs the fsyncs of waiting tails, and `run_verifications` the
        reads of a verification, several at once each."""
        self._seams = seams
        self._store = seams.store
        self._clock = seams.clock
        self._ids = seams.ids
        self._settings = settings
        self._data_dir = os.path.abspath(settings.data_dir)
        self._opened = opened
        self._reads = reads
        self._passes = passes
        self._run_on_disk = run_on_disk
        self._run_verifications = run_verifications
        self._memory = SpoolMemory(UPLOAD_MEMORY_BYTES)
        self._tail_memory = SpoolMemory(UPLOAD_MEMORY_BYTES)
        logs = opened.logs
        self._scratch_files = ScratchFileSystem(logs.filesystem, logs.data_dirs, opened.disk_calls)
        self._disk = ScratchDisk(self._scratch_files)
        self._budget = UploadBudget(seams.clock)
        self._tail_budget = UploadBudget(seams.clock, payer=self._budget)

    def tier(
        self, shard: HostedShard, execution_elsewhere: ExecutionElsewhere | None, shard_count: int
    ) -> ShardTier:
        """The components that work on the objects of the shard, one of so many. `execution_elsewhere`
        executes its jobs of compaction, which the threads that ask for them do without."""
        logs, identity, catalog, runtime, _ = self._opened
        reader = RemoteReader(self._reads, shard.metadata)
        number = f"{shard.metadata.layout.shard:04d}"
        scratch = ScratchSpace(self._scratch_files, lambda: online_directories(logs))
        in_data_dir = f"{self._data_dir}/scratch/{number}"
        store = StoppableObjectStore(self._store, self._seams.stop)

        def renewed(before: CompactionSettings) -> CompactionSettings:
            settings = compaction_settings(runtime.current, before.spool_directory)
            return dataclasses.replace(settings, shard_count=shard_count)

        compactor = Compactor(
            filesystem=self._scratch_files,
            clock=self._clock,
            ids=self._ids,
            shard=CompactedShard(store, identity.store_id, shard.metadata, catalog),
            settings=CompactionSettings(spool_directory=f"{in_data_dir}/compaction"),
            config=CompactorConfig(
                topic_defaults=runtime.topic_defaults_under,
                renewed=renewed,
                scratch=CompactorScratch(lambda: scratch.place(f"{number}/compaction"), self._disk),
                stop=self._seams.stop,
                exclusions_path=f"{self._data_dir}/scratch/{number}/exclusions.json",
                execution_elsewhere=execution_elsewhere,
            ),
        )
        return ShardTier(
            shard=shard,
            uploads=self._uploads(shard),
            retention=RemoteRetention(
                shard.metadata,
                partial(read_slice_index, store, shard.metadata.layout),
                self._opened.disk_calls,
            ),
            # The catalog's own files are one collector's work, whatever the number of shards.
            collector=Collector(
                store,
                shard.metadata,
                catalog if shard.metadata.layout.shard == 0 else None,
                CollectorSettings(history_ms=self._settings.history_ms),
            ),
            compactor=compactor,
            reader=reader,
            verification=TierVerification(store, shard.metadata, catalog, self._run_verifications),
        )

    def _uploads(self, shard: HostedShard) -> ShardUploads:
        logs, catalog, runtime = self._opened.logs, self._opened.catalog, self._opened.runtime
        number = f"{shard.metadata.layout.shard:04d}"
        scratch = ScratchSpace(self._scratch_files, lambda: online_directories(logs))
        # A server that stops still commits what callers wait for.
        stop_of_tails = StopSignal()
        turns = UploadTurns(self._clock)

        def uploader(
            name: str, settings: Callable[[BrokerConfig], UploaderSettings], stop: StopSignal
        ) -> Uploader:
            is_of_tails = name == "tail"
            return Uploader(
                store=StoppableObjectStore(self._store, stop),
                clock=self._clock,
                run_beside=partial(self._seams.long_scheduler.once, "send an object"),
                stop=stop,
                shard=UploadedShard(
                    shard.metadata,
                    turns,
                    self._tail_budget if is_of_tails else self._budget,
                    has_precedence=is_of_tails,
                    disk=self._opened.disk_calls,
                ),
                builder=ObjectBuilder(
                    self._scratch_files,
                    shard.metadata,
                    ObjectWriterSettings(spool_directory=f"{self._data_dir}/scratch/{number}/{name}"),
                    spool_directory=lambda place: scratch.place(f"{number}/{name}-{place}"),
                    memory=self._tail_memory if is_of_tails else self._memory,
                    disk=self._disk,
                ),
                settings=lambda: settings(runtime.current),
            )

        tails = TailCommits(
            self._clock,
            CommitThreads(self._seams.long_scheduler, self._run_on_disk, stop_of_tails),
            shard,
            catalog,
            uploader("tail", tail_settings, stop_of_tails),
            self._passes,
            lambda: commit_settings(runtime.current),
        )
        segments = uploader("upload", uploader_settings, self._seams.stop)
        return ShardUploads(segments, tails, TierDrop(shard.metadata, turns))


def online_directories(logs: LogManager) -> list[str]:
    """The log directories that work."""
    return [one.path for one in logs.directories.statuses() if one.state is not DirectoryState.OFFLINE]
