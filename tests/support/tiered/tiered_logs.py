"""The storage of a server without the server: local logs, the shard that it owns, uploads and retention by
hand.

Nothing runs by itself. A second instance over the same file system and store is the server after a restart;
over another file system it is another machine.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from stratalog.base.clock import Clock
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import CommitSettings, StoreActor
from stratalog.remote.metadata.ownership.ownership import ReconciledLog, claim_shard, reconcile_log
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.objects.object_writer import ObjectWriterSettings
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from stratalog.remote.tier.log_restore import restore_log
from stratalog.remote.tier.object_builder import ObjectBuilder
from stratalog.remote.tier.partition_upload import UploadCandidate
from stratalog.remote.tier.tier_drop import DropReport, LeavingLogs, TierDrop
from stratalog.remote.tier.upload_budget import UploadBudget
from stratalog.remote.tier.upload_report import UploadReport
from stratalog.remote.tier.upload_turns import UploadTurns
from stratalog.remote.tier.uploader import UploadedShard, Uploader
from stratalog.remote.tier.uploader_settings import UploaderSettings
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from tests.support.decoded_records import decode_all
from tests.support.tiered.inline_reads import inline_reads


class UploadThreads(Clock, Protocol):
    """The other threads of an uploader, and the clock by which it waits for them."""

    def run_beside(self, task: Callable[[], None]) -> object: ...


class UploaderFactory(Protocol):
    """Makes an uploader."""

    def __call__(self, spool_directory: str, *, is_of_tails: bool) -> Uploader: ...


class TieredLogs:
    """Tiered logs of one server. Not thread-safe: one test uses it."""

    def __init__(
        self,
        filesystem: FileSystem,
        store: ObjectStore,
        clock: ManualClock,
        ids: IdGenerator,
        *,
        owner: str = "owner",
        max_object_bytes: int = 1 << 20,
        read_bytes: int = 1 << 20,
        memory_bytes: int = 64 << 20,
        index_interval_bytes: int = 100,
        commit_settings: CommitSettings | None = None,
        stop: StopSignal | None = None,
        sends: UploadThreads | None = None,
        uploader_settings: Mapping[str, Any] | None = None,
        tail_bytes: int = 0,
    ) -> None:
        """`stop` ends the work of the uploader; `sends` and `uploader_settings` are for it."""
        self.store = store
        self.clock = clock
        identity = StoreIdentity.open_or_create(store, ids)
        actor = StoreActor(
            store=store,
            clock=clock,
            random_source=random.Random(0),
            ids=ids,
            identity=identity,
            writer=Writer("owner", owner),
        )
        self.catalog = Catalog.open(actor)
        load = partial(read_directory, store, StoreLayout(0))
        self.metadata = MetadataLog.open(actor, 0, load, settings=commit_settings)
        in_data = LogManagerSettings(data_dirs=("/data",), tail_bytes=tail_bytes)
        self.scheduler = ManualScheduler(clock)
        self.manager = LogManager.open(filesystem, clock, self.scheduler, ids, in_data)
        self.claimed = claim_shard(filesystem, ids, self.metadata, ("/data",), shard=0, owner=owner)
        self.turns = UploadTurns(sends or clock)
        settings = UploaderSettings(
            max_object_bytes=max_object_bytes, read_bytes=read_bytes, **(uploader_settings or {})
        )
        spool = ObjectWriterSettings(
            spool_directory="/", memory_bytes=memory_bytes, index_interval_bytes=index_interval_bytes
        )
        uploader = self._uploaders(filesystem, spool, stop or StopSignal(), sends, settings)
        self.uploader = uploader("/spool", is_of_tails=False)
        self.tails = uploader("/spool-of-tails", is_of_tails=True)
        self.tier_drop = TierDrop(self.metadata, self.turns)
        self.reader = RemoteReader(inline_reads(store), self.metadata)
        self.logs: dict[TopicPartition, UnifiedLog] = {}

    def _uploaders(
        self,
        filesystem: FileSystem,
        spool: ObjectWriterSettings,
        stop: StopSignal,
        sends: UploadThreads | None,
        settings: UploaderSettings,
    ) -> UploaderFactory:
        """Makes the uploaders of segments and of tails, which share a budget."""
        budget = UploadBudget(sends or self.clock)
        budget_of_tails = UploadBudget(sends or self.clock, payer=budget)

        def uploader(spool_directory: str, *, is_of_tails: bool) -> Uploader:
            return Uploader(
                StoppableObjectStore(self.store, stop),
                sends or self.clock,
                sends.run_beside if sends else lambda task: task(),
                stop,
                UploadedShard(
                    self.metadata,
                    self.turns,
                    budget_of_tails if is_of_tails else budget,
                    has_precedence=is_of_tails,
                ),
                ObjectBuilder(
                    filesystem,
                    self.metadata,
                    dataclasses.replace(spool, spool_directory=spool_directory),
                ),
                lambda: settings,
            )

        return uploader

    def create_topic(
        self, name: str, partition_count: int, config: Mapping[str, str] | None = None
    ) -> TopicEntry:
        """Create a topic and open its logs."""
        topic = self.catalog.create(name, partition_count, config or {})
        self.open_topic(topic)
        return topic

    def open_topic(self, topic: TopicEntry) -> dict[TopicPartition, ReconciledLog]:
        """Open a topic's logs and compare them with the store."""
        config = LogConfig.from_overrides(topic.config)
        found: dict[TopicPartition, ReconciledLog] = {}
        for partition in range(topic.partition_count):
            name = TopicPartition(topic.name, partition)
            log = self.manager.open_log(name, topic.topic_id, config)
            found[name] = reconcile_log(self.manager, log, self.metadata, self.claimed)
            self.logs[name] = found[name].log
            restore_log(self.logs[name], self.reader)
        return found

    def append(self, log: UnifiedLog, records: Sequence[Record]) -> list[Record]:
        """Append a batch; returns the records with their offsets."""
        info = log.appender.append_as_leader(encode_batch(records), self.claimed.epoch)
        return [record._replace(offset=info.base_offset + number) for number, record in enumerate(records)]

    def seal(self) -> None:
        """Roll and flush every log, so that all of it may be uploaded."""
        for log in self.logs.values():
            log.roll()
            log.flusher.flush()

    def upload(
        self, *, is_urgent: bool = True, on_object: Callable[[UploadReport], None] = lambda _: None
    ) -> UploadReport:
        """One pass over all logs."""
        candidates = [self.candidate(log) for log in self.logs.values()]
        return self.uploader.upload(
            candidates, epoch=self.claimed.epoch, on_object=on_object, is_urgent=is_urgent
        )

    def upload_tails(self) -> UploadReport:
        """One pass over all that is fsynced."""
        candidates = [self.candidate(log)._replace(is_tail=True) for log in self.logs.values()]
        return self.tails.upload(candidates, epoch=self.claimed.epoch)

    def drop_tiers(self) -> DropReport:
        """Drop the tiers of all logs, as the newest catalog says."""
        return self.tier_drop.run(
            lambda: LeavingLogs(self.catalog.refresh().seq, list(self.logs.values())),
            leader_epoch=lambda: self.claimed.epoch,
        )

    def keep_tiers(self) -> None:
        """Let logs whose tiers were not dropped take up what is left of them."""
        self.tier_drop.run(lambda: LeavingLogs(0, ()), leader_epoch=lambda: self.claimed.epoch)

    def candidate(self, log: UnifiedLog) -> UploadCandidate:
        topic = self.catalog.by_id(log.topic_id)
        assert topic is not None
        config = log.local_log.config
        hashing = KeyHashing(topic.hash_key, config.version_rule)
        return UploadCandidate(log, hashing if config.is_compacted else None)

    def tiered_records(self, log: UnifiedLog) -> list[Record]:
        """Everything that a reader gets from the object store alone."""
        tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)
        partition = self.metadata.refresh().partition(tip)
        offset = partition.log_start_offset
        found: list[Record] = []
        while offset < partition.tiered_end_offset:
            data = self.reader.read(tip, offset, 1 << 20)
            found += [record for record in decode_all(data.batches) if record.offset >= offset]
            offset = data.next_offset
        return found

    def close(self) -> None:
        """Stop as a server stops that was asked to."""
        self.manager.close()
