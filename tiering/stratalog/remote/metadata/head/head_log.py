"""The commit protocol: reads and replaces the head of a shard or of the catalog.

A view is a head with its ETag and the state that follows from it. To commit, a writer judges its actions
against the state of its view and puts a new head with If-Match on the view's ETag. Only a 200 is an answer.
Any other response, a refusal too, leaves the outcome unknown, because a proxy may have sent the request
twice. The writer settles it by reading the head:

    the commit's uuid is in it, or in the history since the view  ->  committed
    the ETag is still the view's                                  ->  send the same bytes again
    anything else                                                 ->  void: judge again on the new head

A put that is still on its way cannot land after that, since its ETag will never be current again. While the
store stays silent the outcome stays unknown, and StoreUnavailableError says so. The next commit has the same
ETag to match, so at most one of the two lands.

A writer judges on its newest view, which may be old. A refusal that follows from an old view does not count:
the head is read before anything is refused, reported as nothing to do, or raised.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogStoreError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.randomness import IdGenerator
from stratalog.objectstore.protocol import ObjectStore, StoredObject
from stratalog.remote.json_document import require_writable
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder, CheckpointRoot
from stratalog.remote.metadata.head.checkpoint_writer import CheckpointChanges
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.head.head import REBUILD, RESTORE, Head
from stratalog.remote.metadata.head.head_actions import Action, ActionTable, Fold
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.history import find_in_history
from stratalog.remote.metadata.head.metadata_version import (
    METADATA_VERSION,
    ActionVersions,
    require_finalized,
)
from stratalog.remote.metadata.head.page_loader import PageLoader, RunAll
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout, is_probe

S = TypeVar("S", bound=HeadState)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """How often a writer tries to commit, and when it folds. The defaults suit S3."""

    max_lost_races: int = 100
    """Commits of other writers that may come first before a commit gives up (default 100). A lost race costs
    one read of the head; raise it where very many processes write to one shard."""
    max_store_failures: int = 6
    """Failures of the store in a row before a commit or a settling read gives up (default 6, about 10 s)."""
    race_backoff_ms: int = 10
    """Upper bound of the first random pause after a lost race (default 10); doubles up to
    `max_race_backoff_ms`."""
    max_race_backoff_ms: int = 500
    failure_backoff_ms: int = 200
    """Upper bound of the first random pause after a failure of the store (default 200); doubles up to
    `max_failure_backoff_ms`."""
    max_failure_backoff_ms: int = 5_000
    fold_inline_bytes: int = 64 * 1024
    """Fold when the commits in the head are larger (default 64 KiB): every commit writes them again."""
    fold_inline_commits: int = 256
    """Fold when there are more of them (default 256): opening the shard reads the directory of each."""
    fold_unfolded_rows: int = 50_000
    """Fold when they have changed more rows of the state (default 50,000): these are in memory."""
    page_rows: int = 1_000
    """About the rows of a checkpoint page, which has half as many more at most (default 1,000, about 40 KiB
    of slices): a fold writes whole pages, and a reader reads whole pages."""
    fold_by_itself: bool = True
    """Whether a commit folds first where the head is far beyond a limit (default). Simulations fold by
    hand."""


@dataclass(frozen=True, slots=True)
class StoreActor:
    """A writer or reader of a store's metadata, with its seams. As thread-safe as they are."""

    store: ObjectStore
    clock: Clock
    random_source: random.Random
    ids: IdGenerator
    identity: StoreIdentity
    writer: Writer
    loader: PageLoader = field(default_factory=PageLoader)
    """The cache of checkpoint pages, which the shards of a process share."""


@dataclass(frozen=True, slots=True)
class Judgement(Generic[R]):
    """The actions to commit, and the outcome to return then. Without actions the outcome holds at once."""

    actions: tuple[Action, ...]
    outcome: R
    is_whole: bool = True
    """False if the actions are only the first part of what is asked for, because a commit is small: judge
    again once they are committed. The outcome of the last part holds for all."""


