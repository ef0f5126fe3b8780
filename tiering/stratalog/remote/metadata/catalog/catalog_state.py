"""The catalog after some commit, and how commits and checkpoints produce it."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import cast
from uuid import UUID

from stratalog.remote.json_document import JsonFields, to_integer, to_row, to_text
from stratalog.remote.metadata.catalog.catalog_actions import (
    CATALOG_ACTIONS,
    AlterTopic,
    ConfigureServer,
    CreateTopic,
    DeleteTopic,
    FencePartition,
    TakeProducerIds,
    format_hash_key,
    parse_config,
    parse_hash_key,
)
from stratalog.remote.metadata.catalog.topic_entry import MAX_PARTITION_COUNT, TopicEntry
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder, CheckpointRoot
from stratalog.remote.metadata.head.checkpoint_page import Row, RowKey
from stratalog.remote.metadata.head.checkpoint_writer import CheckpointChanges
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.head_actions import COMMON_VERSIONS, Action, ActionTable
from stratalog.remote.metadata.head.head_state import (
    HeadState,
    after_action,
    after_commit,
    all_changed,
    contradiction,
    unfolded,
)
from stratalog.remote.metadata.head.metadata_version import ActionVersions
from stratalog.remote.metadata.head.page_loader import RunAll
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.head.state_fields import changes_of, common_from_checkpoint, simple_change

TOPICS = "topics"
_SERVER_CONFIG = "server_config"
_NEXT_PRODUCER_ID = "next_producer_id"
_TOPIC_COLUMNS = ("topic_id", "name", "partition_count", "config", "hash_key", "deleted_ms", "fencing_tokens")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CatalogState(HeadState):
    """The topics of a store after one commit. Immutable, so thread-safe."""

    entries: PersistentMap[UUID, TopicEntry] = dataclasses.field(
        default_factory=PersistentMap[UUID, TopicEntry]
    )
    """All topics by id, including those deleted in the last 30 days."""
    server_config: Mapping[str, str] = dataclasses.field(default_factory=lambda: MappingProxyType({}))
    """Keys of the server that were altered at run time, as text."""
    next_producer_id: int = 0
    """Ids below are taken: given to a producer, wasted, or those of imported batches."""

    def topics(self) -> Mapping[str, TopicEntry]:
        found = {entry.name: entry for entry in self.entries.values() if not entry.is_deleted}
        return MappingProxyType(dict(sorted(found.items())))

    def named(self, name: str) -> TopicEntry | None:
        return next((x for x in self.entries.values() if x.name == name and not x.is_deleted), None)

    def check(self) -> None:
        names = [entry.name for entry in self.entries.values() if not entry.is_deleted]
        assert len(names) == len(set(names)), "no two live topics share a name"
        for topic_id, entry in self.entries.items():
            assert entry.topic_id == topic_id, "a topic is found under its id"
        self.check_bookkeeping()


class CatalogMachine:
    """Applies the actions of the catalog to its state. Thread-safe: it holds nothing."""

    @property
    def table(self) -> ActionTable:
        return CATALOG_ACTIONS

    @property
    def versions(self) -> ActionVersions:
        return COMMON_VERSIONS

    def empty(self) -> CatalogState:
        return CatalogState()

    def apply(self, state: CatalogState, commit: Commit, root: CheckpointRoot | None) -> CatalogState:
        """The state after `commit`. Raises StoreCorruptError."""
        state = after_commit(state, commit)
        for action in commit.actions:
            state = _apply_action(state, action, commit, root)
        return state

    def read_ahead(self, commits: Sequence[Commit], run_all: RunAll) -> AbstractContextManager[None]:
        """Nothing: a commit says all about itself."""
        return nullcontext()

    def live_objects(self, state: CatalogState) -> Container[str]:
        """None: the catalog has no objects."""
        return ()

    def brought_by(self, commit: Commit) -> Iterable[str]:
        return ()

    def to_checkpoint(self, state: CatalogState) -> CheckpointChanges:
        rows: dict[RowKey, Row | None] = {}
        for topic_id in state.changed_keys(TOPICS):
            entry = state.entries.get(cast("UUID", topic_id))
            rows[(str(topic_id),)] = None if entry is None else _format_topic(entry)
        fields: dict[str, object] = {
            _SERVER_CONFIG: dict(state.server_config),
            _NEXT_PRODUCER_ID: state.next_producer_id,
        }
        return changes_of(state, fields, {TOPICS: simple_change(_TOPIC_COLUMNS, rows)})

    def from_checkpoint(self, folder: CheckpointFolder, root: CheckpointRoot) -> CatalogState:
        """The state that a checkpoint holds. Raises StoreError."""
        common = common_from_checkpoint(folder, root, (_SERVER_CONFIG, _NEXT_PRODUCER_ID))
        topics = map(_parse_topic, folder.rows(root, TOPICS))
        return CatalogState(
            **common,
            entries=PersistentMap((entry.topic_id, entry) for entry in topics),
            server_config=parse_config(root.fields, _SERVER_CONFIG),
            next_producer_id=root.fields.integer(_NEXT_PRODUCER_ID),
        )

    def rebased(self, state: CatalogState, folder: CheckpointFolder, root: CheckpointRoot) -> CatalogState:
        return dataclasses.replace(state, changed=unfolded(state, root.ref.seq))

    def detached(self, state: CatalogState) -> CatalogState:
        return dataclasses.replace(state, changed=all_changed(state, {TOPICS: tuple(state.entries)}))


def _apply_action(
    state: CatalogState, action: Action, commit: Commit, root: CheckpointRoot | None
) -> CatalogState:
    match action:
        case CreateTopic():
            return _apply_create(state, action, commit)
        case AlterTopic():
            entry = _existing(state, action.topic_id, commit)
            altered = dataclasses.replace(entry, partition_count=action.partition_count, config=action.config)
            return _with_entry(state, altered)
        case DeleteTopic():
            entry = _existing(state, action.topic_id, commit)
            state = _with_entry(state, dataclasses.replace(entry, deleted_ms=commit.time_ms))
            return _without(state, action.expired)
        case ConfigureServer():
            return dataclasses.replace(state, server_config=action.config)
        case FencePartition():
            return _apply_fence(state, action, commit)
        case TakeProducerIds():
            return _apply_take(state, action, commit)
        case _:
            return after_action(state, action, commit, root)


def _apply_create(state: CatalogState, create: CreateTopic, commit: Commit) -> CatalogState:
    if create.topic_id in state.entries or state.named(create.name) is not None:
        raise contradiction(commit, "it creates a topic that is there", topic=create.name)
    return _with_entry(
        state,
        TopicEntry(
            name=create.name,
            topic_id=create.topic_id,
            partition_count=create.partition_count,
            config=create.config,
            hash_key=create.hash_key,
        ),
    )


def _apply_take(state: CatalogState, take: TakeProducerIds, commit: Commit) -> CatalogState:
    if take.next_producer_id <= state.next_producer_id:
        raise contradiction(
            commit, "it takes producer ids that are taken", next_producer_id=take.next_producer_id
        )
    return dataclasses.replace(state, next_producer_id=take.next_producer_id)


def _apply_fence(state: CatalogState, fence: FencePartition, commit: Commit) -> CatalogState:
    entry = _existing(state, fence.topic_id, commit)
    if fence.partition >= entry.partition_count:
        raise contradiction(
            commit,
            "it fences a partition that is not there",
            topic_id=fence.topic_id,
            partition=fence.partition,
        )
    tokens = dict(entry.fencing_tokens)
    tokens.pop(fence.partition, None)
    if fence.token:
        tokens[fence.partition] = fence.token
    return _with_entry(state, dataclasses.replace(entry, fencing_tokens=MappingProxyType(tokens)))


def _existing(state: CatalogState, topic_id: UUID, commit: Commit) -> TopicEntry:
    entry = state.entries.get(topic_id)
    if entry is None or entry.is_deleted:
        raise contradiction(commit, "it changes a topic that is not there", topic_id=topic_id)
    return entry


def _with_entry(state: CatalogState, entry: TopicEntry) -> CatalogState:
    entries = state.entries.evolve()
    entries[entry.topic_id] = entry
    changed = state.with_changed(TOPICS, (entry.topic_id,))
    return dataclasses.replace(state, entries=entries.finish(), changed=changed)


def _without(state: CatalogState, expired: tuple[UUID, ...]) -> CatalogState:
    entries = state.entries.evolve()
    for topic_id in expired:
        if topic_id in entries:
            entries.pop(topic_id)
    changed = state.with_changed(TOPICS, expired)
    return dataclasses.replace(state, entries=entries.finish(), changed=changed)


def _format_topic(entry: TopicEntry) -> Row:
    return (
        str(entry.topic_id),
        entry.name,
        entry.partition_count,
        dict(entry.config),
        format_hash_key(entry.hash_key),
        entry.deleted_ms,
        [[partition, token] for partition, token in sorted(entry.fencing_tokens.items())],
    )


def _parse_topic(row: JsonFields) -> TopicEntry:
    partition_count = row.integer("partition_count", minimum=1, maximum=MAX_PARTITION_COUNT)

    def parse_token(item: object, what: str) -> tuple[int, str]:
        partition, token = to_row(item, what, 2)
        return to_integer(partition, what, maximum=partition_count - 1), to_text(token, what)

    return TopicEntry(
        topic_id=row.uuid("topic_id"),
        name=row.text("name"),
        partition_count=partition_count,
        config=parse_config(row),
        hash_key=parse_hash_key(row),
        deleted_ms=row.optional_integer("deleted_ms"),
        fencing_tokens=MappingProxyType(dict(row.each("fencing_tokens", parse_token))),
    )
