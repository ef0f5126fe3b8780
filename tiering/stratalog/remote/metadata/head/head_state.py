"""The part of a state that a shard and the catalog share: the bookkeeping of commits and of their files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar
from uuid import UUID

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.json_document import JsonObject
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import DocumentRef, DroppedObject, TrackedFile
from stratalog.remote.metadata.head.head_actions import Fold, Forget
from stratalog.remote.metadata.head.persistent_map import Evolution, PersistentMap


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeadState:
    """The state after commit `seq`, which is 0 before the first commit. Immutable."""

    seq: int = 0
    uuid: UUID | None = None
    """The uuid of commit `seq`; None before the first."""
    time_ms: int = 0
    """Wall time of commit `seq`, by its writer's clock."""
    epoch: int = 0
    orphan_horizon_seq: int = 0
    """Objects and checkpoints born before this commit are refused: an orphan sweep may have deleted them."""
    catalog_seq: int = 0
    """Highest catalog seq that an action was decided with."""
    checkpoint: DocumentRef | None = None
    history: DocumentRef | None = None
    """The newest history object."""
    dropped_objects: PersistentMap[str, DroppedObject] = dataclasses.field(
        default_factory=PersistentMap[str, DroppedObject]
    )
    pins: tuple[JsonObject, ...] = ()
    """Kept as they are; this version makes none."""
    unknown_action: str | None = None
    """Name of an action that this version skipped, so it must not write here."""
    extras: PersistentMap[tuple[str, tuple[str | int, ...]], JsonObject] = dataclasses.field(
        default_factory=PersistentMap[tuple[str, tuple[str | int, ...]], JsonObject]
    )
    """Columns of checkpoint rows that this version does not know, by kind and key of the row."""
    root_extras: Mapping[str, object] = dataclasses.field(default_factory=dict[str, object])
    """Fields of the checkpoint's root that this version does not know."""

    @property
    def folded_seq(self) -> int:
        """Commits up to this one are in the checkpoint, later ones in the head."""
        return 0 if self.checkpoint is None else self.checkpoint.seq

    @property
    def dropped(self) -> tuple[DroppedObject, ...]:
        return tuple(sorted(self.dropped_objects.values(), key=lambda dropped: (dropped.seq, dropped.name)))

    def is_deletable(self, dropped: DroppedObject) -> bool:
        """Whether opening the shard no longer needs the file: its commit has left the head.

        The collector decides about the grace period and pins.
        """
        return dropped.brought_seq <= self.folded_seq


S = TypeVar("S", bound=HeadState)

DELETED_TOPIC_KEPT_MS = 30 * 24 * 3600 * 1000
"""How long the catalog and the shards remember a deleted topic."""


def after_commit(state: S, commit: Commit) -> S:
    """Apply the bookkeeping of one more commit; its actions follow. Raises StoreCorruptError."""
    if commit.seq != state.seq + 1:
        raise StoreCorruptError(
            "commits are missing from the head; stop, keep everything and investigate",
            seq=commit.seq,
            expected=state.seq + 1,
        )
    return dataclasses.replace(
        state,
        seq=commit.seq,
        uuid=commit.uuid,
        time_ms=commit.time_ms,
        unknown_action=state.unknown_action or commit.unknown_action,
    )


def drop_file(
    dropped: Evolution[str, DroppedObject], file: TrackedFile, commit: Commit, brought_seq: int = 0
) -> None:
    """Put a file on the list of dropped files, which wait to be deleted."""
    if file.name in dropped:
        raise contradiction(commit, "it drops a file twice", name=file.name)
    dropped[file.name] = DroppedObject(
        name=file.name,
        size_bytes=file.size_bytes,
        seq=commit.seq,
        time_ms=commit.time_ms,
        kind=file.kind,
        brought_seq=brought_seq,
    )


def forget_files(dropped: Evolution[str, DroppedObject], forget: Forget, commit: Commit) -> None:
    """Take files off the list of dropped files."""
    for name in forget.names:
        if name not in dropped:
            raise contradiction(commit, "it forgets a file that was not dropped", name=name)
        dropped.pop(name)


def after_fold(state: S, fold: Fold, commit: Commit) -> S:
    """Apply a fold: another checkpoint, and the files that it replaces are dropped."""
    if fold.checkpoint.seq >= commit.seq:
        raise contradiction(
            commit, "its checkpoint is newer than the commit", checkpoint=fold.checkpoint.name
        )
    dropped = state.dropped_objects.evolve()
    for file in fold.dropped:
        drop_file(dropped, file, commit)
    return dataclasses.replace(
        state,
        checkpoint=fold.checkpoint,
        history=fold.history or state.history,
        dropped_objects=dropped.finish(),
    )


def contradiction(commit: Commit, what: str, **fields: object) -> StoreCorruptError:
    """The error for a commit that the state before it excludes."""
    return StoreCorruptError(
        f"commit {commit.seq} contradicts the state before it: {what}; stop, keep everything and investigate",
        uuid=commit.uuid,
        writer=commit.writer.id,
        **fields,
    )
