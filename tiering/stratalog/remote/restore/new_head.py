"""Puts the first head of a log whose state is known: of one that has lost its head, or of a new store.

A checkpoint of the same log is built on, as by a fold: only pages with changes are read and written. Pages
and root come first, the head last and only if there is none. So a crash at any operation leaves files that
nothing refers to, and the next attempt begins anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from stratalog.base.errors import ObjectNotFoundError, PreconditionFailedError, StoreUnavailableError
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder, CheckpointRoot
from stratalog.remote.metadata.head.checkpoint_writer import CheckpointWriter
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import DocumentRef
from stratalog.remote.metadata.head.fold import fold_to
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_actions import Action, ListedFold
from stratalog.remote.metadata.head.head_log import CommitSettings, StateMachine, StoreActor
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.metadata_version import METADATA_VERSION
from stratalog.remote.store_layout import StoreLayout

S = TypeVar("S", bound=HeadState)


class Beginning(NamedTuple):
    """The references of a new head besides its checkpoint, and the further actions of its first commit."""

    history: DocumentRef | None = None
    """The newest history file; commits before the new head stay readable there."""
    root: CheckpointRoot | None = None
    """The checkpoint that the state was read from, of the same log. Its files are dropped, but for pages that
    the new one shares."""
    actions: Sequence[Action] = ()
    metadata_version: int = METADATA_VERSION
    """The finalized version; that of a new log by default."""


def put_new_head(
    actor: StoreActor, layout: StoreLayout, machine: StateMachine[S], state: S, beginning: Beginning
) -> Head:
    """Write the checkpoint of `state`, then a head that begins with it; returns the head.

    Raises PreconditionFailedError if there is a head by now, StoreUnavailableError if the outcome is unknown.
    """
    # Files that earlier commits dropped may be deleted, and none of them is known. So no pin can say that it
    # keeps its state: a lost commit may have ended it.
    state = dataclasses.replace(state, deleted_seq=state.seq, deleted_brought_seq=state.seq, pins=())
    folder = CheckpointFolder(actor.store, layout, actor.loader)
    writer = CheckpointWriter(folder, actor.ids, actor.identity.store_id, CommitSettings().page_rows)
    known, version = beginning.root, beginning.metadata_version
    if known is not None and not _is_replaced(state, known):
        root = writer.write(state.seq, machine.to_checkpoint(state), known, metadata_version=version)
    else:
        # Pages of another log, or pages that a later fold has dropped, cannot be shared.
        files = () if known is None else known.files
        replaced = tuple(file for file in files if file.name not in state.dropped_objects)
        changes = machine.to_checkpoint(machine.detached(state))
        root = writer.write(state.seq, changes, None, replaced=replaced, metadata_version=version)
    is_listed = version >= machine.versions[ListedFold]
    fold = fold_to(root, beginning.history, None if known is None else known.ref.name, is_listed=is_listed)
    actions = (fold, *beginning.actions)
    commit = Commit.build(state.seq + 1, actor.ids.uuid(), state.time_ms, actor.writer, None, actions)
    assert state.uuid is not None, "a state with commits"
    before = Head(
        store_id=actor.identity.store_id,
        shard=layout.shard,
        uuid=state.uuid,
        seq=state.seq,
        read_version=version,
        write_version=version,
    )
    head = before.after(commit, machine.apply(state, commit, root))
    _put(actor, layout, head, machine)
    return head


def _is_replaced(state: HeadState, known: CheckpointRoot) -> bool:
    """Whether a fold behind a checkpoint, up to the state, has dropped files of it."""
    later = (one for one in state.replacements if one.seq > known.ref.seq and one.name != known.ref.name)
    return any(later) or any(file.name in state.dropped_objects for file in known.files)


def _put(actor: StoreActor, layout: StoreLayout, head: Head, machine: StateMachine[S]) -> None:
    key, data = layout.head_key, head.encode()
    ask = partial(actor.store.get, key)
    try:
        actor.store.put(key, data, if_absent=True)
    except (PreconditionFailedError, StoreUnavailableError) as error:
        try:
            _, found = Head.decode_answer(ask(), ask, key, machine.table)
        except ObjectNotFoundError:
            raise StoreUnavailableError(
                "the store did not take the new head; run the command again", key=key
            ) from error
        if found.data != data:
            raise PreconditionFailedError(
                "there is a head by now, and it stays as it is; another process has written it",
                key=key,
            ) from error
