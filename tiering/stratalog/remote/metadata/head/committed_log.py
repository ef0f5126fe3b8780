"""The part of a metadata log that a shard and the catalog share: its state, its clock, and the upkeep of its
files.

The store's clock decides about age: its `Date` comes with every head, is the same for all actors, and cannot
be set wrong on one of them. An actor whose own clock differs by more than `MAX_CLOCK_SKEW_MS` has a fault and
must delete and expire nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from stratalog.base.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCorruptError,
    StoreError,
    StoreUnavailableError,
)
from stratalog.remote.loading_cache import CacheStats
from stratalog.remote.metadata.head.checkpoint import CheckpointRoot, TimePoint
from stratalog.remote.metadata.head.document_ref import DocumentRef, DroppedObject, Replacement, TrackedFile
from stratalog.remote.metadata.head.fold import OVERDUE_FACTOR, Folder
from stratalog.remote.metadata.head.head import RESTORE
from stratalog.remote.metadata.head.head_actions import Action, BeginDeletion, Finalize
from stratalog.remote.metadata.head.head_judge import (
    deletions_before,
    judge_begin_deletion,
    judge_finish_list,
    judge_forget,
    judge_pin,
    judge_pin_commit,
    judge_raise_horizon,
    judge_renew_pin,
    judge_trim_history,
    judge_unpin,
    judge_unpin_expired,
)
from stratalog.remote.metadata.head.head_log import (
    ComparedClocks,
    HeadLog,
    Judgement,
    Landed,
    Prepared,
    View,
)
from stratalog.remote.metadata.head.head_state import HeadState, WaitingFiles
from stratalog.remote.metadata.head.history import predecessor_of
from stratalog.remote.metadata.head.metadata_version import FIRST_VERSION, METADATA_VERSION
from stratalog.remote.metadata.head.page_loader import DiskUpkeep
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout, first_seq_of_history

logger = logging.getLogger(__name__)

R = TypeVar("R")
S = TypeVar("S", bound=HeadState)
MAX_CLOCK_SKEW_MS = 5 * 60 * 1000
_ROOT_ATTEMPTS = 5
_NAMES_AT_ONCE = 500
"""Names of files in one commit, which is small."""


class References(NamedTuple):
    """The files that a head refers to. Immutable."""

    live: Container[str]
    """Live data objects."""
    dropped: Container[str]
    """Files that wait to be deleted, those that pins hold among them, but for those of `replaced`."""
    replaced: Container[str]
    """Files that folds replaced, and that wait likewise."""
    others: frozenset[str]
    """The objects that inline commits bring, the checkpoint and its pages, the newest history file."""
    history: DocumentRef | None
    history_start_seq: int

    def has(self, name: str) -> bool:
        """Whether the head refers to a file of this name, apart from older history."""
        found = (self.live, self.dropped, self.others, self.replaced)
        return any(name in names for names in found)


class CommittedLog(Generic[S]):
    """A log of commits and the state that follows. Thread-safe: `HeadLog` makes one commit at a time, and
    `_fold_lock` admits one fold; `state` never waits."""

    def __init__(self, log: HeadLog[S]) -> None:
        self._log = log
        self._folder = Folder(log)
        self._fold_lock = threading.Lock()
        self._waiting: set[type[Action]] = set()
        """Types of actions that wait for a finalized version, as far as the log has said so."""

    @property
    def layout(self) -> StoreLayout:
        return self._log.layout

    @property
    def identity(self) -> StoreIdentity:
        """The identity of the store as it was read when the log was opened."""
        return self._log.identity

    @property
    def store_url(self) -> str:
        return self._log.store.url

    @property
    def store_date_ms(self) -> int:
        """Time of the store's clock when the head was last read in full; `refresh(dated=True)` does so
        now.
        """
        return self._log.view.date_ms

    @property
    def clock_skew_ms(self) -> int:
        return self._log.clock_skew_ms

    @property
    def compared_clocks(self) -> ComparedClocks:
        """The last comparison of the own clock with the store's."""
        return self._log.compared_clocks

    @property
    def commit_failure(self) -> StoreError | None:
        """Why the last commit of this process failed at the store; None if it landed."""
        return self._log.commit_failure

    @property
    def is_clock_trusted(self) -> bool:
        """Whether the own clock agrees with the store's; if not, nothing may be deleted or expired."""
        return abs(self.clock_skew_ms) <= MAX_CLOCK_SKEW_MS

    @property
    def have_clocks_agreed(self) -> bool:
        """Whether the clocks agreed when they were last compared, which may be long ago."""
        return abs(self.compared_clocks.skew_ms) <= MAX_CLOCK_SKEW_MS

    @property
    def expected_date_ms(self) -> int | None:
        """The time that the store's clock has by now, without a request: the time of its last answer, and
        what the monotonic clock has counted since. None if there was no answer yet, or if the own clock
        differs from that by more than `MAX_CLOCK_SKEW_MS`."""
        skew_ms = self._log.expected_skew_ms
        if skew_ms is None or abs(skew_ms) > MAX_CLOCK_SKEW_MS:
            return None
        return self._log.expected_date_ms

    @property
    def waiting_files(self) -> WaitingFiles:
        """The files that the collector has yet to delete."""
        return self.state().waiting_files

    @property
    def page_cache_stats(self) -> CacheStats:
        """The cache of checkpoint pages in memory, which the logs of a process share."""
        return self._log.checkpoints.loader.stats

    @property
    def page_disk_stats(self) -> CacheStats | None:
        """The cache of checkpoint pages on disk, which they share, too; None without one."""
        return self._log.checkpoints.loader.disk_stats

    def keep_pages(self, max_count: int) -> DiskUpkeep:
        """Make the cache on disk have the pages of the newest checkpoint at hand, and no older ones; fetches
        at most `max_count` of them. Raises ObjectNotFoundError if the head at hand is too old, StoreError."""
        _, root = self._read_root()
        if root is None:
            return DiskUpkeep()
        checkpoints = self._log.checkpoints
        return checkpoints.loader.keep_on_disk(
            checkpoints.store, self.layout, root.pages, root.ref.seq, max_count
        )

    @property
    def finalized_version(self) -> int:
        """The metadata version up to which commits may have actions, by the newest head at hand."""
        return self._log.view.head.write_version

    def is_finalized(self, action: type[Action]) -> bool:
        """Whether the finalized version has actions of this type; if not, a commit of one is refused. Says in
        the log, once for each type, that this waits for an operator.
        """
        if self._has_version_of(action):
            return True
        needed_version = self._log.machine.versions[action]
        if action not in self._waiting:
            self._waiting.add(action)
            logger.warning(
                "%s: metadata version %d is finalized, so that older software may come back, and `%s` is of"
                " version %d: this waits for `stratalog tier finalize`",
                self.layout.prefix.rstrip("/"),
                self.finalized_version,
                action.__name__,
                needed_version,
            )
        return False

    def require_finalized(self, action: type[Action]) -> None:
        """Raise StoreNotUsableError if the finalized version has no actions of this type, as a commit of one
        would, by the newest head at hand.
        """
        self._log.require_finalized(self._log.view.head.write_version, [action])

    def _has_version_of(self, action: type[Action]) -> bool:
        return self._log.machine.versions.get(action, FIRST_VERSION) <= self.finalized_version

    def finalize(self) -> int:
        """Let commits have all actions that this software knows; returns the finalized version. Older
        software can neither read nor write the log from then on, and there is no way back. Raises StoreError.
        """
        self.refresh()

        def judge(state: S) -> Judgement[int]:
            # The version of a head only grows, and is never behind the one that this judgement is about.
            version = max(self.finalized_version, METADATA_VERSION)
            if version == self.finalized_version:
                return Judgement((), version)
            begun = () if self._has_version_of(BeginDeletion) else deletions_before(state)
            return Judgement((Finalize(version), *begun), version)

        return self._commit(judge).outcome

    def state(self) -> S:
        """The newest state at hand, without a request."""
        return self._log.view.state

    def refresh(self, *, dated: bool = False) -> S:
        """Read the current state: one conditional GET where nothing is new. Raises StoreUnavailableError."""
        return self._log.refresh(dated=dated).state

    def forget(self, names: Iterable[str]) -> tuple[str, ...]:
        """Take deleted files off the list of dropped files; returns the names that were on it."""
        wanted = sorted(set(names))
        forgotten: list[str] = []
        for start in range(0, len(wanted), _NAMES_AT_ONCE):
            part = wanted[start : start + _NAMES_AT_ONCE]
            forgotten += self._commit(partial(judge_forget, names=part)).outcome
        return tuple(forgotten)

    def finish_list(self, replacement: Replacement, kept: Sequence[DroppedObject]) -> None:
        """Forget a replacement whose files are deleted, but for `kept`, which wait as dropped files of their
        own from now on. Does nothing if it is forgotten already."""
        self._commit(partial(judge_finish_list, root_name=replacement.name, kept=kept))

    def begin_deletion(self, files: Sequence[DroppedObject | Replacement]) -> S:
        """Say that these files, which are dropped in a state of this log, are about to be deleted; returns a
        later state. What no pin of that state holds may be deleted. Before a metadata version is finalized
        that has pins of earlier commits, nothing has to be said.
        """
        # The files come from a state before this look at the version.
        if files and self._has_version_of(BeginDeletion):
            self._commit(lambda state: judge_begin_deletion(state, files))
        return self.state()

    def raise_horizon(self, seq: int) -> int:
        """Refuse from now on what was born before commit `seq`; returns the horizon, which may be higher.

        Raises PreconditionFailedError if there is no such commit yet.
        """
        return self._commit(lambda state: judge_raise_horizon(state, seq)).outcome

    def trim_history(self, before: int, files: Sequence[TrackedFile]) -> tuple[TrackedFile, ...]:
        """Drop history before the commit `before`, but none that a pinned state needs; returns those of
        `files`, the known history files, that are dropped.
        """
        trimmed: list[TrackedFile] = []
        waiting = sorted(files, key=lambda file: file.name)
        while len(waiting) > _NAMES_AT_ONCE:
            part, waiting = waiting[:_NAMES_AT_ONCE], waiting[_NAMES_AT_ONCE:]
            first_kept = min(first_seq_of_history(waiting[0].name), before)
            trimmed += self._commit(partial(judge_trim_history, before=first_kept, files=part)).outcome
        trimmed += self._commit(partial(judge_trim_history, before=before, files=waiting)).outcome
        return tuple(trimmed)

    def pin(self, holder: str, until_ms: int) -> int:
        """Keep every file that is live now, until `until_ms` by the store's clock; returns the commit that
        identifies the pin.

        `holder` names the job to operators, and no other job uses the same name. After
        StoreUnavailableError the call may be repeated: it returns the pin of the first call if that landed.
        """
        return self._commit(lambda state: judge_pin(state, holder, until_ms)).outcome

    def pin_commit(self, holder: str, until_ms: int, state_seq: int) -> int:
        """Keep every file of the state after commit `state_seq`, until `until_ms` by the store's clock.
        Returns the commit that identifies the pin. A holder has one pin of a state: a later call moves its
        end.

        Raises PreconditionFailedError if files of that state may be deleted, StoreNotUsableError before a
        metadata version is finalized that has this action.
        """
        try:
            return self._commit(lambda state: judge_pin_commit(state, holder, until_ms, state_seq)).outcome
        except PreconditionFailedError as error:
            raise PreconditionFailedError(error.message, log=self.layout.prefix, **error.fields) from error

    def renew_pin(self, pin: int, until_ms: int) -> None:
        """Move the end of a pin. Raises PreconditionFailedError if it has ended."""
        self._commit(lambda state: judge_renew_pin(state, pin, until_ms))

    def unpin(self, pin: int) -> None:
        """End a pin. Does nothing if it has ended."""
        self._commit(lambda state: judge_unpin(state, (pin,)))

    def unpin_expired(self, now_ms: int) -> tuple[int, ...]:
        """End the pins whose time is over at `now_ms`, by the store's clock; returns their commits."""
        return self._commit(lambda state: judge_unpin_expired(state, now_ms)).outcome

    def seq_at(self, time_ms: int) -> int:
        """A commit that was made by this time, as new as the head and its checkpoint tell; 0 if there is
        none. Raises StoreError.
        """
        view = self._log.view
        inline = [commit.seq for commit in view.head.commits if commit.time_ms <= time_ms]
        if inline:
            return inline[-1]
        _, root = self._read_root()
        times = () if root is None else root.times
        return max((point.seq for point in times if point.time_ms <= time_ms), default=0)

    def commit_times(self) -> Sequence[TimePoint]:
        """Commits and their times, as many as the head and its checkpoint tell, oldest first. `seq_at` goes
        by no others. Raises StoreError."""
        view, root = self._read_root()
        inline = (TimePoint(seq=commit.seq, time_ms=commit.time_ms) for commit in view.head.commits)
        return sorted((*(() if root is None else root.times), *inline), key=attrgetter("seq"))

    def references(self, names_of: Callable[[Sequence[Replacement]], Container[str]]) -> References:
        """Read the current head, and return the files that it refers to. `names_of`: returns the names of the
        files of replacements.

        Raises StoreNotUsableError if newer software has committed actions that may refer to others.
        """
        self._log.refresh()
        view, root = self._read_root()
        self._log.require_writable(view)
        others = {name for commit in view.head.commits for name in self._log.machine.brought_by(commit)}
        if root is not None:
            others.update(file.name for file in root.files)
        if view.state.history is not None:
            others.add(view.state.history.name)
        # A head that is rebuilt may have a list whose root no later list has.
        others.update(one.name for one in view.state.replacements)
        return References(
            live=self._log.machine.live_objects(view.state),
            dropped=view.state.dropped_objects,
            replaced=names_of(view.state.replacements),
            others=frozenset(others),
            history=view.state.history,
            history_start_seq=view.state.history_start_seq,
        )

    def history_before(self, name: str) -> str | None:
        """The name of the history file before this one; None for the first. Raises ObjectNotFoundError,
        StoreError.
        """
        return predecessor_of(self._log.store, self.layout, name)

    def fold(self) -> int | None:
        """Move the head's commits into a checkpoint. Returns the fold's commit number; None if nothing
        to do.
        """
        with self._fold_lock:
            return self._folder.fold()

    def fold_at_once(self) -> None:
        """Fold what must not be lost with the head. A failure is logged, and the next fold makes up for
        it."""
        try:
            self.fold()
        except StoreError as error:
            folder = self.layout.prefix.rstrip("/")
            logger.warning("the head of %s could not be folded; a later pass tries again: %s", folder, error)

    def fold_if_needed(self) -> int | None:
        with self._fold_lock:
            return self._folder.fold() if self._folder.is_due() else None

    def check(self) -> None:
        self._log.check()

    def _commit(
        self,
        judge: Callable[[S], Judgement[R]],
        *,
        epoch: int | None = None,
        prepared: Prepared[S, R] | None = None,
    ) -> Landed[R]:
        """Commit, in as many commits as the judge divides it into. The result is that of the last one, which
        `has_committed` if any of them did. `prepared` as in `HeadLog.commit`."""
        has_committed = False
        while True:
            if self._log.settings.fold_by_itself and self._folder.is_overdue():
                self._fold_before_commit()
            landed = self._log.commit(judge, epoch=epoch, prepared=prepared)
            has_committed = has_committed or landed.has_committed
            if landed.is_whole:
                return dataclasses.replace(landed, has_committed=has_committed)

    def _fold_before_commit(self) -> None:
        """Fold, or wait for the fold of another thread. A failure is not the caller's: the commit goes on,
        and the next one folds again.
        """
        folder = self.layout.prefix.rstrip("/")
        logger.warning(
            "the head of %s is %d times beyond its limits, so a commit waits for a fold",
            folder,
            OVERDUE_FACTOR,
        )
        try:
            with self._fold_lock:
                if self._folder.is_overdue():
                    self._folder.fold()
        except StoreError as error:
            logger.warning(
                "the head of %s could not be folded; the next commit tries again: %s", folder, error
            )

    def _read_root(self) -> tuple[View[S], CheckpointRoot | None]:
        """A view with the root of its checkpoint. A root that is missing under an old head was replaced."""
        for _ in range(_ROOT_ATTEMPTS):
            view = self._log.view
            if view.head.checkpoint is None:
                return view, None
            try:
                return view, self._log.checkpoints.root(view.head.checkpoint)
            except ObjectNotFoundError as error:
                if self._log.refresh() is view:
                    raise StoreCorruptError(
                        f"the checkpoint that the head refers to is missing; {RESTORE}", **error.fields
                    ) from error
        raise StoreUnavailableError(
            "the head changes faster than its checkpoint can be read; try again", key=self.layout.head_key
        )
