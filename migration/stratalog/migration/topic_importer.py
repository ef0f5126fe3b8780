"""Imports the topics of a stopped broker's log directories into a store and a data directory.

The import takes the lock of the data directory, so no server may run on it. In this order:

1. Lock the broker's directories, plan, lock the data directory. Refusals happen here or in 2 and change
   nothing: a data directory that was created for the import is removed.
2. Stage the logs and open them (see `import_staging`). Then open the store, or create it.
3. Claim the shards of the topics, with epochs above all of the broker's. As with the start of a server, a
   former owner is fenced from here on.
4. Place the logs, marked with the epoch.
5. Move log starts in the shards to where the logs begin: a partition that a shard does not know begins at
   0.
6. Create the topics in the catalog, with their own ids. This is the commit of each topic. It also takes
   all producer ids up to the largest one of the topic's records, so that no new producer meets the state of
   a broker's.

A crash before 6 leaves files that the next import removes, and log starts of unknown topics in the shards. A
crash in the middle of 6 leaves the first topics whole and the others out; the same import again passes over
the former (see `import_plan`) and brings the latter. A failure or an interrupt before 4 leaves no copies.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    DataDirectoryError,
    InvalidRequestError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TopicAlreadyExistsError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.locked_directory import LockedDirectory, sibling_paths
from stratalog.manager.directories.manifest import PartitionEntry, parse_partition_name, read_manifest
from stratalog.manager.directories.partition_metadata import read_partition_metadata
from stratalog.migration.import_plan import ImportPlan, ImportTarget, PresentPartition, plan_import
from stratalog.migration.import_staging import ImportStaging, StagedLog
from stratalog.migration.kafka_log_directory import SourceTopic
from stratalog.migration.stopped_broker import StoppedBroker
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.catalog_bounds import DEFAULT_BOUNDS, CatalogBounds
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.ownership.head_witness import HeadWitness, catalog_as_witness
from stratalog.remote.metadata.ownership.ownership import claim_shard
from stratalog.remote.metadata.ownership.seen_heads import SeenHeads, require_newest_heads
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import IDENTITY_KEY, StoreLayout, shard_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSettings:
    """Settings of an import. Immutable. Paths are absolute."""

    log_dirs: tuple[str, ...]
    """All log directories of the broker."""
    data_dir: str
    topics: tuple[str, ...] = ()
    """Empty for all topics except Kafka's own."""
    config: Mapping[str, str]
    """Configuration of every imported topic; a broker's log directory has none."""
    allows_missing_checkpoints: bool = False
    """Also import partitions that are missing in the checkpoints beside them; their deleted records may be
    back."""
    shares_files: bool = True
    """Link finished files instead of copying them."""
    owner: str
    """The owner that the import writes into the store's metadata."""
    bounds: CatalogBounds = DEFAULT_BOUNDS
    """The most topics and partitions that the store may have with those of the import."""


class ImportedPartition(NamedTuple):
    """The result of a partition."""

    topic_partition: TopicPartition
    log: StagedLog
    high_watermark: int | None
    """The broker's."""

    @property
    def uncertain_count(self) -> int:
        """Offsets above the broker's high watermark, which other brokers may not have."""
        return 0 if self.high_watermark is None else max(0, self.log.log_end_offset - self.high_watermark)

    @property
    def missing_count(self) -> int:
        """Offsets below the broker's high watermark that its files lack."""
        return 0 if self.high_watermark is None else max(0, self.high_watermark - self.log.log_end_offset)


class ImportedTopic(NamedTuple):
    """The result of a topic."""

    name: str
    topic_id: UUID
    partitions: tuple[ImportedPartition, ...]


class ImportReport(NamedTuple):
    """The result of an import."""

    plan: ImportPlan
    topics: tuple[ImportedTopic, ...]


