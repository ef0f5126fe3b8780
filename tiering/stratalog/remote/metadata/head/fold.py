"""Folding: the commits of a head move into a checkpoint and a history object.

A fold first writes its files under fresh names: the folded commits, the changed pages, the root. Then it
commits itself. Commits that other writers made meanwhile stay inline. A fold is given up in two cases:

- The checkpoint that it was built from is no longer the current one: it could share pages that another fold
  has dropped.
- It was born before the orphan horizon: an orphan sweep may have deleted its files.

The files of a given-up fold are orphans, which the collector sweeps.

A fold writes whole pages. Where partitions are small, few new slices touch nearly all pages: such a fold
waits until it writes at most `MAX_ROWS_WRITTEN` rows for each that has changed, or until the head is
`PATIENCE` times as large as its limits. So the tail in memory, the head, and the commits that an opening
shard reads stay bounded, whatever the partitions are like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from stratalog.base.errors import ObjectNotFoundError
from stratalog.remote.metadata.head.checkpoint import CheckpointRoot
from stratalog.remote.metadata.head.checkpoint_writer import CheckpointWriter
from stratalog.remote.metadata.head.document_ref import DocumentRef
from stratalog.remote.metadata.head.head_actions import Fold, ListedFold
from stratalog.remote.metadata.head.head_log import HeadLog, Judgement, Landed
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.history import write_history

S = TypeVar("S", bound=HeadState)
MAX_ROWS_WRITTEN = 32
"""Rows that a fold writes for each changed one, before the head is `PATIENCE` times beyond a limit."""
PATIENCE = 3
"""A fold waits until it pays, but no longer than to this many times a limit."""
OVERDUE_FACTOR = PATIENCE + 3
"""A commit waits for a fold where the head is this many times beyond a limit: commits go on for three limits
while the longest fold is made."""


@dataclass(frozen=True, slots=True)
class BuiltFold:
    """The files of a fold that is not committed yet. Immutable."""

    root: CheckpointRoot
    base: CheckpointRoot | None
    history: DocumentRef
    is_listed: bool
    """Whether the finalized metadata version leaves the replaced files to the root that names them."""

    @property
    def action(self) -> Fold:
        base_name = None if self.base is None else self.base.ref.name
        return fold_to(self.root, self.history, base_name, is_listed=self.is_listed)


def fold_to(root: CheckpointRoot, history: DocumentRef | None, base: str | None, *, is_listed: bool) -> Fold:
    """The action that makes a checkpoint the current one."""
    if not is_listed:
        return Fold(root.ref, history, base)
    size_bytes = sum(file.size_bytes for file in root.replaced)
    return ListedFold(root.ref, history, base, len(root.replaced), size_bytes)


class Folder(Generic[S]):
    """Folds one log. Not thread-safe: its user runs one fold at a time."""

    def __init__(self, log: HeadLog[S]) -> None:
        self._log = log
        self._writer = CheckpointWriter(
            log.checkpoints, log.ids, log.identity.store_id, log.settings.page_rows
        )

    def is_due(self) -> bool:
        """Whether the head has outgrown its limits, because every commit writes all of it again, and a fold
        of it pays. Raises StoreError."""
        if self._is_beyond(PATIENCE) or not self._is_beyond(1):
            return self._is_beyond(PATIENCE)
        try:
            return self._pays()
        except ObjectNotFoundError:
            # By an old head: another fold has replaced the checkpoint since, and a collector deleted it.
            self._log.refresh()
            return self._is_beyond(1) and self._pays()

    def is_overdue(self) -> bool:
        """Whether the head is so far beyond its limits that a commit has to wait for a fold."""
        return self._is_beyond(OVERDUE_FACTOR)

    def _pays(self) -> bool:
        """Whether a fold writes few enough rows for each that has changed: as many as the pages have that it
        touches, at most one for each changed row of the state."""
        view = self._log.view
        if view.head.checkpoint is None:
            return True
        pages = self._log.checkpoints.root(view.head.checkpoint).pages
        row_count = sum(page.row_count for page in pages)
        most_pages = MAX_ROWS_WRITTEN * view.state.unfolded_rows * len(pages) // max(row_count, 1)
        return len(pages) <= most_pages or not view.state.has_more_changed(most_pages)

    def _is_beyond(self, factor: int) -> bool:
        view, settings = self._log.view, self._log.settings
        return (
            len(view.head.commits) > settings.fold_inline_commits * factor
            or view.head.inline_bytes > settings.fold_inline_bytes * factor
            or view.state.unfolded_rows > settings.fold_unfolded_rows * factor
        )

    def fold(self) -> int | None:
        """Fold all known commits. Returns the fold's commit number; None if there was nothing to fold, or
        another fold came first.
        """
        built = self.build()
        if built is None:
            return None
        self._log.checkpoints.keep(built.root)
        landed: Landed[bool] = self._log.commit(lambda state: judge_fold(state, built))
        return landed.seq if landed.has_committed else None

    def build(self) -> BuiltFold | None:
        """Write checkpoint and history of the newest view; None if everything is folded. Raises
        StoreError.
        """
        log = self._log
        view = log.refresh()
        log.require_writable(view)
        # The last fold is a commit and stays inline; alone it is not worth another fold.
        actions = (action for commit in view.head.commits for action in commit.actions)
        if all(isinstance(action, Fold) for action in actions):
            return None
        current = view.head.checkpoint
        base = None if current is None else log.checkpoints.root_to_replace(current)
        history = write_history(log.store, log.layout, log.ids, view.head, view.head.commits)
        root = self._writer.write(
            view.state.seq,
            log.machine.to_checkpoint(view.state),
            base,
            metadata_version=view.head.write_version,
        )
        version = log.machine.versions[ListedFold]
        return BuiltFold(root, base, history, is_listed=view.head.write_version >= version)


def judge_fold(state: HeadState, built: BuiltFold) -> Judgement[bool]:
    """The outcome is whether the fold is valid."""
    is_valid = is_built_on_current(state, built) and is_born_in_time(state, built)
    return Judgement((built.action,) if is_valid else (), is_valid)


def is_born_in_time(state: HeadState, built: BuiltFold) -> bool:
    """Whether no orphan sweep may have deleted the fold's files."""
    return built.root.ref.seq >= state.orphan_horizon_seq


def is_built_on_current(state: HeadState, built: BuiltFold) -> bool:
    """Whether no other fold came first."""
    base = None if built.base is None else built.base.ref
    return state.checkpoint == base
