"""The store's topics, the server configuration that was altered at run time, and the next producer id.

The catalog is a log of commits like a shard's, but has no owner. Any process may commit; If-Match admits one
change at a time. A deleted topic stays for 30 days, marked, so that a shard can tell a deleted topic from an
unknown one: absent does not mean deleted.

Producer ids are taken in blocks by a commit, and given out after it. So an id belongs to one block, whatever
happens to the process that took it; a commit whose outcome stays unknown wastes a block at most.

Before an actor deletes records or partitions because of the catalog, it calls `confirm` or `confirm_deleted`
and passes the returned commit number to the shard. The shard refuses a number below the highest it has seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    PreconditionFailedError,
    StoreError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.remote.metadata.catalog.catalog_actions import (
    AlterTopic,
    ConfigureServer,
    CreateTopic,
    DeleteTopic,
    TakeProducerIds,
)
from stratalog.remote.metadata.catalog.catalog_state import CatalogMachine, CatalogState
from stratalog.remote.metadata.catalog.topic_entry import (
    HASH_KEY_BYTES,
    TopicEntry,
    require_partition_count,
    require_topic_name,
)
from stratalog.remote.metadata.head.document_ref import DroppedObject
from stratalog.remote.metadata.head.fold import Folder
from stratalog.remote.metadata.head.head_log import (
    CommitSettings,
    HeadLog,
    Judgement,
    StoreActor,
    judge_forget,
)
from stratalog.remote.metadata.head.head_state import DELETED_TOPIC_KEPT_MS
from stratalog.remote.json_document import MAX_INTEGER
from stratalog.remote.store_layout import StoreLayout

MAX_NEXT_PRODUCER_ID = MAX_INTEGER
"""The number after the last producer id; ids are signed numbers of 64 bits, as in Kafka."""


class Catalog:
    """The topics of a store and their configurations. Thread-safe. Changes of one instance come one after
    another; reads never wait."""

    def __init__(self, log: HeadLog[CatalogState], clock: Clock) -> None:
        """Use `open`."""
        self._log = log
        self._clock = clock
        self._folder = Folder(log)
        self._change_lock = threading.Lock()

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
        return Catalog(log, actor.clock)

    @property
    def layout(self) -> StoreLayout:
        return self._log.layout

    @property
    def seq(self) -> int:
        return self.state().seq

    @property
    def dropped(self) -> tuple[DroppedObject, ...]:
        """Dropped files of the catalog that the collector has yet to delete."""
        return self.state().dropped

    def state(self) -> CatalogState:
        """The newest state that was read; does not ask the store."""
        return self._log.view.state

    def topics(self) -> Mapping[str, TopicEntry]:
        """The live topics in the newest state that was read, sorted by name."""
        return self.state().topics()

    def by_id(self, topic_id: UUID) -> TopicEntry | None:
        """The topic of this id, live or deleted, in the newest state that was read; None if unknown."""
        return self.state().entries.get(topic_id)

    def refresh(self, *, dated: bool = False) -> CatalogState:
        """Read the current state: one conditional GET if nothing changed. Raises StoreUnavailableError."""
        return self._log.refresh(dated=dated).state

    def create(
        self,
        name: str,
        partition_count: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
        next_producer_id: int = 0,
    ) -> TopicEntry:
        """Create a topic with a fresh hash key, and a fresh id unless `topic_id` is given.

        The same commit takes all producer ids below `next_producer_id`: those of batches that the topic
        brings.

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
        with self._change_lock:
            self._log.commit(lambda state: judge_create(state, create, next_producer_id))
            self._fold_if_needed()
        return self.state().entries[create.topic_id]

    def alter(
        self,
        topic_id: UUID,
        *,
        partition_count: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> TopicEntry:
        """Replace a topic's configuration, or raise its number of partitions, or both.

        Raises UnknownTopicOrPartitionError, InvalidRequestError if the number would shrink.
        """
        with self._change_lock:
            landed = self._log.commit(lambda state: judge_alter(state, topic_id, partition_count, config))
            self._fold_if_needed()
        return landed.outcome

    def alter_config(
        self, topic_id: UUID, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> TopicEntry:
        """Replace a topic's configuration with `change` of the current one, as `alter_server_config` does.

        Raises UnknownTopicOrPartitionError.
        """

        def judge(state: CatalogState) -> Judgement[TopicEntry]:
            return judge_alter(state, topic_id, None, change(require_topic(state, topic_id).config))

        with self._change_lock:
            landed = self._log.commit(judge)
            self._fold_if_needed()
        return landed.outcome

    def alter_server_config(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Replace the server's configuration with `change` of the current one; returns the new one.

        `change` is called again when another commit lands first. Its exceptions pass through, with nothing
        committed. Raises StoreError; after StoreUnavailableError the outcome is unknown.
        """
        with self._change_lock:
            landed = self._log.commit(lambda state: judge_configure(state, change(state.server_config)))
            self._fold_if_needed()
        return landed.outcome

    def take_producer_ids(self, count: int) -> range:
        """Take the next producer ids, which no other call gets, whatever becomes of this one.

        Raises StoreError; after StoreUnavailableError the ids may be taken, and remain unused.
        """
        with self._change_lock:
            landed = self._log.commit(lambda state: judge_take_producer_ids(state, count))
            self._fold_if_needed()
        return landed.outcome

    def delete(self, topic_id: UUID) -> None:
        """Mark a topic as deleted, which frees its name. Does nothing if it is deleted already.

        Raises UnknownTopicOrPartitionError.
        """
        with self._change_lock:
            self._log.commit(lambda state: judge_delete(state, topic_id, self._clock.now_ms()))
            self._fold_if_needed()

    def confirm(self, entries: Iterable[TopicEntry]) -> int:
        """Read the catalog and return its commit number, for a destructive action.

        Raises PreconditionFailedError if one of these entries has changed: decide again then.
        """
        state = self.refresh()
        for entry in entries:
            if state.entries.get(entry.topic_id) != entry:
                raise PreconditionFailedError(
                    "the topic has changed since this was decided; decide again",
                    topic=entry.name,
                    catalog_seq=state.seq,
                )
        return state.seq

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

    def forget(self, names: Iterable[str]) -> tuple[str, ...]:
        """Remove files from the list of dropped ones; returns those that were on it."""
        wanted = tuple(names)
        with self._change_lock:
            return self._log.commit(lambda state: judge_forget(state, wanted)).outcome

    def fold(self) -> int | None:
        """Move the head's commits into a checkpoint; returns the fold's commit number, or None if there was
        nothing to fold.
        """
        with self._change_lock:
            return self._folder.fold()

    def check(self) -> None:
        self._log.check()
        self.state().check()

    def _fold_if_needed(self) -> None:
        if not self._log.settings.fold_by_itself or not self._folder.is_due():
            return
        try:
            self._folder.fold()
        except StoreError:
            pass  # The change is committed, and the next one tries to fold again.


def judge_create(state: CatalogState, create: CreateTopic, next_producer_id: int = 0) -> Judgement[None]:
    """Valid if the name is free. Also takes the producer ids below `next_producer_id`."""
    same_id = state.entries.get(create.topic_id)
    if same_id is not None and same_id.name == create.name and not same_id.is_deleted:
        return Judgement((), None)  # an earlier attempt of this call landed
    if same_id is not None or state.named(create.name) is not None:
        raise TopicAlreadyExistsError("the topic is there already; choose another name", topic=create.name)
    require_topic_name(create.name, state.topics())
    takes_ids = next_producer_id > state.next_producer_id
    return Judgement((create, TakeProducerIds(next_producer_id)) if takes_ids else (create,), None)


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


def judge_delete(state: CatalogState, topic_id: UUID, now_ms: int) -> Judgement[None]:
    """Valid for a known topic."""
    known = state.entries.get(topic_id)
    if known is not None and known.is_deleted:
        return Judgement((), None)
    require_topic(state, topic_id)
    expired = sorted(
        entry.topic_id
        for entry in state.entries.values()
        if entry.deleted_ms is not None and entry.deleted_ms + DELETED_TOPIC_KEPT_MS < now_ms
    )
    return Judgement((DeleteTopic(topic_id, tuple(expired)),), None)


def require_topic(state: CatalogState, topic_id: UUID) -> TopicEntry:
    """The live topic of this id. Raises UnknownTopicOrPartitionError."""
    entry = state.entries.get(topic_id)
    if entry is None or entry.is_deleted:
        raise UnknownTopicOrPartitionError("there is no such topic; list the topics", topic_id=topic_id)
    return entry
