"""Creates, alters and deletes topics in the catalog, and makes this server follow it.

Creating: check, commit to the catalog, open the logs, publish. Deleting: commit to the catalog, withdraw,
delete the local logs, drop the partitions from their shards. A crash in between leaves a topic that is in the
catalog and not yet on disk (the next start opens its logs), or one that is marked as deleted and still has
data (`drop_leftovers` finishes it, at the next start and with every pass of retention). The catalog decides,
the rest follows.

Others may change the catalog too: a tool, a former owner that has not noticed its successor, or a commit of
ours with an unknown outcome. So `follow_catalog` runs with every look at the heads, and before a
configuration deletes anything. It applies the server's configuration, withdraws the topics that the catalog
marks as deleted, opens those that are not hosted, and applies changed configurations and defaults. It keeps a
topic that the catalog does not know: absent is not deleted. An owner that was replaced changes nothing,
because every change of the catalog first reads the heads.

One change of a topic runs at a time, from the look at its entry to its last log: `TopicTurns`. Changes of
other topics go on beside it, so a topic of thousands of partitions keeps none of them waiting. The catalog
orders them: it is thread-safe, and a commit judges names and bounds by the state that it is added to. In its
turn a change reads the newest state, which has every earlier change of that topic.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    InvalidConfigError,
    LogStoreError,
    StoreError,
    StoreUnavailableError,
    TopicAlreadyExistsError,
)
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.manager.partitions.stray_partitions import PartitionClaim
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.catalog_bounds import CatalogBounds
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.remote.metadata.catalog.topic_entry import (
    TopicEntry,
    require_partition_count,
    require_topic_name,
)
from stratalog.server.configuration.config_entry import ConfigChange, changed
from stratalog.server.configuration.runtime_config import RuntimeConfig, require_fits
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.partitions.partition_registry import HostedTopic
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.partitions.unknown_topic import unknown_topic
from stratalog.server.topics.topic_host import TopicHost
from stratalog.server.topics.topic_turns import TopicTurns

logger = logging.getLogger(__name__)

SLOW_CHANGE_S = 5.0
"""A change of a topic that takes longer is logged."""
_RAISE_BOUNDS = "raise max-topic-count or max-total-partition-count of the server"


class FollowedCatalog(NamedTuple):
    """A commit of the catalog, and the hosted topics with its configuration or a newer one."""

    seq: int
    topics: tuple[HostedTopic, ...]


class TopicManager:
    """Creates, alters and deletes topics. Thread-safe: `_turns` lets one change of a topic run at a time, and
    `_dropping` one pass over the data of deleted topics. Every method may take disk and network for long.
    """

    def __init__(
        self,
        clock: Clock,
        ids: IdGenerator,
        catalog: Catalog,
        shards: ShardSet,
        host: TopicHost,
        settings: ServerSettings,
        runtime: RuntimeConfig,
    ) -> None:
        self._clock = clock
        self._runtime = runtime
        self._ids = ids
        self._catalog = catalog
        self._shards = shards
        self._host = host
        self._registry = host.registry
        self._settings = settings
        self._turns = TopicTurns()
        self._dropping = threading.Lock()
        # Topics whose change ends with a look at the catalog, so that others need not wait for it; each with
        # whether it is new.
        self._looking_last: dict[str, bool] = {}
        self.max_partition_count: int = settings.max_partition_count
        """Most partitions of one topic, and of one request."""
        self._bounds = CatalogBounds(settings.max_topic_count, settings.max_total_partition_count)
        # Entries that could not be followed. Each is logged once and tried again with every look. An entry is
        # changed in the turn of its topic.
        self._refused: dict[UUID, TopicEntry] = {}

    def open_all(self) -> None:
        """Open and publish every topic of the catalog, after a comparison of the local logs with the bucket.
        A partition whose log cannot be opened stays offline until the next start; a topic whose configuration
        this version refuses stays offline until it has another one. Raises DataDirectoryError if the disk
        refuses all of them.
        """
        self._host.delete_leftover_logs(self._catalog.state())
        self._host.open_all(self._catalog.topics().values())
        self.drop_leftovers()

    def create(self, name: str, partition_count: int, config: Mapping[str, str]) -> HostedTopic:
        """Create a topic; 0 partitions means the default. Raises TopicAlreadyExistsError, LimitExceededError,
        InvalidRequestError, InvalidConfigError, NotOwnerError, StoreError; a topic that was not created
        leaves nothing behind."""
        partition_count = partition_count or self._settings.default_partition_count
        require_topic_name(name, ())
        require_partition_count(partition_count, at_most=self.max_partition_count)
        self._acceptable(config)
        with self._changing(name, "creation"):
            self._shards.confirm_owned()
            if self._registry.find(name) is not None:
                # Another server may have deleted it.
                self._catalog.refresh()
                if self._withdraw_deleted(name):
                    self._try_drop_leftovers()
            if self._registry.find(name) is not None:
                raise TopicAlreadyExistsError("this topic exists already, choose another name", topic=name)
            with self._following(name, is_new=True):
                self._open_new(self._create(name, partition_count, config))
            return self._registry.topic(name)

    def delete(self, name: str, topic_id: str = "") -> tuple[str, ...]:
        """Delete a topic with all its records. `topic_id` is the topic's id, or empty. Returns the local
        directories that are left, because their disk failed or their log could not be opened; a later start
        deletes them. Raises UnknownTopicOrPartitionError, InconsistentTopicIdError, NotOwnerError,
        StoreError.

        If the store fails after the commit to the catalog, the topic is gone and the rest is done later.
        After StoreUnavailableError the topic may still exist: `follow_catalog` finds out, and deleting it
        again is safe.
        """
        with self._changing(name, "deletion"):
            topic = self._registry.topic(name, topic_id)
            self._shards.confirm_owned()
            self._catalog.delete(topic.topic_id)
            left_over = self._withdraw(topic, self._catalog.state())
        self._try_drop_leftovers()
        return left_over

    def alter(
        self,
        name: str,
        changes: tuple[ConfigChange, ...],
        topic_id: str = "",
        *,
        validate_only: bool = False,
    ) -> HostedTopic:
        """Apply the changes, all or none, to the topic's configuration and its logs; returns the topic with
        them. With `validate_only`, only check them. `topic_id` is the topic's id, or empty.

        Raises UnknownTopicOrPartitionError, InconsistentTopicIdError, InvalidConfigError, NotOwnerError,
        StoreError: after StoreUnavailableError the topic may have changed or not, and asking again is safe.
        DataDirectoryError if a log cannot take the configuration yet; every look at the catalog tries again.
        """
        with self._changing(name, "alteration"):
            topic = self._registry.topic(name, topic_id)
            self._shards.confirm_owned()
            former = self._require_live(topic)
            self._altered(former, former.config, changes)
            if validate_only:
                return topic
            with self._following(name):
                entry = self._catalog.alter_config(
                    topic.topic_id, lambda overrides: self._altered(former, overrides, changes)
                )
                self._apply(topic, entry)
            return self._registry.topic(name)

    def add_partitions(self, name: str, topic_id: str, partition_count: int) -> HostedTopic:
        """Give the topic `partition_count` partitions in all; the present number changes nothing. `topic_id`
        is the topic's id, or empty.

        Raises UnknownTopicOrPartitionError, InconsistentTopicIdError, InvalidRequestError for a number that
        is too small or too large, LimitExceededError, NotOwnerError, StoreError: after StoreUnavailableError
        the partitions may be added or not, and asking again is safe. DataDirectoryError if a log cannot be
        created: the catalog has the partitions then, and every look at it tries again to open them.
        """
        with self._changing(name, "addition of partitions"):
            topic = self._registry.topic(name, topic_id)
            self._shards.confirm_owned()
            present_count = self._require_live(topic).partition_count
            require_partition_count(
                partition_count,
                at_least=present_count,
                at_most=max(present_count, self.max_partition_count),
            )

            def require(state: CatalogState) -> None:
                # An addition whose outcome was unknown may be in the catalog already.
                known = state.entries.get(topic.topic_id)
                added_count = 0 if known is None else partition_count - known.partition_count
                self._bounds.require_room(state, added_count, 0, remedy=_RAISE_BOUNDS)

            with self._following(name):
                entry = self._catalog.alter(topic.topic_id, partition_count=partition_count, require=require)
                self._apply(topic, entry)
            return self._registry.topic(name)

    def apply_defaults(self) -> None:
        """Apply the server's changed defaults to all logs. A topic that refuses them is logged, and tried
        again with every look at the catalog.
        """
        self._follow(must_wait=lambda name: name not in self._looking_last)

    def follow_catalog(self) -> FollowedCatalog:
        """Read the catalog and make the server's configuration and the hosted topics follow it. Raises
        StoreError.

        A topic that cannot be closed, opened or altered is logged and does not stop the others. One that
        another thread changes is left out, so that looks at the heads never wait; call it again later. The
        result has only topics whose logs have the configuration that was read.
        """
        self._look_at_catalog()
        self._runtime.follow()
        self._follow(must_wait=lambda _: False)
        return self.followed_last()

    def _look_at_catalog(self) -> None:
        """Read the catalog, and tell the shards whether it could be read. Raises StoreError."""
        asked_s = self._clock.monotonic_s()
        try:
            self._catalog.refresh()
        except StoreError as error:
            for shard in self._shards:
                shard.contact.note_catalog(asked_s, error)
            raise
        for shard in self._shards:
            shard.contact.note_catalog(asked_s, None)

    def learn(self) -> None:
        """Read the catalog, and make the hosted topics follow it. A topic that another server has created is
        hosted then, also if another thread opens it. One that this server creates may not be there before its
        creation is answered. Raises StoreError."""
        self._catalog.refresh()
        self._follow(
            must_wait=lambda name: self._registry.find(name) is None and not self._looking_last.get(name)
        )

    def may_be_behind(self, names: Iterable[str]) -> bool:
        """Whether another server of the store, or a job of Spark, may have created one of these topics since
        the last look at the catalog. Asks nothing."""
        return any(self._registry.find(name) is None for name in names)

    def followed_last(self) -> FollowedCatalog:
        """The result of `follow_catalog` for the newest catalog that was read. Asks nothing."""
        return self._followed(self._catalog.state())

    def _followed(self, state: CatalogState) -> FollowedCatalog:
        topics = (topic for topic in self._registry.topics() if self._is_followed(topic, state))
        return FollowedCatalog(state.seq, tuple(topics))

    def drop_leftovers(self) -> int:
        """Drop the data of deleted topics from their shards; returns how many topics a shard had. Raises
        StoreError."""
        with self._dropping:
            return self._drop_leftovers()

    def claim_of(self, partition: TopicPartition, topic_id: UUID | None) -> PartitionClaim:
        """Whether the catalog wants this partition, which a disk has with that topic id, if any."""
        entry = self._catalog.topics().get(partition.topic)
        if entry is not None and partition.partition < entry.partition_count:
            return PartitionClaim.WANTED
        is_known = topic_id is not None and self._catalog.by_id(topic_id) is not None
        return PartitionClaim.KNOWN if is_known else PartitionClaim.NONE

    def _require_live(self, topic: HostedTopic) -> TopicEntry:
        """Read the catalog, and return the topic's entry. Raises UnknownTopicOrPartitionError if it is
        deleted, StoreError."""
        entry = self._catalog.refresh().entries.get(topic.topic_id)
        if entry is None or entry.is_deleted:
            raise unknown_topic(topic.name)
        return entry

    def _apply(self, topic: HostedTopic, entry: TopicEntry) -> None:
        """Make the logs follow the altered entry. After an error every look at the catalog tries again."""
        try:
            self._host.alter(topic, entry)
        except LogStoreError:
            self._refused[entry.topic_id] = entry
            raise
        self._refused.pop(entry.topic_id, None)

    @contextmanager
    def _changing(self, name: str, change: str) -> Generator[None]:
        """Have the topic's turn for a change, and log one that takes long."""
        with self._turns.of(name):
            began_s = self._clock.monotonic_s()
            try:
                yield
            finally:
                took_s = self._clock.monotonic_s() - began_s
                if took_s >= SLOW_CHANGE_S:
                    logger.info("the %s of topic %s took %.0f s", change, name, took_s)

    @contextmanager
    def _following(self, name: str, *, is_new: bool = False) -> Generator[None]:
        """Make a change after which the topic follows the newest catalog and defaults, in its turn. So those
        that alter these need not wait for it, however long it takes."""
        self._looking_last[name] = is_new
        try:
            yield
        finally:
            # From here on they wait for the turn. What they have altered before is found now.
            del self._looking_last[name]
        self._follow_name(name)

    def _follow(self, must_wait: Callable[[str], bool]) -> None:
        """Make the hosted topics follow the newest catalog that was read. `must_wait` returns whether a topic
        that another thread changes is waited for."""
        if self._shards.is_replaced:
            return
        state, has_withdrawn = self._catalog.state(), False
        for topic in self._registry.topics():
            if not _is_deleted(topic, state):
                continue
            with self._turns.of(topic.name, waits=must_wait(topic.name)) as has_turn:
                if has_turn and self._withdraw_deleted(topic.name):
                    has_withdrawn = True
        if has_withdrawn:
            self._try_drop_leftovers()
        for entry in state.topics().values():
            if not self._is_behind(entry):
                continue
            with self._turns.of(entry.name, waits=must_wait(entry.name)) as has_turn:
                if has_turn:
                    self._follow_name(entry.name)

    def _withdraw_deleted(self, name: str) -> bool:
        """Withdraw the topic if the catalog marks it as deleted; returns whether it was. In its turn."""
        topic, state = self._registry.find(name), self._catalog.state()
        if topic is None or not _is_deleted(topic, state):
            return False
        logger.warning("withdrawing topic %s, which another server deleted", name)
        self._withdraw(topic, state)
        return True

    def _withdraw(self, topic: HostedTopic, state: CatalogState) -> tuple[str, ...]:
        self._refused.pop(topic.topic_id, None)
        return self._host.withdraw(topic, state.entries[topic.topic_id])

    def _is_behind(self, entry: TopicEntry) -> bool:
        """Whether the hosted topic has to follow its catalog entry."""
        hosted = self._registry.find(entry.name)
        if hosted is None:
            return True
        # If an alteration failed half-way, some logs have it and the published topic does not show it.
        is_behind = entry.topic_id in self._refused
        return hosted.topic_id == entry.topic_id and (is_behind or not self._is_as(hosted, entry))

    def _is_as(self, hosted: HostedTopic, entry: TopicEntry) -> bool:
        try:
            return self._host.is_as(hosted, entry)
        except InvalidConfigError:
            return False

    def _follow_name(self, name: str) -> None:
        """Bring the topic to the newest state of its catalog entry. In its turn."""
        entry = self._catalog.topics().get(name)
        if entry is None or not self._is_behind(entry):
            return
        try:
            self._follow_entry(entry)
        except LogStoreError as error:
            is_news = self._refused.get(entry.topic_id) != entry
            self._refused[entry.topic_id] = entry
            logger.log(
                logging.WARNING if is_news else logging.DEBUG,
                "topic %s cannot follow the catalog, trying again: %s",
                name,
                error,
            )
        else:
            self._refused.pop(entry.topic_id, None)

    def _follow_entry(self, entry: TopicEntry) -> None:
        """Bring the hosted topic to the state of its catalog entry. Raises LogStoreError."""
        hosted = self._registry.find(entry.name)
        if hosted is None:
            self._host.follow(entry)
            logger.info("opened topic %s, which another server created", entry.name)
        else:
            self._host.alter(hosted, entry)
            _tell_altered(hosted, entry)

    def _is_followed(self, topic: HostedTopic, state: CatalogState) -> bool:
        """Whether the topic's logs have this state's configuration of the topic and of the server."""
        entry = state.entries.get(topic.topic_id)
        return (
            entry is not None
            and not entry.is_deleted
            and topic.config_overrides == entry.config
            and topic.config is not None
            and topic.topic_id not in self._refused
            and self._runtime.is_as(state)
            and self._host.is_in_force(topic.config, entry)
        )

    def _try_drop_leftovers(self) -> None:
        try:
            self.drop_leftovers()
        except StoreUnavailableError as error:
            logger.warning("a later pass drops the slices of deleted topics: %s", error)

    def _create(self, name: str, partition_count: int, config: Mapping[str, str]) -> TopicEntry:
        """Commit to the catalog. The id is ours, so a try after an unknown outcome finds its own topic."""
        create = partial(
            self._catalog.create,
            name,
            partition_count,
            config,
            topic_id=self._ids.uuid(),
            require=lambda state: self._bounds.require_room(state, partition_count, remedy=_RAISE_BOUNDS),
        )
        try:
            return create()
        except StoreUnavailableError:
            return create()

    def _open_new(self, entry: TopicEntry) -> None:
        """Open and publish a topic that was created now, or take it back."""
        try:
            self._host.publish(entry, is_new=True)
        except Exception:
            self._undo(entry)
            raise

    def _undo(self, entry: TopicEntry) -> None:
        """Take back a topic whose logs could not be made. The next start finishes what fails here."""
        try:
            self._catalog.delete(entry.topic_id)
        except LogStoreError as error:
            logger.warning(
                "a topic that could not be created is still in the catalog, %s: %s", entry.name, error
            )
            return
        self._host.delete_new_logs(entry)

    def _drop_leftovers(self) -> int:
        dropped_count = 0
        for shard in self._shards:
            if shard.is_followed:
                # The owner does it.
                continue
            topic_ids = {tip.topic_id for tip in shard.metadata.state().partitions}
            for topic_id in topic_ids:
                entry = self._catalog.by_id(topic_id)
                if entry is not None and entry.is_deleted:
                    shard.metadata.drop_partitions(topic_id, self._catalog.confirm_deleted(topic_id))
                    dropped_count += 1
        return dropped_count

    def _acceptable(self, overrides: Mapping[str, str]) -> LogConfig:
        """The configuration of a topic that sets these keys. Raises InvalidConfigError."""
        config = self._host.config_overridden(overrides)
        require_fits(config, self._settings.max_request_bytes)
        return config

    def _altered(
        self, entry: TopicEntry, overrides: Mapping[str, str], changes: tuple[ConfigChange, ...]
    ) -> Mapping[str, str]:
        """The topic's own keys after the changes. Raises InvalidConfigError."""
        result = changed(overrides, changes)
        config = self._acceptable(result)
        if not config.remote_storage_enable and self._host.is_in_store(entry):
            _require_droppable(config)
        return result


