"""What the state of a shard and that of the catalog have in common: the bookkeeping of commits and of their
files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar
from uuid import UUID

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import DocumentRef, DroppedObject, TrackedFile
from stratalog.remote.metadata.head.json_document import JsonObject
from stratalog.remote.metadata.head.persistent_map import Evolution, PersistentMap
from stratalog.remote.metadata.shard.actions import Fold, Forget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """Immutable. The state after commit `seq`; before the first one it is 0."""

    seq: int = 0
    uuid: UUID | None = None
    """Of commit `seq`; None before the first."""
    time_ms: int = 0
    """Wall time of commit `seq`, by its writer's clock."""
    epoch: int = 0
    horizon: int = 0
    """Objects and checkpoints born before this commit number are not taken any more."""
    catalog_seq: int = 0
    """Highest catalog seq that an action has used."""
    checkpoint: DocumentRef | None = None
    history: DocumentRef | None = None
    """The newest history object."""
    dropped_objects: PersistentMap[str, DroppedObject] = dataclasses.field(
        default_factory=PersistentMap[str, DroppedObject]
    )
    pins: tuple[JsonObject, ...] = ()
    """Kept as they are: this version takes none."""
    unknown_action: str | None = None
    """Name of an action that this version skipped: it must not write here."""
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
        """Files that wait to be deleted, oldest drop first."""
        return tuple(sorted(self.dropped_objects.values(), key=lambda dropped: (dropped.seq, dropped.name)))

    def is_deletable(self, dropped: DroppedObject) -> bool:
        """Whether nobody needs the file to open the shard: the commit that brought it has left the head.

        The grace period and pins are the collector's to judge.
        """
        return dropped.brought_seq <= self.folded_seq


S = TypeVar("S", bound=LogState)


def after_commit(state: S, commit: Commit) -> S:
    """The state with the bookkeeping of one more commit done, before its actions. Raises
    StoreCorruptError.
    """
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
    """Put a file on the list of those that wait to be deleted."""
    if file.name in dropped:
        raise contradiction(commit, "it drops a file twice", name=file.name)
    dropped[file.name] = DroppedObject(
        file.name, file.size_bytes, commit.seq, commit.time_ms, file.kind, brought_seq
    )


def forget_files(dropped: Evolution[str, DroppedObject], forget: Forget, commit: Commit) -> None:
    """Take files off that list."""
    for name in forget.names:
        if name not in dropped:
            raise contradiction(commit, "it forgets a file that was not dropped", name=name)
        dropped.pop(name)


def after_fold(state: S, fold: Fold, commit: Commit) -> S:
    """The state with another checkpoint; the replaced files are dropped."""
    if fold.checkpoint.seq >= commit.seq:
        raise contradiction(commit, "its checkpoint is of the future", checkpoint=fold.checkpoint.name)
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
    """A commit says something that the state before it excludes."""
    return StoreCorruptError(
        f"commit {commit.seq} contradicts the state before it: {what}; stop, keep everything and investigate",
        uuid=commit.uuid,
        writer=commit.writer.id,
        **fields,
    )
