"""Reads and replaces a head: the commit protocol, for shards and for the catalog.

A view is a head with its ETag and the state that follows from it. To commit, actions are judged against the
view's state and a new head is put with If-Match on the view's ETag. Only a 200 is an answer. Everything else,
the refusal too, leaves it unknown whether the head was replaced, because a proxy may have sent the request
twice. It is settled by reading the head:

    the commit's uuid is in it, or in the history since the view  ->  committed
    the ETag is still the view's                                  ->  send the same bytes again
    anything else                                                 ->  void: judge again on the new head

A put that is still on its way cannot land after that, since its ETag will never be current again. Where the
store stays silent the outcome stays unknown and StoreUnavailableError says so. Whatever is committed next has
the same ETag to match, so at most one of the two lands.

Judging happens on the newest view at hand, which may be old. A refusal that comes of an old view is no
refusal: the head is read before anything is refused, reported as nothing to do, or raised.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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
from stratalog.remote.metadata.head.checkpoint import CheckpointParts, read_checkpoint
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.head.commit_settings import CommitSettings
from stratalog.remote.metadata.head.format_version import require_writable
from stratalog.remote.metadata.head.head import RESTORE, Head
from stratalog.remote.metadata.head.history import find_in_history
from stratalog.remote.metadata.head.judgement import Judgement
from stratalog.remote.metadata.head.log_state import LogState
from stratalog.remote.metadata.shard.actions import Action, ActionTable
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout, is_probe

S = TypeVar("S", bound=LogState)
R = TypeVar("R")


class StateMachine(Protocol[S]):
    """What a log's states are made of. Thread-safe: it holds no state itself."""

    @property
    def table(self) -> ActionTable: ...

    def empty(self) -> S:
        """The state before the first commit."""
        ...

    def apply(self, state: S, commit: Commit) -> S: ...

    def to_checkpoint(self, state: S) -> CheckpointParts: ...

    def from_checkpoint(self, parts: CheckpointParts) -> S: ...


@dataclass(frozen=True, slots=True)
class View(Generic[S]):
    """A head, its ETag, and the state that follows from it. Immutable."""

    head: Head
    etag: str
    """Empty where a reader found no head yet."""
    state: S
    date_ms: int
    """The store's clock when the head was last read in full."""


@dataclass(frozen=True, slots=True)
class Landed(Generic[R]):
    """A judgement that was committed, or had nothing to commit."""

    seq: int
    """Of the commit; where there was nothing to commit, of the state that says so."""
    outcome: R
    has_committed: bool