class TopicImporter:
    """Imports the topics of a broker's log directories. One use; belongs to one thread."""

    def __init__(
        self,
        filesystem: FileSystem,
        store: ObjectStore,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        random_source: random.Random,
        settings: ImportSettings,
    ) -> None:
        """Check that the directories lie apart. Raises InvalidRequestError if one directory lies in
        another."""
        for log_dir in settings.log_dirs:
            _require_apart(log_dir, settings.data_dir)
        self._filesystem = filesystem
        self._store = store
        self._clock = clock
        self._scheduler = scheduler
        self._ids = ids
        self._random = random_source
        self._settings = settings
        self._writer = Writer("import", settings.owner)

    def plan(self) -> ImportPlan:
        """The plan of `run`. Changes and creates nothing, and locks only the broker's directories.

        Raises what `plan_import` raises, DataDirectoryInUseError if the broker runs, StoreError.
        """
        with self._disk_errors(), ExitStack() as undo:
            source = self._lock_source(undo)
            return self._plan(source, self._read_target())

    def run(self, on_opened: Callable[[TopicPartition], None] = lambda _: None) -> ImportReport:
        """Import; calls `on_opened` with each partition whose log has been opened.

        Raises what `plan` raises, with nothing imported; DataDirectoryError, NotOwnerError, StoreError if it
        could not finish: repeat it then.
        """
        settings = self._settings
        with self._disk_errors(), ExitStack() as undo:
            source = self._lock_source(undo)
            # Refuse what the plan refuses before anything is created.
            self._plan(source, self._read_target())
            made = self._missing_directories()
            directory = LockedDirectory(self._filesystem, settings.data_dir, self._ids.uuid())
            undo.callback(directory.release)
            staging = ImportStaging(
                self._filesystem,
                self._clock,
                self._scheduler,
                self._ids,
                directory,
                shares_files=settings.shares_files,
            )
            # Remove the copies however the import ends, because they take much space; placed ones stay.
            undo.callback(staging.discard)
            try:
                self._require_store(directory)
                plan = self._plan(source, self._read_target())
                if not plan.topics:
                    # An earlier import has brought all of them, or a killed one has begun to.
                    staging.remove_unfinished()
                    return ImportReport(plan, ())
                topics = [_with_id(topic, self._ids) for topic in plan.topics]
                staging.stage(topics)
                staged = staging.open(LogConfig.from_overrides(plan.config), on_opened)
                catalog, shards = self._open_store(directory)
            except BaseException:
                self._discard_directories(made)
                raise
            staging.remove_leftovers(plan.leftovers)
            self._commit(plan, topics, staged, staging, catalog, shards)
            return ImportReport(plan, tuple(_imported(topic, staged) for topic in topics))

    def _require_store(self, directory: LockedDirectory) -> None:
        """Check that the store is the data directory's and usable, without creating one."""
        identity = StoreIdentity.find(self._store)
        if directory.bound_store_id is not None:
            directory.bind_store("none yet" if identity is None else str(identity.store_id))
        if identity is not None:
            require_conditional_writes(self._store, self._ids)

    def _open_store(self, directory: LockedDirectory) -> tuple[Catalog, list[MetadataLog]]:
        """Open everything that an import writes to, or create it."""
        identity = StoreIdentity.open_or_create(self._store, self._ids)
        require_conditional_writes(self._store, self._ids)
        directory.bind_store(str(identity.store_id))
        witness = HeadWitness(self._filesystem, (self._settings.data_dir,))
        catalog = self._open_catalog(identity, witness.of_catalog)
        shards = [
            self._open_shard(identity, shard, witness.of_shard(shard, catalog))
            for shard in range(identity.shard_count)
        ]
        require_newest_heads(self._filesystem, (self._settings.data_dir,), catalog, shards)
        return catalog, shards

    def _lock_source(self, undo: ExitStack) -> StoppedBroker:
        source = StoppedBroker(
            self._filesystem,
            self._settings.log_dirs,
            allows_missing_checkpoints=self._settings.allows_missing_checkpoints,
        )
        undo.callback(source.release)
        return source

    def _missing_directories(self) -> list[str]:
        """The data directory and its parents that this import will create, innermost first."""
        missing, path = list[str](), self._settings.data_dir
        while not self._filesystem.exists(path):
            missing.append(path)
            path = posixpath.dirname(path)
        return missing

    def _discard_directories(self, made: Sequence[str]) -> None:
        """Remove the directories that this import created and that are still empty. The data directory goes
        with its contents, because its lock is held."""
        try:
            for path in made:
                if path == self._settings.data_dir or not self._filesystem.list_directory(path):
                    self._filesystem.remove_tree(path)
        except OSError:
            pass

    @contextmanager
    def _disk_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as failure:
            raise DataDirectoryError(
                "a file cannot be read or written; repair the disk and import again",
                path=failure.filename2 or failure.filename or self._settings.data_dir,
                reason=failure.strerror or str(failure),
            ) from failure

    def _commit(
        self,
        plan: ImportPlan,
        topics: list[SourceTopic],
        staged: Mapping[TopicPartition, StagedLog],
        staging: ImportStaging,
        catalog: Catalog,
        shards: list[MetadataLog],
    ) -> None:
        logs_by_shard: dict[int, dict[TopicIdPartition, StagedLog]] = {}
        epochs: dict[TopicPartition, int] = {}
        names: dict[TopicIdPartition, TopicPartition] = {}
        for topic in topics:
            for tip, name in _partitions(topic):
                assert tip not in names, "the plan has refused topics of one id"
                names[tip] = name
                logs_by_shard.setdefault(shard_of(tip, len(shards)), {})[tip] = staged[name]
        claimed: dict[int, int] = {}
        for shard, logs in sorted(logs_by_shard.items()):
            claimed[shard] = self._claim(
                shards[shard], shard, at_least=1 + max(log.latest_epoch for log in logs.values())
            )
            epochs |= {names[tip]: claimed[shard] for tip in logs}
        SeenHeads(self._filesystem, [shards[shard] for shard in claimed]).try_note(self._settings.data_dir)
        staging.place(epochs)
        if LogConfig.from_overrides(plan.config).remote_storage_enable:
            for shard, logs in sorted(logs_by_shard.items()):
                starts = {tip: log.log_start_offset for tip, log in logs.items()}
                shards[shard].advance_log_start(starts, epoch=claimed[shard], catalog_seq=None)
                _require_starts(shards[shard].state(), starts)
        for topic in topics:
            max_producer_id = max(staged[one.topic_partition].max_producer_id for one in topic.partitions)
            self._create(catalog, topic, plan.config, max_producer_id + 1)

    def _claim(self, metadata: MetadataLog, shard: int, *, at_least: int) -> int:
        """Claim a shard for the data directory; returns the epoch."""
        return claim_shard(
            self._filesystem,
            self._ids,
            metadata,
            (self._settings.data_dir,),
            shard=shard,
            owner=self._settings.owner,
            at_least=at_least,
        ).epoch

    def _create(
        self, catalog: Catalog, topic: SourceTopic, config: Mapping[str, str], next_producer_id: int
    ) -> None:
        """Create a topic; its id makes another try safe after an unknown outcome."""
        create = partial(
            catalog.create,
            topic.name,
            len(topic.partitions),
            config,
            topic_id=topic.topic_id,
            next_producer_id=next_producer_id,
        )
        try:
            create()
        except StoreUnavailableError:
            create()

    def _plan(self, source: StoppedBroker, target: ImportTarget) -> ImportPlan:
        settings = self._settings
        return plan_import(source, settings.topics, settings.config, target, settings.bounds)

    def _read_target(self) -> ImportTarget:
        """Read the store for a plan, without creating anything."""
        try:
            self._store.get(IDENTITY_KEY)
        except ObjectNotFoundError:
            return ImportTarget(CatalogState(), [ShardState()], self._present())
        identity = StoreIdentity.open(self._store)
        catalog = self._open_catalog(identity, "", read_only=True)
        witness = catalog_as_witness(catalog)
        shards = [
            self._open_shard(identity, shard, witness, read_only=True).state()
            for shard in range(identity.shard_count)
        ]
        return ImportTarget(catalog.state(), shards, self._present())

    def _present(self) -> list[PresentPartition]:
        path = self._settings.data_dir
        if not self._filesystem.exists(path):
            return []
        found = self._present_in(path)
        for other_path in sibling_paths(self._filesystem, path):
            # An import leaves nothing there, so it removes nothing there either.
            found += [present._replace(is_imported=False) for present in self._present_in(other_path)]
        return found

    def _present_in(self, path: str) -> list[PresentPartition]:
        found: list[PresentPartition] = []
        listed: Mapping[TopicPartition, PartitionEntry]
        try:
            listed = read_manifest(self._filesystem, path).partitions
        except FileNotFoundError:
            listed = {}
        for name in self._filesystem.list_directory(path):
            partition = parse_partition_name(name)
            if partition is not None and self._filesystem.is_directory(f"{path}/{name}"):
                found.append(
                    PresentPartition(
                        partition,
                        f"{path}/{name}",
                        read_partition_metadata(self._filesystem, f"{path}/{name}"),
                        partition in listed and listed[partition].import_epoch is not None,
                    )
                )
        return found

    def _open_catalog(self, identity: StoreIdentity, witness: str, *, read_only: bool = False) -> Catalog:
        return Catalog.open(self._actor(identity), read_only=read_only, witness=witness)

    def _open_shard(
        self, identity: StoreIdentity, shard: int, witness: str, *, read_only: bool = False
    ) -> MetadataLog:
        return MetadataLog.open(
            self._actor(identity),
            shard,
            partial(read_directory, self._store, StoreLayout(shard)),
            read_only=read_only,
            witness=witness,
        )

    def _actor(self, identity: StoreIdentity) -> StoreActor:
        return StoreActor(
            store=self._store,
            clock=self._clock,
            random_source=self._random,
            ids=self._ids,
            identity=identity,
            writer=self._writer,
        )


