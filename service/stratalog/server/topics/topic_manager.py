"""Creates, opens and deletes topics: the catalog says which exist, this makes it so on the local disk.

Creating: check, commit to the catalog, open the logs, publish. Deleting: withdraw, commit to the catalog,
drop the partitions from their shards, delete the local logs. A crash in between leaves a topic that is in the
catalog and not yet on disk (its logs are opened at the next start), or one that is marked as deleted with
data left (`drop_leftovers` finishes that, at the next start and with every pass of retention). The catalog
decides, the rest follows.

Anybody may change the catalog: a tool, a former owner that has not noticed yet, or a commit of our own whose
outcome stayed unknown. So `follow_catalog` runs with every look at the heads, and before anything is deleted
by a configuration: the server's configuration is followed, what the catalog says is deleted is withdrawn,
what it has and is not hosted is opened, and the logs of a topic that was altered, or whose defaults were, go
by its new configuration. A topic that it
does not know is kept: absent is not deleted. An owner that was replaced changes nothing: the heads are read
right before the catalog is changed.

What is in the object store stays a part of its topic: one that has slices stays tiered, whatever its
configuration says of `remote.storage.enable`.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping
from itertools import chain, islice
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import (
    DataDirectoryError,
    InvalidConfigError,
    LogStoreError,
    StoreUnavailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.cleaner.log_to_clean import is_cleaned_here
from stratalog.log.log_config import LogConfig
from stratalog.manager.log_manager import LogManager
from stratalog.manager.partitions.stray_partitions import PartitionClaim
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.remote.metadata.catalog.topic_entry import (
    TopicEntry,
    require_partition_count,
    require_topic_name,
)
from stratalog.server.configuration.config_entry import ConfigChange, changed
from stratalog.server.configuration.runtime_config import RuntimeConfig, require_fits
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_opener import PartitionOpener, WantedPartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.rpc.unknown_topic import unknown_topic

logger = logging.getLogger(__name__)


class FollowedCatalog(NamedTuple):
    """A commit of the catalog, and the hosted topics whose logs go by what it says, or by something newer."""

    seq: int
    topics: tuple[HostedTopic, ...]


class TopicManager:
    """Thread-safe: `_lock` lets one change of topics run at a time. Every method may take disk and network
    for long.
    """

    def __init__(
        self,
        ids: IdGenerator,
        catalog: Catalog,
        shards: ShardSet,
        logs: LogManager,
        registry: PartitionRegistry,
        opener: PartitionOpener,
        settings: ServerSettings,
        runtime: RuntimeConfig,
    ) -> None:
        self._ids = ids
        self._catalog = catalog
        self._shards = shards
        self._logs = logs
        self._registry = registry
        self._opener = opener
        self._settings = settings
        self._runtime = runtime
        self._lock = threading.Lock()
        # What the catalog said of topics that could not be followed: told once, and tried with every look.
        self._refused: dict[UUID, TopicEntry] = {}

    def open_all(self) -> None:
        """Open and publish every topic of the catalog. Local logs are compared with the bucket first; a
        partition whose log cannot be opened stays offline until the next start, a topic whose configuration
        this version does not take until it has another one. Raises DataDirectoryError where the disk refuses
        all of them.
        """
        with self._lock:
            self._delete_leftover_logs()
            understood: list[tuple[TopicEntry, LogConfig]] = []
            for entry in self._catalog.topics().values():
                try:
                    understood.append((entry, self._config_of(entry)))
                except InvalidConfigError as refusal:
                    self._publish_offline(entry, refusal)
            wanted = chain.from_iterable(_wanted(entry, config) for entry, config in understood)
            opened = iter(self._opener.open_what_can_be([*wanted]))
            for entry, config in understood:
                self._registry.publish(_hosted(entry, config, tuple(islice(opened, entry.partition_count))))
            self._drop_leftovers()

    def create(self, name: str, partition_count: int, config: Mapping[str, str]) -> HostedTopic:
        """Create a topic; 0 partitions: the default. Raises TopicAlreadyExistsError, InvalidRequestError,
        InvalidConfigError, FencedError, StoreError; nothing is left of a topic that was not created."""
        partition_count = partition_count or self._settings.default_partition_count
        require_topic_name(name, ())
        require_partition_count(partition_count)
        if partition_count > self._settings.max_partition_count:
            raise InvalidConfigError(
                "the server does not allow so many partitions in one topic",
                name="partition_count",
                value=partition_count,
                allowed=f"at most {self._settings.max_partition_count}",
            )
        self._acceptable(config)
        with self._lock:
            self._shards.confirm_owned()
            if self._registry.find(name) is not None:
                # It may be gone by now, by somebody else's hand.
                self._follow(self._catalog.refresh())
            if self._registry.find(name) is not None:
                raise TopicAlreadyExistsError("the topic is there already, choose another name", topic=name)
            entry = self._create(name, partition_count, config)
            try:
                return self._publish(entry, is_new=True)
            except Exception:
                self._undo(entry)
                raise

    def delete(self, name: str) -> tuple[str, ...]:
        """Delete a topic with all its records. Returns local directories that are left, because their disk
        failed or they could not be opened; the next start that can do so deletes them. Raises
        UnknownTopicOrPartitionError, FencedError, StoreError.

        Where the store fails after the catalog has it, the topic is gone for everybody and the rest is done
        later. After StoreUnavailableError it may live or not: `follow_catalog` finds out, and deleting it
        again is safe.
        """
        with self._lock:
            topic = self._registry.topic(name)
            self._shards.confirm_owned()
            self._catalog.delete(topic.topic_id)
            left_over = self._withdraw(topic)
            self._try_drop_leftovers()
            return left_over

    def alter(self, name: str, changes: tuple[ConfigChange, ...], *, validate_only: bool = False) -> None:
        """Change what a topic sets, all or nothing; its logs go by it when this returns. With
        `validate_only`, only say whether that could be.

        Raises UnknownTopicOrPartitionError, InvalidConfigError, FencedError, StoreError: after
        StoreUnavailableError it may have been changed or not, and asking again is safe. DataDirectoryError
        where a log cannot go by it yet, which is tried again with every look at the catalog.
        """
        with self._lock:
            topic = self._registry.topic(name)
            self._shards.confirm_owned()
            former = self._catalog.refresh().entries.get(topic.topic_id)
            if former is None or former.is_deleted:
                raise unknown_topic(name)
            self._altered(former, former.config, changes)
            if validate_only:
                return
            entry = self._catalog.alter_config(
                topic.topic_id, lambda overrides: self._altered(former, overrides, changes)
            )
            try:
                self._alter(topic, entry)
            except LogStoreError:
                self._refused[entry.topic_id] = entry
                raise
            self._refused.pop(entry.topic_id, None)

    def apply_defaults(self) -> None:
        """Let the logs go by the server's defaults, which were altered. A topic that cannot is logged, and
        tried again with every look at the catalog.
        """
        with self._lock:
            if not self._shards.is_fenced:
                self._follow(self._catalog.state())

    def follow_catalog(self) -> FollowedCatalog:
        """Read the catalog, and make the server's configuration and the hosted topics what it says. Raises
        StoreError.

        A topic that cannot be closed, opened or altered is logged, and does not stop the others. While
        another thread alters topics or the configuration this does nothing, so that a look at the heads never
        waits for it: call again later. Either way the result has only topics whose logs go by what was read.
        """
        state = self._catalog.refresh()
        self._runtime.follow()
        if self._lock.acquire(blocking=False):
            try:
                # By now somebody else may have read, and followed, a newer one.
                state = self._catalog.state()
                if not self._shards.is_fenced:
                    self._follow(state)
            finally:
                self._lock.release()
        topics = (topic for topic in self._registry.topics() if self._is_followed(topic, state))
        return FollowedCatalog(state.seq, tuple(topics))

    def drop_leftovers(self) -> None:
        """Drop from their shards what deleted topics still have there. Raises StoreError."""
        with self._lock:
            self._drop_leftovers()

    def claim_of(self, partition: TopicPartition, topic_id: UUID | None) -> PartitionClaim:
        """What the catalog says of a partition that is on a disk, with that id of a topic, if any."""
        entry = self._catalog.topics().get(partition.topic)
        if entry is not None and partition.partition < entry.partition_count:
            return PartitionClaim.WANTED
        is_known = topic_id is not None and self._catalog.by_id(topic_id) is not None
        return PartitionClaim.KNOWN if is_known else PartitionClaim.NONE

    def _follow(self, state: CatalogState) -> None:
        """Make the registry what the catalog says."""
        gone = [topic for topic in self._registry.topics() if _is_deleted(topic, state)]
        for topic in gone:
            logger.warning("withdrawing topic %s, which was deleted elsewhere", topic.name)
            self._withdraw(topic)
        if gone:
            self._try_drop_leftovers()
        refused: dict[UUID, TopicEntry] = {}
        for entry in state.topics().values():
            hosted = self._registry.find(entry.name)
            try:
                if hosted is None:
                    self._open(entry)
                    logger.info("followed topic %s, which was created elsewhere", entry.name)
                elif hosted.topic_id == entry.topic_id and not self._is_as(hosted, entry):
                    self._alter(hosted, entry)
                    _tell_altered(hosted, entry)
            except LogStoreError as error:
                refused[entry.topic_id] = entry
                is_news = self._refused.get(entry.topic_id) != entry
                logger.log(
                    logging.WARNING if is_news else logging.DEBUG,
                    "topic %s cannot be what the catalog says, it is tried again: %s",
                    entry.name,
                    error,
                )
        self._refused = refused

    def _alter(self, topic: HostedTopic, entry: TopicEntry) -> None:
        """Let the topic's logs go by the entry, and open the partitions that it has and the topic has not.

        Raises LogStoreError; some logs may go by it then, and the topic does not say so yet.
        """
        if topic.config is None:
            self._registry.withdraw(topic.name)
            self._open(entry)
            return
        config = self._config_of(entry)
        for partition in topic.partitions:
            self._reconfigure(partition, config)
        wanted = _wanted(entry, config, is_new=True)
        added = self._opener.open(wanted[len(topic.all_partitions) :])
        self._registry.replace(_hosted(entry, config, (*topic.all_partitions, *added)))

    def _reconfigure(self, partition: HostedPartition, config: LogConfig) -> None:
        """Where the cleaner of local logs gets the log, or loses it, it stays away meanwhile. Raises
        DataDirectoryError.
        """
        if is_cleaned_here(partition.log.config) == is_cleaned_here(config):
            partition.reconfigure(config)
            return
        with self._logs.cleaner.paused(partition.topic_partition):
            partition.reconfigure(config)

    def _is_as(self, topic: HostedTopic, entry: TopicEntry) -> bool:
        return (
            # Where an alteration failed half-way some logs go by it, and the topic does not say so.
            entry.topic_id not in self._refused
            and topic.config_overrides == entry.config
            and (topic.config is None or self._is_in_force(topic.config, entry))
            and len(topic.all_partitions) == entry.partition_count
        )

    def _is_in_force(self, config: LogConfig, entry: TopicEntry) -> bool:
        """Whether logs that go by `config` go by the entry. Who was found to be tiered stays so."""
        wanted = self._config_of(entry)
        return config in (wanted, dataclasses.replace(wanted, remote_storage_enable=True))

    def _is_followed(self, topic: HostedTopic, state: CatalogState) -> bool:
        """Whether the topic's logs go by what this state says of the topic and of the server's defaults."""
        entry = state.entries.get(topic.topic_id)
        return (
            entry is not None
            and not entry.is_deleted
            and topic.config_overrides == entry.config
            and topic.config is not None
            and topic.topic_id not in self._refused
            and self._runtime.is_as(state)
            and self._is_in_force(topic.config, entry)
        )

    def _config_of(self, entry: TopicEntry) -> LogConfig:
        """The configuration that the topic's logs go by. Raises InvalidConfigError."""
        config = LogConfig.in_force(entry.config, self._runtime.topic_defaults)
        if config.remote_storage_enable or not self._is_in_store(entry):
            return config
        return dataclasses.replace(config, remote_storage_enable=True)

    def _is_in_store(self, entry: TopicEntry) -> bool:
        tips = (TopicIdPartition(entry.topic_id, number) for number in range(entry.partition_count))
        return any(self._shards.of(tip).metadata.state().partition(tip).slices for tip in tips)

    def _withdraw(self, topic: HostedTopic) -> tuple[str, ...]:
        """Hide a topic that is deleted in the catalog, wake who waits for it, delete its local logs. Returns
        the directories that are left until the next start: a disk refuses, or the partition is offline and
        somebody may want to look at it.
        """
        self._registry.withdraw(topic.name)
        for partition in topic.partitions:
            partition.withdraw()
        left_over = [
            partition.path
            for partition in topic.offline_partitions
            if not self._logs.forget_lost(partition.topic_partition)
        ]
        for partition in topic.partitions:
            path = self._logs.path_of(partition.topic_partition)
            try:
                self._logs.delete_log(partition.topic_partition)
            except LogStoreError as error:
                logger.warning("%s of a deleted topic is left until the next start: %s", path, error)
                left_over.append(path)
        return tuple(left_over)

    def _try_drop_leftovers(self) -> None:
        try:
            self._drop_leftovers()
        except StoreUnavailableError as error:
            logger.warning("slices of deleted topics are dropped by a later pass: %s", error)

    def _create(self, name: str, partition_count: int, config: Mapping[str, str]) -> TopicEntry:
        """Commit to the catalog. The id is ours, so a try after an unknown outcome finds its own topic."""
        topic_id = self._ids.uuid()
        try:
            return self._catalog.create(name, partition_count, config, topic_id=topic_id)
        except StoreUnavailableError:
            return self._catalog.create(name, partition_count, config, topic_id=topic_id)

    def _undo(self, entry: TopicEntry) -> None:
        """Take back a topic whose logs could not be made. What fails here is left to the next start."""
        try:
            self._catalog.delete(entry.topic_id)
        except LogStoreError as error:
            logger.warning(
                "a topic that could not be created is still in the catalog, %s: %s", entry.name, error
            )
            return
        for number in range(entry.partition_count):
            try:
                self._delete_log_of(TopicPartition(entry.name, number), entry.topic_id)
            except LogStoreError as error:
                logger.warning(
                    "the log of %s-%d, a topic that could not be created, is left until the next start: %s",
                    entry.name,
                    number,
                    error,
                )

    def _delete_log_of(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """Delete the log that was made for this topic; what an older one of its name left stays."""
        try:
            log = self._logs.log(topic_partition)
        except UnknownTopicOrPartitionError:
            return
        if log.topic_id == topic_id:
            self._logs.delete_log(topic_partition)

    def _publish(self, entry: TopicEntry, *, is_new: bool = False) -> HostedTopic:
        config = self._config_of(entry)
        opened = self._opener.open(_wanted(entry, config, is_new=is_new))
        topic = _hosted(entry, config, tuple(opened))
        self._registry.publish(topic)
        return topic

    def _open(self, entry: TopicEntry) -> None:
        """Publish a topic that somebody else made what it is: offline, where its configuration is refused.
        Raises DataDirectoryError.
        """
        try:
            self._publish(entry)
        except InvalidConfigError as refusal:
            self._publish_offline(entry, refusal)

    def _publish_offline(self, entry: TopicEntry, refusal: InvalidConfigError) -> None:
        logger.error("topic %s stays offline, its configuration is refused: %s", entry.name, refusal)
        partitions = (
            self._opener.leave(
                TopicPartition(entry.name, number), TopicIdPartition(entry.topic_id, number), refusal
            )
            for number in range(entry.partition_count)
        )
        self._registry.publish(_hosted(entry, None, tuple(partitions)))

    def _delete_leftover_logs(self) -> None:
        """Delete local logs of topics that the catalog says are deleted; of others that it does not know,
        none.
        """
        for topic_partition, topic_id in self._logs.found.with_topics():
            entry = None if topic_id is None else self._catalog.by_id(topic_id)
            if entry is not None and entry.is_deleted:
                try:
                    self._logs.delete_leftover(topic_partition, entry.topic_id)
                except DataDirectoryError as error:
                    logger.warning("the local log of deleted %s is left over: %s", topic_partition, error)

    def _drop_leftovers(self) -> None:
        for shard in self._shards:
            topic_ids = {tip.topic_id for tip in shard.metadata.state().partitions}
            for topic_id in topic_ids:
                entry = self._catalog.by_id(topic_id)
                if entry is not None and entry.is_deleted:
                    shard.metadata.drop_partitions(topic_id, self._catalog.confirm_deleted(topic_id))

    def _acceptable(self, overrides: Mapping[str, str]) -> LogConfig:
        """What a topic that sets these keys would go by. Raises InvalidConfigError."""
        config = LogConfig.from_overrides(overrides, self._runtime.topic_defaults)
        require_fits(config, self._settings.max_request_bytes)
        return config

    def _altered(
        self, entry: TopicEntry, overrides: Mapping[str, str], changes: tuple[ConfigChange, ...]
    ) -> Mapping[str, str]:
        """What the topic sets after the changes. Raises InvalidConfigError where that cannot be."""
        result = changed(overrides, changes)
        if not self._acceptable(result).remote_storage_enable and self._is_in_store(entry):
            raise InvalidConfigError(
                "what is in the object store stays a part of its topic, which stays tiered therefore",
                name="remote.storage.enable",
                value="false",
                allowed="true, for a topic that has data in the object store",
            )
        return result


def _wanted(entry: TopicEntry, config: LogConfig, *, is_new: bool = False) -> list[WantedPartition]:
    """All partitions of the topic, in order. `is_new`: nobody has had them before."""
    return [
        WantedPartition(
            TopicPartition(entry.name, number), TopicIdPartition(entry.topic_id, number), config, is_new
        )
        for number in range(entry.partition_count)
    ]


def _hosted(
    entry: TopicEntry, config: LogConfig | None, partitions: tuple[HostedPartition | OfflinePartition, ...]
) -> HostedTopic:
    assert len(partitions) == entry.partition_count
    return HostedTopic(entry.name, entry.topic_id, entry.config, config, partitions)


def _tell_altered(topic: HostedTopic, entry: TopicEntry) -> None:
    """Where only the server's defaults were altered, whoever did it has told so, once for all topics."""
    is_of_topic = topic.config_overrides != entry.config or len(topic.all_partitions) != entry.partition_count
    if is_of_topic:
        logger.info("followed topic %s, which was altered elsewhere", entry.name)
    else:
        logger.debug("topic %s goes by the server's defaults of now", entry.name)


def _is_deleted(topic: HostedTopic, state: CatalogState) -> bool:
    entry = state.entries.get(topic.topic_id)
    return entry is not None and entry.is_deleted
