"""The store's topics: a log of commits of its own, of the same kind as a shard's, without an owner.

Anybody may create, alter and delete; If-Match lets one change at a time through. A deleted topic stays for 30
days, marked, so that a shard can tell a deleted topic from one that it has not heard of: absent is not
deleted.

Whoever deletes records or partitions because of what stands here calls `confirm` or `confirm_deleted` just
before, and passes on the number that they return: the shard refuses it where a newer one has been used.
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
)
from stratalog.remote.metadata.catalog.catalog_actions import AlterTopic, CreateTopic, DeleteTopic
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
from stratalog.remote.store_layout import StoreLayout


class Catalog:
    """Thread-safe. Changes of one instance come one after another; reads never wait."""

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
        """Read the catalog; create it where the store has never had one and this is no reader.

        `witness`: who else knows that it had, see `head_witness`. Raises StoreCorruptError where its head is
        lost, StoreNotUsableError where newer software is needed, StoreUnavailableError.
        """
        log = HeadLog(actor, StoreLayout(None), CatalogMachine(), settings)
        log.open(read_only=read_only, witness=witness)
        return Catalog(log, actor.clock)

    @property
    def layout(self) -> StoreLayout:
        return self._log.layout

    @property
    def seq(self) -> int:
        """Number of the newest commit at hand."""
        return self.state().seq

    @property
    def dropped(self) -> tuple[DroppedObject, ...]:
        """Files of the catalog that wait to be deleted."""
        return self.state().dropped

    def state(self) -> CatalogState:
        """The newest state at hand, without asking the store."""
        return self._log.view.state

    def topics(self) -> Mapping[str, TopicEntry]:
        """The topics at hand that are not deleted, by name, in the order of names."""
        return self.state().topics()

    def by_id(self, topic_id: UUID) -> TopicEntry | None:
        """The topic at hand with this id, deleted or not; None where the catalog knows none."""
        return self.state().entries.get(topic_id)

    def refresh(self, *, dated: bool = False) -> CatalogState:
        """The state of now: one conditional GET where nothing is new. Raises StoreUnavailableError."""
        return self._log.refresh(dated=dated).state

    def create(
        self,
        name: str,
        partition_count: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> TopicEntry:
        """Create a topic with an id and a hash key of its own.

        With a `topic_id`, a second call after StoreUnavailableError returns the topic that the first one
        made. Raises InvalidRequestError for a name or number that no topic may have, TopicAlreadyExistsError.
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
            self._log.commit(lambda state: judge_create(state, create))
            self._fold_if_needed()
        return self.state().entries[create.topic_id]

    def alter(
        self,
        topic_id: UUID,
        *,
        partition_count: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> TopicEntry:
        """Set a topic's whole configuration, or the number of its partitions, or both.

        Raises UnknownTopicOrPartitionError, InvalidRequestError where the number would shrink.
        """
        with self._change_lock:
            landed = self._log.commit(lambda state: judge_alter(state, topic_id, partition_count, config))
            self._fold_if_needed()
        return landed.outcome

    def alter_config(
        self, topic_id: UUID, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> TopicEntry:
        """Make of the topic's configuration, whatever it is when this is committed, what `change` makes of
        it; what that raises changes nothing. Raises UnknownTopicOrPartitionError.
        """

        def judge(state: CatalogState) -> Judgement[TopicEntry]:
            return judge_alter(state, topic_id, None, change(require_topic(state, topic_id).config))

        with self._change_lock:
            landed = self._log.commit(judge)
            self._fold_if_needed()
        return landed.outcome

    def delete(self, topic_id: UUID) -> None:
        """Mark a topic as deleted; its name is free. Nothing happens where it is so already.

        Raises UnknownTopicOrPartitionError.
        """
        with self._change_lock:
            self._log.commit(lambda state: judge_delete(state, topic_id, self._clock.now_ms()))
            self._fold_if_needed()

    def confirm(self, entries: Iterable[TopicEntry]) -> int:
        """Read the catalog again and return its number, to be passed to a destructive action.

        Raises PreconditionFailedError where one of these is not what the catalog says now: what was decided
        with it has to be decided again.
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
        """Read the catalog again and return its number where it says that the topic is deleted.

        Raises PreconditionFailedError where the topic lives, or the catalog does not know it.
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
        """Take deleted files off the list of dropped ones; returns those that were on it."""
        wanted = tuple(names)
        with self._change_lock:
            return self._log.commit(lambda state: judge_forget(state, wanted)).outcome

    def fold(self) -> int | None:
        """Move the head's commits into a checkpoint. The fold's commit number; None where there was nothing
        to do.
        """
        with self._change_lock:
            return self._folder.fold()

    def check(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        self._log.check()
        self.state().check()

    def _fold_if_needed(self) -> None:
        if not self._log.settings.fold_by_itself or not self._folder.is_due():
            return
        try:
            self._folder.fold()
        except StoreError:
            pass  # the change is made, and the next one tries to fold again


def judge_create(state: CatalogState, create: CreateTopic) -> Judgement[None]:
    """Valid while the name is free."""
    same_id = state.entries.get(create.topic_id)
    if same_id is not None and same_id.name == create.name and not same_id.is_deleted:
        return Judgement((), None)  # an earlier call of ours landed after all
    if same_id is not None or state.named(create.name) is not None:
        raise TopicAlreadyExistsError("the topic is there already; choose another name", topic=create.name)
    require_topic_name(create.name, state.topics())
    return Judgement((create,), None)


def judge_alter(
    state: CatalogState, topic_id: UUID, partition_count: int | None, config: Mapping[str, str] | None
) -> Judgement[TopicEntry]:
    """Valid while the topic lives. The outcome is the topic as it is then."""
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


def judge_delete(state: CatalogState, topic_id: UUID, now_ms: int) -> Judgement[None]:
    """Valid for a topic that the catalog knows."""
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
    """The topic, where it lives. Raises UnknownTopicOrPartitionError."""
    entry = state.entries.get(topic_id)
    if entry is None or entry.is_deleted:
        raise UnknownTopicOrPartitionError("there is no such topic; list the topics", topic_id=topic_id)
    return entry