def _require_apart(log_dir: str, data_dir: str) -> None:
    if posixpath.commonpath([log_dir, data_dir]) in (log_dir, data_dir):
        raise InvalidRequestError(
            "the log directory and the data directory must not lie in each other; choose another data"
            " directory",
            log_dir=log_dir,
            data_dir=data_dir,
        )


def _require_starts(state: ShardState, starts: Mapping[TopicIdPartition, int]) -> None:
    """Move the log starts. No other process moves them, because the topic is not in the catalog yet."""
    for tip, offset in starts.items():
        known = state.partition(tip)
        if known.log_start_offset != offset or known.tiered_end_offset != offset:
            raise TopicAlreadyExistsError(
                "the store has another beginning of this partition, from an import of other files; leave the"
                " topic out",
                topic_id=tip.topic_id,
                partition=tip.partition,
                log_start_offset=offset,
                store_log_start_offset=known.log_start_offset,
            )


def _with_id(topic: SourceTopic, ids: IdGenerator) -> SourceTopic:
    return topic if topic.topic_id is not None else topic._replace(topic_id=ids.uuid())


def _partitions(topic: SourceTopic) -> list[tuple[TopicIdPartition, TopicPartition]]:
    assert topic.topic_id is not None
    names = [partition.topic_partition for partition in topic.partitions]
    return [(TopicIdPartition(topic.topic_id, name.partition), name) for name in names]


def _imported(topic: SourceTopic, staged: Mapping[TopicPartition, StagedLog]) -> ImportedTopic:
    assert topic.topic_id is not None
    return ImportedTopic(
        topic.name,
        topic.topic_id,
        tuple(
            ImportedPartition(
                partition.topic_partition, staged[partition.topic_partition], partition.high_watermark
            )
            for partition in topic.partitions
        ),
    )