class StateMachine(Protocol[S]):
    """The rules of one kind of log: its actions, states and checkpoints. Thread-safe."""

    @property
    def table(self) -> ActionTable: ...

    @property
    def versions(self) -> ActionVersions: ...

    def empty(self) -> S:
        """The state before the first commit."""
        ...

    def apply(self, state: S, commit: Commit, root: CheckpointRoot | None) -> S:
        """The state after the commit. `root`: that of the checkpoint which a fold in it names."""
        ...

    def read_ahead(self, commits: Sequence[Commit], run_all: RunAll) -> AbstractContextManager[None]:
        """Read together what `apply` needs of the store for these commits, and keep it meanwhile."""
        ...

    def to_checkpoint(self, state: S) -> CheckpointChanges: ...

    def from_checkpoint(self, folder: CheckpointFolder, root: CheckpointRoot) -> S:
        """The state that a checkpoint holds."""
        ...

    def rebased(self, state: S, folder: CheckpointFolder, root: CheckpointRoot) -> S:
        """The same state on a newer checkpoint, which is of an earlier commit or of this one."""
        ...

    def detached(self, state: S) -> S:
        """The same state with everything in memory, and every row changed: a checkpoint of it needs no other
        one."""
        ...

    def live_objects(self, state: S) -> Container[str]:
        """The names of the live data objects."""
        ...

    def brought_by(self, commit: Commit) -> Iterable[str]:
        """The names of the data objects that a commit brings."""
        ...


@dataclass(frozen=True, slots=True)
class View(Generic[S]):
    """A head, its ETag, and the state that follows from it. Immutable."""

    head: Head
    etag: str
    """Empty where a reader found no head yet."""
    state: S
    date_ms: int
    """Time of the store's clock when the head was last read in full."""


@dataclass(frozen=True, slots=True)
class Prepared(Generic[S, R]):
    """A judgement ahead of its commit, and the state that follows. Immutable."""

    view: View[S]
    """It holds as long as this is the newest view."""
    judgement: Judgement[R]
    commit: Commit
    state: S


NEVER_MS = -1
PREPARED_FOR_MS = 60_000
"""The time of a commit is that of its judgement, and what it drops is kept for a time after that. So an older
judgement is made again."""
_COMMITS_AT_ONCE = 32
"""Commits whose objects' directories are read together."""


class ComparedClocks(NamedTuple):
    """The own clock minus the store's when a head was read in full."""

    skew_ms: int
    at_ms: int
    """The time of the comparison by the own clock; -1 before the first."""
    at_monotonic_s: float = 0.0
    """The same moment by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Landed(Generic[R]):
    """The result of `HeadLog.commit`."""

    seq: int
    """The commit's number; where there was nothing to commit, the number of the state that was judged."""
    outcome: R
    has_committed: bool
    is_whole: bool = True
    """False if only a part of what is asked for is committed, as in `Judgement`."""


