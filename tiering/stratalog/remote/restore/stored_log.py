"""The files of a metadata log, read without its head: checkpoints and history, by a listing.

A checkpoint is the true state at its commit even if its fold never committed, because a fold writes the state
of a committed head. So is a history file. Whatever is damaged is passed over, and said.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from stratalog.base.errors import ObjectNotFoundError, PreconditionFailedError, StoreCorruptError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.json_document import JsonFields
from stratalog.remote.lanes import in_lanes
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder, CheckpointRoot
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import DocumentRef, FileKind, newest_seq_of
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_actions import Action, ActionTable, Fold, Forget
from stratalog.remote.metadata.head.head_judge import judge_forget
from stratalog.remote.metadata.head.head_log import StateMachine
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.history import read_history
from stratalog.remote.metadata.head.metadata_version import FIRST_VERSION, METADATA_VERSION
from stratalog.remote.metadata.head.page_loader import PageLoader
from stratalog.remote.store_layout import StoreLayout, first_seq_of_history

S = TypeVar("S", bound=HeadState)
MAX_SEQ = (1 << 63) - 1
_Unreadable = (ObjectNotFoundError, StoreCorruptError)


class FoundState(NamedTuple, Generic[S]):
    """A state that checkpoints and history lead to."""

    state: S
    root: CheckpointRoot | None = None
    """The checkpoint that the state is built on, whose pages have its rows; None if it follows from history
    alone."""
    history: DocumentRef | None = None
    """The newest history file that the state has taken in."""
    metadata_version: int = METADATA_VERSION
    """The finalized version at the state; the newest one if no file tells of another."""


class StoredLog(Generic[S]):
    """The files of one log. Not thread-safe: one command uses it."""

    def __init__(
        self,
        store: ObjectStore,
        layout: StoreLayout,
        machine: StateMachine[S],
        loader: PageLoader | None = None,
    ) -> None:
        """`loader`: its threads read the pages of a checkpoint; without one they are read one by one."""
        self.store = store
        self.layout = layout
        self._machine = machine
        self._folder = CheckpointFolder(store, layout, loader or PageLoader())
        self.problems: list[str] = []
        """Damage that was passed over, a text for people each."""

    @property
    def table(self) -> ActionTable:
        return self._machine.table

    def head(self) -> Head | None:
        """The head; None if it is lost. Raises StoreCorruptError, StoreNotUsableError."""
        key = self.layout.head_key
        ask = partial(self.store.get, key)
        try:
            return Head.decode_answer(ask(), ask, key, self._machine.table)[0]
        except ObjectNotFoundError:
            return None

    def names(self, kind: FileKind) -> Iterator[str]:
        """The names of the files of a kind, in order."""
        prefix = kind.key(self.layout, "")
        for found in self.store.list(prefix):
            name = found.key.removeprefix(prefix)
            if kind.is_name(name):
                yield name

    def newest_seq(self) -> int:
        """The highest commit number in any name: no file tells of a later commit. 0 without files."""
        return max(
            (newest_seq_of(kind, name) for kind in FileKind for name in self.names(kind)),
            default=0,
        )

    def newest_checkpoint(self, at_most: int = MAX_SEQ) -> FoundState[S] | None:
        """The state of the newest whole checkpoint up to a commit; None if there is none."""
        for name in reversed([*self.names(FileKind.CHECKPOINT)]):
            if newest_seq_of(FileKind.CHECKPOINT, name) > at_most:
                continue
            with self._passing_over(f"checkpoint {name}"):
                return self._read_checkpoint(name)
        return None

    @contextmanager
    def _passing_over(self, what: str) -> Generator[None]:
        """Note damage of a file, and go on without it."""
        try:
            yield
        except _Unreadable as error:
            self.problems.append(f"{what} is passed over: {error}")

    def _read_checkpoint(self, name: str) -> FoundState[S]:
        ref = DocumentRef.of(name, self.store.get(self.layout.checkpoint_key(name)).data)
        root = self._folder.root(ref)
        # Every page is read once, and not kept: a damaged one passes the checkpoint over.
        in_lanes(self._folder.loader.run_all, root.pages, self._folder.read_page, lambda _, __: None)
        state = self._machine.from_checkpoint(self._folder, root)
        return FoundState(state, root, metadata_version=root.metadata_version)

    def history(self, after: int, up_to: int = MAX_SEQ) -> Iterator[tuple[DocumentRef, tuple[Commit, ...]]]:
        """The sound history files with a commit in (after, up_to], in the order of their commits."""
        for name in self.names(FileKind.HISTORY):
            if newest_seq_of(FileKind.HISTORY, name) <= after or first_seq_of_history(name) > up_to:
                continue
            with self._passing_over(f"history file {name}"):
                yield read_history(self.store, self.layout, name, self._machine.table)

    def commits(self, after: int, up_to: int = MAX_SEQ, head: Head | None = None) -> Mapping[int, Commit]:
        """The known commits in (after, up_to] by number, of history and of the head."""
        known = [commit for _, commits in self.history(after, up_to) for commit in commits]
        inline = () if head is None else head.commits
        return {commit.seq: commit for commit in (*known, *inline) if after < commit.seq <= up_to}

    def seq_at(self, head: Head, time_ms: int) -> int:
        """The newest commit that was made by this time; 0 if the log has none that old. Raises
        PreconditionFailedError if the history no longer reaches back that far.
        """
        oldest_seq = head.seq + 1
        for commits in (head.commits, *self._history_backwards(head.folded_seq)):
            for commit in reversed(commits):
                oldest_seq = commit.seq
                if commit.time_ms <= time_ms:
                    return commit.seq
        if oldest_seq > 1:
            raise PreconditionFailedError(
                "the history no longer reaches back to that time; choose a later one",
                log=self.layout.prefix,
                oldest_known_commit=oldest_seq,
            )
        return 0

    def _history_backwards(self, up_to: int) -> Iterator[tuple[Commit, ...]]:
        """The commits of the sound history files that end at or before a commit, the newest first."""
        names = [*self.names(FileKind.HISTORY)]
        for name in sorted(names, key=lambda one: newest_seq_of(FileKind.HISTORY, one), reverse=True):
            if newest_seq_of(FileKind.HISTORY, name) <= up_to:
                with self._passing_over(f"history file {name}"):
                    yield read_history(self.store, self.layout, name, self._machine.table)[1]

    def state_at(self, head: Head, seq: int) -> S:
        """The state after a commit, by checkpoint and history. Raises PreconditionFailedError if they no
        longer lead there, with the commit from which on they do not; ObjectNotFoundError if an object is gone
        that a commit brought.
        """
        state = self.checkpoint_before(head, seq)
        for commit in self.commits_between(head, state.seq, seq):
            state = self._after(state, commit)
        return state

    def _after(self, state: S, commit: Commit) -> S:
        """The state after one more commit. The root of a fold names the files that the fold replaced. Without
        that root they are unknown, unless the fold counts them for it: whatever is left of them is swept as
        orphans, and a later commit that forgets them has nothing to forget."""
        root: CheckpointRoot | None = None
        actions: list[Action] = []
        for action in commit.actions:
            if isinstance(action, Fold):
                root = self._root_of(action)
            if isinstance(action, Forget):
                known = judge_forget(state, action.names).outcome
                actions.append(Forget(known))
            else:
                actions.append(action)
        return self._machine.apply(state, dataclasses.replace(commit, actions=tuple(actions)), root)

    def _root_of(self, fold: Fold) -> CheckpointRoot:
        """The root of a fold's checkpoint; one without any file if it is gone or damaged."""
        ref = fold.checkpoint
        try:
            return self._folder.root(ref)
        except _Unreadable:
            return CheckpointRoot(ref=ref, fields=JsonFields({}, ref.name), pages=(), times=())

    def checkpoint_before(self, head: Head, seq: int) -> S:
        """The state of the newest whole checkpoint up to a commit of the head; the empty one if there is
        none. Raises PreconditionFailedError if there is no such commit.
        """
        if seq > head.seq:
            raise PreconditionFailedError(
                "there is no such commit yet; choose an earlier one",
                log=self.layout.prefix,
                commit=seq,
                newest_commit=head.seq,
            )
        found = self.newest_checkpoint(seq)
        return self._machine.empty() if found is None else found.state

    def commits_between(self, head: Head, after: int, up_to: int) -> list[Commit]:
        """All commits in (after, up_to]. Raises PreconditionFailedError if one is no longer known."""
        known = self.commits(after, up_to, head)
        missing_seq = next((seq for seq in range(after + 1, up_to + 1) if seq not in known), None)
        if missing_seq is not None:
            starts = [newest_seq_of(FileKind.CHECKPOINT, name) for name in self.names(FileKind.CHECKPOINT)]
            raise PreconditionFailedError(
                "the state at that commit cannot be built any more, because a commit before it is no longer"
                " in the history; choose a later one, such as that of a checkpoint",
                log=self.layout.prefix,
                commit=up_to,
                missing_commit=missing_seq,
                checkpoints=",".join(str(one) for one in starts if one > up_to) or "none",
            )
        return [known[seq] for seq in range(after + 1, up_to + 1)]

    def newest_state(self) -> FoundState[S] | None:
        """The newest state that checkpoints and history lead to; None if there are none."""
        found = self.newest_checkpoint()
        state = self._machine.empty() if found is None else found.state
        history = None if found is None else self._history_at(state.seq)
        version = FIRST_VERSION if found is None else found.metadata_version
        for ref, commits in self.history(state.seq):
            try:
                for commit in commits:
                    if commit.seq > state.seq:
                        state = self._after(state, commit)
                        version = max(version, commit.finalized_version)
            except _Unreadable as error:
                self.problems.append(f"commits from {state.seq + 1} on cannot be applied: {error}")
                break
            history = ref
        if state.seq == 0:
            return None
        if found is None and version == FIRST_VERSION:
            version = METADATA_VERSION
        return FoundState(state, None if found is None else found.root, history, version)

    def _history_at(self, seq: int) -> DocumentRef | None:
        """A sound history file that ends at this commit."""
        for ref, commits in self.history(seq - 1, seq):
            if commits[-1].seq == seq:
                return ref
        return None
