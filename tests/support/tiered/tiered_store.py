"""A shard of a store without a server: topics, uploads, compactors and readers, each by itself.

Everything goes the way that a server takes (object files, metadata log, catalog), but a test decides what
lies in which object, and reads back what a reader with all the time in the world would see.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor, CompactorConfig, ExecutionElsewhere
from stratalog.compaction.job_execution import CompactedShard
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.log.log_config import LogConfig
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.batch import batches
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_judge import LostRange
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import LeaderEpoch, SliceEntry
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from tests.support.decoded_records import decode_all


class TieredStore:
    """A store with tiered records. Not thread-safe: one test uses it. Its compactors work on stores of their
    own, which may fail."""

    def __init__(
        self,
        filesystem: FileSystem,
        store: ObjectStore,
        clock: Clock,
        ids: IdGenerator,
        *,
        directory: str = "/tiered",
    ) -> None:
        self.store = store
        self.layout = StoreLayout(0)
        self._filesystem = filesystem
        self._clock = clock
        self._ids = ids
        self._directory = directory
        self._identity = StoreIdentity.open_or_create(store, ids)
        filesystem.make_directories(f"{directory}/uploads")
        self.catalog = self.open_catalog(store, "owner")
        self.metadata = self.open_metadata(store, "owner")
        self._epoch = self.metadata.claim("owner", ids.uuid())
        self.execution_elsewhere: ExecutionElsewhere | None = None
        """Makes the executions of its compactors' jobs."""

    @property
    def store_id(self) -> UUID:
        return self._identity.store_id

    def open_metadata(self, store: ObjectStore, kind: str, clock: Clock | None = None) -> MetadataLog:
        """Another actor's view of the shard, by its own clock if it has one."""
        load_directory = partial(read_directory, store, self.layout)
        return MetadataLog.open(self._actor(store, kind, clock), 0, load_directory)

    def open_catalog(self, store: ObjectStore, kind: str) -> Catalog:
        """Another actor's view of the topics."""
        return Catalog.open(self._actor(store, kind))

    def _actor(self, store: ObjectStore, kind: str, clock: Clock | None = None) -> StoreActor:
        writer = Writer(kind, kind)
        return StoreActor(
            store=store,
            clock=clock or self._clock,
            random_source=random.Random(0),
            ids=self._ids,
            identity=self._identity,
            writer=writer,
        )

    def compactor(
        self,
        store: ObjectStore | None = None,
        change: Callable[[CompactionSettings], CompactionSettings] = lambda settings: settings,
        defaults: Callable[[Mapping[str, str]], LogConfig] = lambda _: LogConfig(),
        run_beside: RunBeside = run_here,
    ) -> Compactor:
        """A compactor that works through `store`, by default this one's."""
        store = store or self.store
        settings = change(CompactionSettings(spool_directory=f"{self._directory}/compaction"))
        return Compactor(
            self._filesystem,
            self._clock,
            self._ids,
            self.shard(store),
            settings,
            CompactorConfig(defaults, execution_elsewhere=self.execution_elsewhere),
            run_beside,
        )

    def shard(self, store: ObjectStore, clock: Clock | None = None) -> CompactedShard:
        """The shard as a compactor sees it through `store`, by its own clock if it has one."""
        metadata = self.open_metadata(store, "compactor", clock)
        catalog = self.open_catalog(store, "compactor")
        return CompactedShard(store, self.store_id, metadata, catalog)

    def upload(
        self,
        slices: Mapping[TopicIdPartition, Sequence[bytes]],
        *,
        end_offsets: Mapping[TopicIdPartition, int] | None = None,
        ends: Mapping[TopicIdPartition, SliceEnd] | None = None,
        with_key_streams: bool = True,
    ) -> str:
        """One object with a slice for each partition, at its tiered end; returns the object's name.

        A slice ends behind its last batch unless `end_offsets` or `ends` says otherwise. Without key streams
        a compacted topic's slices look like those of a topic that was plain when they were uploaded.
        """
        state = self.metadata.refresh()
        topics = {tip.topic_id: self.topic(tip) for tip in slices}
        name = self.metadata.next_object_name()
        header = ObjectHeader(
            store_id=self.store_id, shard=0, epoch=self._epoch, kind=ObjectKind.UPLOAD, name=name
        )
        settings = ObjectWriterSettings(spool_directory=f"{self._directory}/uploads")
        state = self.metadata.refresh()
        with ObjectWriter(self._filesystem, header, settings) as writer:
            for tip in sorted(slices):
                topic = topics[tip.topic_id]
                is_hashed = with_key_streams and "compact" in topic.config.get("cleanup.policy", "delete")
                writer.begin_slice(
                    tip.topic_id,
                    topic.name,
                    tip.partition,
                    base_offset=state.partition(tip).tiered_end_offset,
                    key_hashing=TopicPolicy.of(topic, LogConfig()).hashing if is_hashed else None,
                )
                writer.append(b"".join(slices[tip]))
                end_offset = (end_offsets or {}).get(tip, writer.next_offset)
                end = SliceEnd(end_offset, leader_epochs=_leader_epochs(slices[tip]))
                writer.end_slice((ends or {}).get(tip, end))
            finished = writer.finish()
            finished.store(self.store, self.layout)
        outcome = self.metadata.add([(finished.ref, finished.entries)], self._epoch)
        assert not outcome.refused, outcome.refused
        return name

    def advance_log_start(self, tip: TopicIdPartition, offset: int) -> None:
        """Advance the log start as `DeleteRecords` does."""
        self.metadata.advance_log_start({tip: offset}, epoch=self._epoch, catalog_seq=None)

    def lose(self, lost: LostRange) -> None:
        """Record that a range behind the tiered end never reached the store."""
        outcome = self.metadata.add_gaps([lost], self._epoch)
        assert not outcome.refused, outcome.refused

    def topic(self, tip: TopicIdPartition) -> TopicEntry:
        """The partition's topic."""
        topic = self.catalog.by_id(tip.topic_id)
        assert topic is not None
        return topic

    def partition(self, tip: TopicIdPartition) -> TieredPartition:
        """The partition as the head has it now."""
        return self.metadata.refresh().partition(tip)

    def records(self, tip: TopicIdPartition) -> list[Record]:
        """Every readable record, in the order of the slices."""
        partition = self.partition(tip)
        return [
            record
            for live in partition.slices
            for record in decode_all(self.slice_data(live.object_name, live.entry))
            if max(live.base_offset, partition.log_start_offset) <= record.offset < live.end_offset
        ]

    def slice_data(self, object_name: str, entry: SliceEntry) -> bytes:
        """A slice's bytes."""
        if entry.data_bytes == 0:
            return b""
        key = self.layout.data_key(object_name)
        return self.store.get_range(key, entry.data_position, entry.data_bytes)


def _leader_epochs(run: Sequence[bytes]) -> tuple[LeaderEpoch, ...]:
    """The epochs of the batches, as the log knows them."""
    found: dict[int, int] = {}
    for _, header in batches(b"".join(run)):
        found.setdefault(header.leader_epoch, header.base_offset)
    return tuple(LeaderEpoch(*pair) for pair in sorted(found.items()))
