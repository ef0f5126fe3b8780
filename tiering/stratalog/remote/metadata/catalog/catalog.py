"""The store's topics, the server configuration that was altered at run time, and the next producer id.

The catalog is a log of commits like a shard's, but has no owner. Any process may commit; If-Match admits one
change at a time. A deleted topic stays for 30 days, marked, so that a shard can tell a deleted topic from an
unknown one: absent does not mean deleted.

Producer ids are taken in blocks by a commit, and given out after it. So an id belongs to one block, whatever
happens to the process that took it; a commit whose outcome stays unknown wastes a block at most.

A fencing token belongs to a partition of a topic id: a topic that is created anew has none.

Before an actor deletes records or partitions because of the catalog, it calls `confirm` or `confirm_deleted`
and passes the returned commit number to the shard. The shard refuses a number below the highest it has seen.
The store's clock decides how long a deleted topic is remembered.

What is not folded is lost if the head is. So topics and configurations are folded by the next look at the
head, and do not wait until it has outgrown its limits: a rebuilt catalog that did not know that a topic is
kept for ever could not keep it by the rules that its owner gave it. However many topics are created between
two looks, that is one fold. Producer ids and fencing tokens wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import (
    FencingTokenMismatchError,
    PreconditionFailedError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.remote.json_document import MAX_INTEGER
from stratalog.remote.metadata.catalog.catalog_actions import (
    AlterTopic,
    ConfigureServer,
    CreateTopic,
    DeleteTopic,
    FencePartition,
    TakeProducerIds,
)
from stratalog.remote.metadata.catalog.catalog_state import CatalogMachine, CatalogState
from stratalog.remote.metadata.catalog.topic_entry import (
    HASH_KEY_BYTES,
    TopicEntry,
    require_fencing_token,
    require_partition_count,
    require_topic_name,
)
from stratalog.remote.metadata.head.committed_log import CommittedLog
from stratalog.remote.metadata.head.head_log import CommitSettings, HeadLog, Judgement, StoreActor
from stratalog.remote.metadata.head.head_state import DELETED_TOPIC_KEPT_MS
from stratalog.remote.store_layout import StoreLayout

MAX_NEXT_PRODUCER_ID = MAX_INTEGER
"""The number after the last producer id; ids are signed numbers of 64 bits, as in Kafka."""
_FOLDED_SOON = (AlterTopic, ConfigureServer, CreateTopic, DeleteTopic)
"""Actions that no rebuild of a lost head can find again."""


class ConfirmedEntries(NamedTuple):
    """The result of `Catalog.confirm`."""

    catalog_seq: int
    """The commit of the catalog that was read."""
    changed: frozenset[UUID]
    """Ids of the topics that have changed or are deleted: what was decided about them does not hold."""


class Catalog(CommittedLog[CatalogState]):
    """The topics of a store and their configurations. Thread-safe. Changes of one instance come one after
    another; reads never wait."""

    @staticmethod
    def open(
        actor: StoreActor,
        *,
        read_only: bool = False,
        witness: str = "",
        settings: CommitSettings | None = None,
    ) -> Catalog:
        """Read the catalog; create it if the store never had one, unless `read_only`.

        `witness`: evidence elsewhere that the store had one, see `head_witness`. Raises StoreCorruptError if
        the head is lost, StoreNotUsableError if newer software is needed, StoreUnavailableError.
        """
        log = HeadLog(actor, StoreLayout(None), CatalogMachine(), settings)
        log.open(read_only=read_only, witness=witness)
        return Catalog(log)

    @property
    def seq(self) -> int:
        return self.state().seq

    def topics(self) -> Mapping[str, TopicEntry]:
        """The live topics in the newest state that was read, sorted by name."""
        return self.state().topics()

    def by_id(self, topic_id: UUID) -> TopicEntry | None:
        """The topic of this id, live or deleted, in the newest state that was read; None if unknown."""
        return self.state().entries.get(topic_id)

    def fencing_token(self, topic_id: UUID, partition: int) -> str:
        """The partition's token in the newest state that was read; empty if it has none."""
        entry = self.by_id(topic_id)
        return "" if entry is None else entry.fencing_token(partition)

    def create(
        self,
        name: str,
        partition_count: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
        next_producer_id: int = 0,
        require: Callable[[CatalogState], None] | None = None,
    ) -> TopicEntry:
        """Create a topic with a fresh hash key, and a fresh id unless `topic_id` is given.

        The same commit takes all producer ids below `next_producer_id`: those of batches that the topic
        brings. `require` looks at the catalog that the topic would be added to, and raises if it must not be.

        A call with `topic_id` may be repeated after StoreUnavailableError: it returns the topic that the
        first call created. Raises InvalidRequestError for an invalid name or number, TopicAlreadyExistsError.
        """
        require_partition_count(partition_count)
        require_topic_name(name, ())
        create = CreateTopic(
            name=name,
            topic_id=topic_id or self._log.ids.uuid(),
            partition_count=partition_count,
            config=MappingProxyType(dict(config or {})),
            hash_key=self._log.ids.secret(HASH_KEY_BYTES),
        )
        self._commit(lambda state: judge_create(state, create, next_producer_id, require))
        return self.state().entries[create.topic_id]

    def alter(
        self,
        topic_id: UUID,
        *,
        partition_count: int | None = None,
        config: Mapping[str, str] | None = None,
        require: Callable[[CatalogState], None] | None = None,
    ) -> TopicEntry:
        """Replace a topic's configuration, or raise its number of partitions, or both. `require` looks at the
        catalog before the change, and raises if it must not be made.

        Raises UnknownTopicOrPartitionError, InvalidRequestError if the number would shrink.
        """

        def judge(state: CatalogState) -> Judgement[TopicEntry]:
            if require is not None:
                require(state)
            return judge_alter(state, topic_id, partition_count, config)

        return self._commit(judge).outcome

    def alter_config(
        self, topic_id: UUID, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> TopicEntry:
        """Replace a topic's configuration with `change` of the current one, as `alter_server_config` does.

        Raises UnknownTopicOrPartitionError.
        """

        def judge(state: CatalogState) -> Judgement[TopicEntry]:
            return judge_alter(state, topic_id, None, change(require_topic(state, topic_id).config))

        return self._commit(judge).outcome

    def alter_server_config(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Replace the server's configuration with `change` of the current one; returns the new one.

        `change` is called again when another commit lands first. Its exceptions pass through, with nothing
        committed. Raises StoreError; after StoreUnavailableError the outcome is unknown.
        """
        return self._commit(lambda state: judge_configure(state, change(state.server_config))).outcome

    def take_producer_ids(self, count: int) -> range:
        """Take the next producer ids, which no other call gets, whatever becomes of this one.

        Raises StoreError; after StoreUnavailableError the ids may be taken, and remain unused.
        """
        return self._commit(lambda state: judge_take_producer_ids(state, count)).outcome

    def fence(self, topic_id: UUID, partition: int, token: str, current_token: str | None = None) -> None:
        """Replace the fencing token of a partition; an empty one stands for none.

        `current_token`: the token that it must have now; None for any. A call may be repeated after
        StoreUnavailableError. Raises UnknownTopicOrPartitionError, InvalidRequestError,
        FencingTokenMismatchError, StoreError.
        """
        require_fencing_token(token)
        self._commit(lambda state: judge_fence(state, topic_id, partition, token, current_token))

    def delete(self, topic_id: UUID) -> None:
        """Mark a topic as deleted, which frees its name. Does nothing if it is deleted already.

        Topics that were deleted more than 30 days ago, by the store's clock, are forgotten; none is if the
        own clock is wrong. Raises UnknownTopicOrPartitionError, StoreError.
        """
        # The commit gets the time of the deletion, which must not be before the store's.
        self.refresh(dated=True)
        now_ms = self.store_date_ms if self.is_clock_trusted else None
        self._commit(lambda state: judge_delete(state, topic_id, now_ms))

    def confirm(self, entries: Iterable[TopicEntry]) -> ConfirmedEntries:
        """Read the catalog, for a destructive action, and compare the topics that it was decided with.

        A topic that has changed, in more than its fencing tokens, is refused alone: the action goes on
        without it. Raises StoreError.
        """
        state = self.refresh()
        changed = frozenset(
            entry.topic_id
            for entry in entries
            if (current := state.entries.get(entry.topic_id)) is None or not current.is_as(entry)
        )
        return ConfirmedEntries(state.seq, changed)

    def confirm_deleted(self, topic_id: UUID) -> int:
        """Read the catalog and return its commit number if the topic is deleted.

        Raises PreconditionFailedError if the topic is live or unknown.
        """
        state = self.refresh()
        entry = state.entries.get(topic_id)
        if entry is None or not entry.is_deleted:
            raise PreconditionFailedError(
                "the catalog does not say that this topic is deleted; keep what it has",
                topic_id=topic_id,
                catalog_seq=state.seq,
            )
        return state.seq

    def fold_if_needed(self) -> int | None:
        """Fold if topics or configurations have changed since the last fold, or if the head has outgrown its
        limits. Returns the fold's commit number; None if there is nothing to do. Raises StoreError."""
        commits = self._log.view.head.commits
        if any(isinstance(action, _FOLDED_SOON) for commit in commits for action in commit.actions):
            return self.fold()
        return super().fold_if_needed()

    def check(self) -> None:
        super().check()
        self.state().check()


def judge_create(
    state: CatalogState,
    create: CreateTopic,
    next_producer_id: int = 0,
    require: Callable[[CatalogState], None] | None = None,
) -> Judgement[None]:
    """Valid if the name is free, and `require` raises nothing. Also takes the producer ids below
    `next_producer_id`."""
    same_id = state.entries.get(create.topic_id)
    if same_id is not None and same_id.name == create.name and not same_id.is_deleted:
        return Judgement((), None)  # an earlier attempt of this call landed
    if same_id is not None or state.named(create.name) is not None:
        raise TopicAlreadyExistsError("the topic is there already; choose another name", topic=create.name)
    require_topic_name(create.name, state.topics())
    if require is not None:
        require(state)
    takes_ids = next_producer_id > state.next_producer_id
    return Judgement((create, TakeProducerIds(next_producer_id)) if takes_ids else (create,), None)


def judge_fence(
    state: CatalogState, topic_id: UUID, partition: int, token: str, current_token: str | None
) -> Judgement[None]:
    """Valid if the partition has the current token, or the new one already: an earlier attempt of this call
    may have landed."""
    entry = require_topic(state, topic_id)
    if not 0 <= partition < entry.partition_count:
        raise UnknownTopicOrPartitionError(
            "the topic has no such partition; correct the number",
            topic=entry.name,
            partition=partition,
            partition_count=entry.partition_count,
        )
    found = entry.fencing_token(partition)
    if found == token:
        return Judgement((), None)
    if current_token not in (None, found):
        raise FencingTokenMismatchError(
            "the partition has another fencing token than the one to replace; another writer was first",
            fencing_token=current_token,
            current_token=found,
        )
    return Judgement((FencePartition(topic_id, partition, token),), None)


def judge_take_producer_ids(state: CatalogState, count: int) -> Judgement[range]:
    """Valid until all ids are taken. The outcome has the ids."""
    assert count > 0, "a block has ids"
    end = state.next_producer_id + count
    if end > MAX_NEXT_PRODUCER_ID:
        raise UnsupportedOperationError(
            "all producer ids are taken; append without one", next_producer_id=state.next_producer_id
        )
    return Judgement((TakeProducerIds(end),), range(state.next_producer_id, end))


def judge_alter(
    state: CatalogState, topic_id: UUID, partition_count: int | None, config: Mapping[str, str] | None
) -> Judgement[TopicEntry]:
    """Valid if the topic is live. The outcome is the altered topic."""
    entry = require_topic(state, topic_id)
    altered = replace(
        entry,
        partition_count=entry.partition_count if partition_count is None else partition_count,
        config=entry.config if config is None else MappingProxyType(dict(config)),
    )
    require_partition_count(altered.partition_count, at_least=entry.partition_count)
    if altered == entry:
        return Judgement((), entry)
    return Judgement((AlterTopic(topic_id, altered.partition_count, altered.config),), altered)


def judge_configure(state: CatalogState, config: Mapping[str, str]) -> Judgement[Mapping[str, str]]:
    """Always valid. The outcome is the server's configuration after the commit."""
    if config == state.server_config:
        return Judgement((), state.server_config)
    altered = MappingProxyType(dict(config))
    return Judgement((ConfigureServer(altered),), altered)


def judge_delete(state: CatalogState, topic_id: UUID, now_ms: int | None) -> Judgement[None]:
    """Valid for a known topic. Without a time no deleted topic is forgotten."""
    known = state.entries.get(topic_id)
    if known is not None and known.is_deleted:
        return Judgement((), None)
    require_topic(state, topic_id)
    expired = sorted(
        entry.topic_id
        for entry in state.entries.values()
        if now_ms is not None
        and entry.deleted_ms is not None
        and entry.deleted_ms + DELETED_TOPIC_KEPT_MS < now_ms
    )
    return Judgement((DeleteTopic(topic_id, tuple(expired)),), None)


def require_topic(state: CatalogState, topic_id: UUID) -> TopicEntry:
    """The live topic of this id. Raises UnknownTopicOrPartitionError."""
    entry = state.entries.get(topic_id)
    if entry is None or entry.is_deleted:
        raise UnknownTopicOrPartitionError("there is no such topic; list the topics", topic_id=topic_id)
    return entry