def _require_droppable(config: LogConfig) -> None:
    """Raise InvalidConfigError unless a topic of this configuration may lose its data in the object store."""
    if not config.drops_tier:
        raise InvalidConfigError(
            "a topic with data in the object store stays tiered, because that data is a part of it; to"
            " upload nothing more, set remote.log.copy.disable to true; to delete that data, set"
            " remote.log.delete.on.disable to true",
            name="remote.storage.enable",
            value="false",
            allowed="true, for a topic that has data in the object store",
        )
    if config.is_compacted:
        raise InvalidConfigError(
            "the object store has the only copy of keys whose newest record is no longer on the disks; to"
            " delete them all the same, set cleanup.policy to delete first",
            name="remote.storage.enable",
            value="false",
            allowed="true, for a compacted topic that has data in the object store",
        )


def _tell_altered(topic: HostedTopic, entry: TopicEntry) -> None:
    """Log a change of the topic; a change of the server's defaults was logged once, by `RuntimeConfig`."""
    is_of_topic = topic.config_overrides != entry.config or len(topic.all_partitions) != entry.partition_count
    if is_of_topic:
        logger.info("altered topic %s, because another server changed it in the catalog", entry.name)
    else:
        logger.debug("topic %s has the server's new defaults", entry.name)


def _is_deleted(topic: HostedTopic, state: CatalogState) -> bool:
    entry = state.entries.get(topic.topic_id)
    return entry is not None and entry.is_deleted