class HeadLog(Generic[S]):
    """Thread-safe: `_commit_lock` lets one commit of this process run at a time; views are replaced as a
    whole.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        random_source: random.Random,
        ids: IdGenerator,
        identity: StoreIdentity,
        layout: StoreLayout,
        machine: StateMachine[S],
        writer: Writer,
        settings: CommitSettings,
    ) -> None:
        """Does not touch the store: call `open` next."""
        self.store = store
        self.ids = ids
        self.layout = layout
        self.identity = identity
        self.machine = machine
        self.settings = settings
        self._clock = clock
        self._random = random_source
        self._writer = writer
        self._commit_lock = threading.RLock()
        self._view_lock = threading.Lock()
        first = Head(store_id=identity.store_id, shard=layout.shard, uuid=ids.uuid())
        self._view: View[S] = View(first, "", machine.empty(), 0)

    @property
    def view(self) -> View[S]:
        """The newest view at hand."""
        return self._view

    def open(self, *, read_only: bool, witness: str = "") -> None:
        """Read the head, or create it where there has never been one.

        `witness` knows that there was one, see `head_witness`; empty: nobody outside of the store does. A
        reader takes what has no head for empty. Raises StoreCorruptError where the head is lost.
        """
        for _ in range(self.settings.max_store_failures):
            try:
                self._publish(self._view_of(self.store.get(self.layout.head_key), self._view))
            except ObjectNotFoundError:
                if witness:
                    raise self._lost_head(witness) from None
                # It was there before this was: if it is not lost it is found now.
                witness = self._key_behind_head()
                if witness:
                    continue
                if read_only:
                    return
                self._create(self._view.head)
            else:
                return
        raise StoreUnavailableError(
            "the store neither gives nor takes a head; try again later", key=self.layout.head_key
        )

    def refresh(self, *, dated: bool = False) -> View[S]:
        """Read the head where it has changed; with `dated` in any case, so that `date_ms` is of now.

        Raises StoreUnavailableError, StoreCorruptError, StoreNotUsableError.
        """
        seen = self._view
        if not seen.etag:
            self.open(read_only=True)
            return self._view
        changed = self._read_known_head() if dated else self._read_changed_head(seen)
        return seen if changed is None else self._publish(self._view_of(changed, seen))

    def commit(self, judge: Callable[[S], Judgement[R]], *, epoch: int | None = None) -> Landed[R]:
        """Judge, and commit what was judged; again on every head that came first.

        `judge` may be called several times, with newer states. Raises what it raises, once it has done so on
        a fresh state; StoreUnavailableError where the outcome stays unknown or other writers keep coming
        first; StoreNotUsableError where only newer software may write.
        """
        with self._commit_lock:
            view, is_fresh = self._view, False
            lost_races = 0
            while lost_races < self.settings.max_lost_races:
                self.require_writable(view)
                judgement = self._judge(judge, view, is_fresh=is_fresh)
                if judgement is None:
                    view, is_fresh = self.refresh(), True
                    continue
                if not judgement.actions:
                    return Landed(view.state.seq, judgement.outcome, has_committed=False)
                commit = self._build_commit(view, judgement.actions, epoch)
                if self._replace(view, commit):
                    return Landed(commit.seq, judgement.outcome, has_committed=True)
                view, is_fresh = self._view, True
                self._pause(lost_races, self.settings.race_backoff_ms, self.settings.max_race_backoff_ms)
                lost_races += 1
        raise StoreUnavailableError(
            "other writers came first too often; try again later", key=self.layout.head_key
        )

    def find_commit(self, seq: int) -> Commit | None:
        """The commit of that number; None where it is yet to come, or the history that had it was trimmed."""
        return self._find_commit(self._view.head, seq)

    def check(self) -> None:
        """Raise AssertionError where the view contradicts itself."""
        view = self._view
        assert view.state.seq == view.head.seq, "the state is the head's"
        assert view.state.checkpoint == view.head.checkpoint, "head and state agree on the checkpoint"
        assert view.state.history == view.head.history, "head and state agree on the history"

    def _build_commit(self, view: View[S], actions: Sequence[Action], epoch: int | None) -> Commit:
        """With a uuid of its own: it is built once for every attempt on another head."""
        # What a commit drops is deleted a grace after its time, by the store's clock: a writer whose own
        # clock is late must not cut that short. Its time is never before the store's, as far as it knows.
        seq, now_ms = view.head.seq + 1, max(self._clock.now_ms(), view.date_ms)
        return Commit.build(seq, self.ids.uuid(), now_ms, self._writer, epoch, actions)

    def _judge(
        self, judge: Callable[[S], Judgement[R]], view: View[S], *, is_fresh: bool
    ) -> Judgement[R] | None:
        """None where an old view led to a refusal: it has to be judged on a fresh one."""
        try:
            judgement = judge(view.state)
        except LogStoreError:
            if is_fresh:
                raise
            return None
        return judgement if judgement.actions or is_fresh else None

    def _replace(self, view: View[S], commit: Commit) -> bool:
        """Put the head that `commit` makes of the view's. True once it is known to have landed, False once
        void.
        """
        state = self.machine.apply(view.state, commit)
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
            "a commit could not be settled, it may or may not have landed; try again later",
            key=self.layout.head_key,
        ) from last_error

    def _put(self, data: bytes, etag: str) -> str:
        return self.store.put(self.layout.head_key, data, if_match=etag)

    def _settle(self, view: View[S], commit: Commit, error: StoreError) -> bool | None:
        """Whether a put of unknown outcome has landed; None where the head is still the one that it was to
        replace.
        """
        current = self._read_after_failure(view)
        if current is view:
            if not isinstance(error, PreconditionFailedError | StoreUnavailableError):
                raise error  # credentials, bucket: sending it again does not help
            return None
        return self._is_in(current.head, commit)

    def _read_after_failure(self, view: View[S]) -> View[S]:
        """Read the head, with patience; `view` itself where it is unchanged."""
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
            "a commit could not be settled, it may or may not have landed; try again later",
            key=self.layout.head_key,
        ) from last_error

    def _read_known_head(self) -> StoredObject:
        """The head of a shard that is known to have one."""
        try:
            return self.store.get(self.layout.head_key)
        except ObjectNotFoundError as error:
            raise self._lost_head("this process, which has read it") from error

    def _read_changed_head(self, view: View[S]) -> StoredObject | None:
        """None where the head is still the view's."""
        try:
            return self.store.get_if_changed(self.layout.head_key, view.etag)
        except ObjectNotFoundError as error:
            raise self._lost_head("this process, which has read it") from error

    def _is_in(self, head: Head, commit: Commit) -> bool:
        """Whether `head`'s past holds the commit: the one of its number is it, or is somebody else's."""
        found = self._find_commit(head, commit.seq)
        return found is not None and found.uuid == commit.uuid

    def _find_commit(self, head: Head, seq: int) -> Commit | None:
        if seq > head.folded_seq:
            return head.commit(seq)
        return find_in_history(self.store, self.layout, head.history, seq, self.machine.table)

    def _view_of(self, stored: StoredObject, base: View[S]) -> View[S]:
        """The view of a head as it was read. A missing object means that the head is old: it is read
        again.
        """
        for _ in range(self.settings.max_store_failures):
            head = Head.decode(stored.data, self.layout.head_key, self.machine.table)
            head.require_of(self.identity.store_id, self.layout.shard)
            try:
                return View(head, stored.etag, self._state_of(head, base), stored.date_ms)
            except ObjectNotFoundError as error:
                again = self._read_known_head()
                if again.etag == stored.etag:
                    raise StoreCorruptError(
                        f"an object that the head refers to is missing; {RESTORE}",
                        **error.fields,
                    ) from error
                stored = again
        raise StoreUnavailableError(
            "the head changes faster than it can be read; try again", key=self.layout.head_key
        )

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
            raise StoreCorruptError("a commit was overwritten; stop and investigate", seq=state.seq)
        if head.folded_seq > state.seq:
            assert head.checkpoint is not None, "what is folded is in a checkpoint"
            state = self.machine.from_checkpoint(read_checkpoint(self.store, self.layout, head.checkpoint))
        for commit in head.commits:
            if commit.seq > state.seq:
                state = self.machine.apply(state, commit)
        _require_agreement(head, state)
        return state

    def _publish(self, view: View[S]) -> View[S]:
        """Make `view` the newest, unless a newer one is; returns `view`."""
        with self._view_lock:
            if view.head.seq >= self._view.head.seq:
                self._view = view
        return view

    def require_writable(self, view: View[S]) -> None:
        """Raises StoreNotUsableError where only newer software may write or fold."""
        assert view.etag, "opened for writing"
        require_writable(view.head.write_version, self.layout.head_key)
        if view.state.unknown_action is not None:
            raise StoreNotUsableError(
                "newer software has committed here; upgrade before writing",
                key=self.layout.head_key,
                action=view.state.unknown_action,
            )

    def _create(self, head: Head) -> None:
        """Put a first head where none is. Whoever's lands, it is read next."""
        try:
            self.store.put(self.layout.head_key, head.encode(), if_absent=True)
        except (PreconditionFailedError, StoreUnavailableError):
            self._pause(0, self.settings.failure_backoff_ms, self.settings.max_failure_backoff_ms)

    def _key_behind_head(self) -> str:
        """A key that is put only once the head is there, or the head's own; empty where there is none."""
        for prefix in self.layout.prefixes_behind_head:
            for found in self.store.list(prefix):
                if not is_probe(found.key):
                    return found.key
        return ""

    def _lost_head(self, witness: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"the head is lost, and nothing else was touched; {RESTORE}",
            key=self.layout.head_key,
            store=self.store.url,
            known_by=witness,
        )

    def _pause(self, attempt: int, first_ms: int, max_ms: int) -> None:
        bound_ms = min(max_ms, first_ms << min(attempt, 20))
        self._clock.sleep(self._random.uniform(0, bound_ms) / 1000)


def _require_agreement(head: Head, state: LogState) -> None:
    if state.unknown_action is not None:
        return  # what it did to these we cannot know, and we do not write here
    said = (head.seq, head.epoch, head.horizon, head.catalog_seq, head.checkpoint, head.history)
    follows = (state.seq, state.epoch, state.horizon, state.catalog_seq, state.checkpoint, state.history)
    if said != follows:
        raise StoreCorruptError(
            "a head contradicts its own commits; stop and investigate", says=said, follows=follows
        )