class HeadLog(Generic[S]):
    """Reads and replaces the head of a shard or of the catalog. Thread-safe: `_commit_lock` admits one commit
    of this process at a time; views are replaced whole."""

    def __init__(
        self,
        actor: StoreActor,
        layout: StoreLayout,
        machine: StateMachine[S],
        settings: CommitSettings | None = None,
    ) -> None:
        """Does not touch the store: call `open` next."""
        self.store = actor.store
        self.ids = actor.ids
        self.layout = layout
        self.identity = actor.identity
        self.machine = machine
        self.settings = settings or CommitSettings()
        self.checkpoints = CheckpointFolder(actor.store, layout, actor.loader)
        self._clock = actor.clock
        self._random = actor.random_source
        self._writer = actor.writer
        self._commit_lock = threading.RLock()
        self._view_lock = threading.Lock()
        first = Head(store_id=self.identity.store_id, shard=layout.shard, uuid=self.ids.uuid())
        self._view: View[S] = View(first, "", machine.empty(), 0)
        self._compared = ComparedClocks(0, NEVER_MS)
        self._commit_failure: StoreError | None = None

    @property
    def commit_failure(self) -> StoreError | None:
        """Why the last head that this process put did not land, as far as is known; None if it did."""
        return self._commit_failure

    @property
    def view(self) -> View[S]:
        return self._view

    @property
    def clock_skew_ms(self) -> int:
        """Own clock minus the store's clock, as of the last head that was read in full."""
        return self._clock.now_ms() - self._view.date_ms

    @property
    def compared_clocks(self) -> ComparedClocks:
        """The last comparison of the clocks."""
        return self._compared

    @property
    def expected_skew_ms(self) -> int | None:
        """Own clock minus the store's, which is taken to have gone on since the last comparison as the
        monotonic clock did; None before the first comparison. Asks nothing."""
        compared = self._compared
        if compared.at_ms == NEVER_MS:
            return None
        since_ms = round((self._clock.monotonic_s() - compared.at_monotonic_s) * 1000)
        return self._clock.now_ms() - (compared.at_ms - compared.skew_ms + since_ms)

    @property
    def expected_date_ms(self) -> int | None:
        """The time that the store's clock has by now, see `expected_skew_ms`."""
        skew_ms = self.expected_skew_ms
        return None if skew_ms is None else self._clock.now_ms() - skew_ms

    def open(self, *, read_only: bool, witness: str = "") -> None:
        """Read the head, or create it where there has never been one.

        `witness` names proof outside of the store that there was a head, see `head_witness`; empty where
        there is no such proof. For a reader a log without a head is empty. Raises StoreCorruptError if the
        head is lost.
        """
        for _ in range(self.settings.max_store_failures):
            try:
                self._publish(self._view_of(self.store.get(self.layout.head_key), self._view))
            except ObjectNotFoundError:
                if witness:
                    raise self._lost_head(witness) from None
                # This key came after the head: unless the head is lost, the next try finds it.
                witness = self._key_behind_head()
                if witness:
                    continue
                if read_only:
                    return
                self._create(self._view.head)
            else:
                return
        raise StoreUnavailableError(
            "the head is missing, and the store refuses to create it; try again, then check the permissions"
            " of the bucket",
            key=self.layout.head_key,
        )

    def refresh(self, *, dated: bool = False) -> View[S]:
        """Read the head if it has changed; with `dated` in any case, which makes `date_ms` current.

        Raises StoreUnavailableError, StoreCorruptError, StoreNotUsableError.
        """
        seen = self._view
        if not seen.etag:
            self.open(read_only=True)
            return self._view
        changed = self._read_known_head() if dated else self._read_changed_head(seen)
        return seen if changed is None else self._publish(self._view_of(changed, seen))

    def prepare(self, judge: Callable[[S], Judgement[R]]) -> Prepared[S, R] | None:
        """Judge on the view at hand, ahead of a commit with the same `judge`, which does not judge again
        unless the head changes. None if only a fresh view can tell. Commits nothing, and never waits for a
        commit."""
        view = self._view
        judged = self._judge(judge, view, None, is_fresh=False)
        if judged is None:
            return None
        judgement, commit, state = judged
        assert commit is not None, "without actions it takes a fresh view"
        return Prepared(view, judgement, commit, state)

    def commit(
        self,
        judge: Callable[[S], Judgement[R]],
        *,
        epoch: int | None = None,
        prepared: Prepared[S, R] | None = None,
    ) -> Landed[R]:
        """Judge and commit; judge again on each head that another writer puts first. `prepared`: by `prepare`
        with the same `judge`, for a commit without an epoch.

        `judge` may be called several times, with newer states. Its errors are raised once the state is fresh.
        Raises StoreUnavailableError if the outcome stays unknown or other writers keep coming first,
        StoreNotUsableError if only newer software may write, or if an action is of a metadata version that is
        not finalized.
        """
        with self._commit_lock:
            view, is_fresh = self._view, False
            lost_races = 0
            while lost_races < self.settings.max_lost_races:
                self.require_writable(view)
                judged = self._judged_ahead(prepared, view)
                judged = judged or self._judge(judge, view, epoch, is_fresh=is_fresh)
                if judged is None:
                    view, is_fresh = self.refresh(), True
                    continue
                judgement, commit, state = judged
                if commit is None:
                    return Landed(view.state.seq, judgement.outcome, has_committed=False)
                try:
                    has_landed = self._replace(view, commit, state)
                except StoreError as error:
                    self._commit_failure = error
                    raise
                if has_landed:
                    self._commit_failure = None
                    return Landed(
                        commit.seq, judgement.outcome, has_committed=True, is_whole=judgement.is_whole
                    )
                view, is_fresh = self._view, True
                self._pause(lost_races, self.settings.race_backoff_ms, self.settings.max_race_backoff_ms)
                lost_races += 1
        raise StoreUnavailableError(
            "other writers committed first too often; try again later", key=self.layout.head_key
        )

    def find_commit(self, seq: int) -> Commit | None:
        """The commit with this number; None if it does not exist yet, or its history was trimmed."""
        return self._find_commit(self._view.head, seq)

    def require_finalized(self, version: int, actions: Iterable[type[Action]]) -> None:
        """Raise StoreNotUsableError if this finalized version lacks one of the actions."""
        require_finalized(version, actions, self.machine.versions, self.layout.head_key)

    def check(self) -> None:
        view = self._view
        assert view.state.seq == view.head.seq, "the state is the head's"
        assert view.state.checkpoint == view.head.checkpoint, "head and state agree on the checkpoint"
        assert view.state.history == view.head.history, "head and state agree on the history"
        assert view.state.pins == view.head.pins, "head and state agree on the pins"

    def _build_commit(self, view: View[S], actions: Sequence[Action], epoch: int | None) -> Commit:
        """A commit for one attempt on one head, with a fresh uuid."""
        # Files that a commit drops are deleted a grace period after its time, by the store's clock. A late
        # clock of the writer must not shorten that, so the time is at least the store's known time.
        seq, now_ms = view.head.seq + 1, max(self._clock.now_ms(), view.date_ms)
        return Commit.build(seq, self.ids.uuid(), now_ms, self._writer, epoch, actions)

    def _judged_ahead(
        self, prepared: Prepared[S, R] | None, view: View[S]
    ) -> tuple[Judgement[R], Commit | None, S] | None:
        """The prepared judgement as `_judge` returns it; None unless it is of this view, and young enough."""
        if prepared is None or prepared.view is not view:
            return None
        if self._clock.now_ms() - prepared.commit.time_ms > PREPARED_FOR_MS:
            return None
        return prepared.judgement, prepared.commit, prepared.state

    def _judge(
        self, judge: Callable[[S], Judgement[R]], view: View[S], epoch: int | None, *, is_fresh: bool
    ) -> tuple[Judgement[R], Commit | None, S] | None:
        """The judgement, the commit (None if there is nothing to commit), and the state after it; None if an
        old view led to a refusal, or names pages that are gone, and a fresh one is needed.
        """
        try:
            judgement = judge(view.state)
            if not judgement.actions:
                return (judgement, None, view.state) if is_fresh else None
            commit = self._build_commit(view, judgement.actions, epoch)
            version = max(view.head.write_version, commit.finalized_version)
            self.require_finalized(version, map(type, judgement.actions))
            commit.require_small()
            return judgement, commit, self._after(view.state, commit)
        except ObjectNotFoundError as error:
            if is_fresh:
                raise _missing(error) from error
        except LogStoreError:
            if is_fresh:
                raise
        return None

    def _replace(self, view: View[S], commit: Commit, state: S) -> bool:
        """Put the view's head with `commit` added, which leads to `state`. Returns True once it is known to
        have landed, False once it is void.
        """
        head = view.head.after(commit, state)
        data = head.encode()
        last_error: StoreError | None = None
        for failures in range(self.settings.max_store_failures):
            try:
                etag = self._put(data, view.etag)
            except StoreError as error:
                outcome = self._settle(view, commit, error)
                if outcome is not None:
                    return outcome
                last_error = error
            else:
                self._publish(View(head, etag, state, view.date_ms))
                return True
            self._pause(failures, self.settings.failure_backoff_ms, self.settings.max_failure_backoff_ms)
        raise StoreUnavailableError(
            "the outcome of a commit is unknown; try again later",
            key=self.layout.head_key,
        ) from last_error

    def _put(self, data: bytes, etag: str) -> str:
        return self.store.put(self.layout.head_key, data, if_match=etag)

    def _settle(self, view: View[S], commit: Commit, error: StoreError) -> bool | None:
        """Whether a put of unknown outcome has landed; None if the head is still the view's."""
        current = self._read_after_failure(view)
        if current is view:
            if not isinstance(error, PreconditionFailedError | StoreUnavailableError):
                raise error  # credentials, bucket: sending it again does not help
            return None
        return self._is_in(current.head, commit)

    def _read_after_failure(self, view: View[S]) -> View[S]:
        """Read the head, with retries; returns `view` itself where it is unchanged."""
        last_error: StoreError | None = None
        for failures in range(self.settings.max_store_failures):
            try:
                changed = self._read_changed_head(view)
            except StoreUnavailableError as error:
                last_error = error
                self._pause(failures, self.settings.failure_backoff_ms, self.settings.max_failure_backoff_ms)
            else:
                return view if changed is None else self._publish(self._view_of(changed, view))
        raise StoreUnavailableError(
            "the outcome of a commit is unknown; try again later",
            key=self.layout.head_key,
        ) from last_error

    def _read_known_head(self) -> StoredObject:
        """Read the head of a log that is known to have one."""
        try:
            return self.store.get(self.layout.head_key)
        except ObjectNotFoundError as error:
            raise self._lost_head("this process, which has read it") from error

    def _read_changed_head(self, view: View[S]) -> StoredObject | None:
        """Read the head; None if it is still the view's."""
        try:
            return self.store.get_if_changed(self.layout.head_key, view.etag)
        except ObjectNotFoundError as error:
            raise self._lost_head("this process, which has read it") from error

    def _is_in(self, head: Head, commit: Commit) -> bool:
        """Whether the commit is in the past of `head`, where another commit may have its number."""
        found = self._find_commit(head, commit.seq)
        return found is not None and found.uuid == commit.uuid

    def _find_commit(self, head: Head, seq: int) -> Commit | None:
        if seq > head.folded_seq:
            return head.commit(seq)
        return find_in_history(self.store, self.layout, head.history, seq, self.machine.table)

    def _view_of(self, stored: StoredObject, base: View[S]) -> View[S]:
        """The view of a head that was read. If it is damaged it is read once more. If an object of it is
        missing the head is old, and is read again.
        """
        now_ms = self._clock.now_ms()
        self._compared = ComparedClocks(now_ms - stored.date_ms, now_ms, self._clock.monotonic_s())
        key, table = self.layout.head_key, self.machine.table
        for _ in range(self.settings.max_store_failures):
            head, stored = Head.decode_answer(stored, self._read_known_head, key, table)
            head.require_of(self.identity.store_id, self.layout.shard)
            try:
                return View(head, stored.etag, self._state_of(head, base), stored.date_ms)
            except ObjectNotFoundError as error:
                again = self._read_known_head()
                if again.etag == stored.etag:
                    raise _missing(error) from error
                stored = again
        raise StoreUnavailableError("the head changes faster than it can be read; try again", key=key)

    def _state_of(self, head: Head, base: View[S]) -> S:
        state = base.state
        if head.seq < state.seq:
            raise StoreCorruptError(
                f"a head went back to an older state; {RESTORE}",
                key=self.layout.head_key,
                seq=head.seq,
                seen_seq=state.seq,
            )
        known = head.commit(state.seq)
        if known is not None and known.uuid != state.uuid:
            raise StoreCorruptError(
                "a commit was overwritten; stop writing to the store and investigate", seq=state.seq
            )
        if head.checkpoint is not None and head.checkpoint != state.checkpoint:
            root = self.checkpoints.root(head.checkpoint)
            if head.folded_seq > state.seq or state.unknown_action is not None:
                # A state that has skipped an action may differ from what the pages hold.
                state = self.machine.from_checkpoint(self.checkpoints, root)
            else:
                # The pages of the former checkpoint may be gone, so this one is used from here on.
                state = self.machine.rebased(state, self.checkpoints, root)
        wanted = [commit for commit in head.commits if commit.seq > state.seq]
        for start in range(0, len(wanted), _COMMITS_AT_ONCE):
            part = wanted[start : start + _COMMITS_AT_ONCE]
            with self.machine.read_ahead(part, self.checkpoints.loader.run_all):
                for commit in part:
                    state = self._after(state, commit)
        _require_agreement(head, state)
        return state

    def _after(self, state: S, commit: Commit) -> S:
        """The state after one more commit. Raises ObjectNotFoundError if the head of the state is old."""
        fold = next((action for action in commit.actions if isinstance(action, Fold)), None)
        if fold is None:
            return self.machine.apply(state, commit, None)
        root = self.checkpoints.root(fold.checkpoint)
        return self.machine.rebased(self.machine.apply(state, commit, root), self.checkpoints, root)

    def _publish(self, view: View[S]) -> View[S]:
        """Make `view` the newest, unless a newer one is; returns `view`."""
        with self._view_lock:
            if view.head.seq >= self._view.head.seq:
                self._view = view
        return view

    def require_writable(self, view: View[S]) -> None:
        """Raise StoreNotUsableError if only newer software may write or fold."""
        assert view.etag, "opened for writing"
        require_writable(view.head.write_version, self.layout.head_key, METADATA_VERSION)
        if view.state.unknown_action is not None:
            raise StoreNotUsableError(
                "newer software has committed here; upgrade before writing",
                key=self.layout.head_key,
                action=view.state.unknown_action,
            )

    def _create(self, head: Head) -> None:
        """Put a first head if there is none. The caller reads the head that landed."""
        try:
            self.store.put(self.layout.head_key, head.encode(), if_absent=True)
        except (PreconditionFailedError, StoreUnavailableError):
            self._pause(0, self.settings.failure_backoff_ms, self.settings.max_failure_backoff_ms)

    def _key_behind_head(self) -> str:
        """The head's key, or a key that is put only after the head; empty if there is none."""
        for prefix in self.layout.prefixes_behind_head:
            for found in self.store.list(prefix):
                if not is_probe(found.key):
                    return found.key
        return ""

    def _lost_head(self, witness: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"the head is lost, and nothing else was changed; {RESTORE}, {REBUILD}",
            key=self.layout.head_key,
            store=self.store.url,
            known_by=witness,
        )

    def _pause(self, attempt: int, first_ms: int, max_ms: int) -> None:
        bound_ms = min(max_ms, first_ms << min(attempt, 20))
        self._clock.sleep(self._random.uniform(0, bound_ms) / 1000)


def _missing(error: ObjectNotFoundError) -> StoreCorruptError:
    return StoreCorruptError(f"an object that the head refers to is missing; {RESTORE}", **error.fields)


def _require_agreement(head: Head, state: HeadState) -> None:
    if state.unknown_action is not None:
        return  # its effect on these fields is unknown, and this version does not write here
    said = (
        head.seq,
        head.epoch,
        head.orphan_horizon_seq,
        head.catalog_seq,
        head.checkpoint,
        head.history,
        head.pins,
    )
    follows = (
        state.seq,
        state.epoch,
        state.orphan_horizon_seq,
        state.catalog_seq,
        state.checkpoint,
        state.history,
        state.pins,
    )
    if said != follows:
        raise StoreCorruptError(
            "a head contradicts its own commits; stop writing to the store and investigate",
            says=said,
            follows=follows,
        )
