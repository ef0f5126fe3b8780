"""A shard's metadata log: who owns the shard, which objects are live, and how both change.

Uploaders, compactors, retention and collectors of any number of processes each open one and commit through
it; they agree through the bucket alone. `head_log` has the protocol, `shard_judge` and `replace_judge` the
rules, `shard_builder` their effect.

What is durable: everything that a method here returns as committed. A method that raises
StoreUnavailableError leaves it open whether its commit landed; calling it again with the same arguments is
always safe, and for `add` returns the outcome of the first call if that one landed after all.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreError
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.commit_settings import CommitSettings
from stratalog.remote.metadata.head.fold import Folder
from stratalog.remote.metadata.head.head_log import HeadLog, Landed
from stratalog.remote.metadata.head.judgement import Judgement, judge_forget, require_request
from stratalog.remote.metadata.shard import replace_judge, shard_judge
from stratalog.remote.metadata.shard.actions import Add, PartitionOffset
from stratalog.remote.metadata.shard.partition_state import LiveSlice
from stratalog.remote.metadata.shard.replace_judge import ReplacePlan
from stratalog.remote.metadata.shard.shard_builder import LoadDirectory
from stratalog.remote.metadata.shard.shard_judge import Refusal
from stratalog.remote.metadata.shard.shard_machine import ShardMachine
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.object_ref import ObjectRef, format_object_name
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout

R = TypeVar("R")
Objects = Sequence[tuple[ObjectRef, Sequence[SliceEntry]]]


class AddOutcome(NamedTuple):
    """What became of uploaded objects."""

    seq: int
    """The commit that made them live; where all was refused, the one that the refusal was judged on."""
    refused: tuple[Refusal, ...]
    """Slices that did not become live; all others did."""


class ReplaceOutcome(NamedTuple):
    """What became of a replacement."""

    seq: int
    refused: tuple[Refusal, ...]
    """By output object, the partitions that keep their inputs."""
    clipped: tuple[PartitionOffset, ...]
    """Partitions whose output counts from a later offset than planned, because log start has moved."""
    has_committed: bool
    """False where every partition was refused: the outputs are orphans then."""


class AdvanceOutcome(NamedTuple):
    """What became of a move of log starts. Partitions whose log start was there already are not refused."""

    seq: int
    refused: tuple[Refusal, ...]


class MetadataLog:
    """Thread-safe. Commits of one instance come one after another; `state` never waits."""

    def __init__(self, log: HeadLog[ShardState], machine: ShardMachine) -> None:
        """Use `open`."""
        self._log = log
        self._machine = machine
        self._folder = Folder(log)
        self._fold_lock = threading.Lock()
        self._last_fold_error: StoreError | None = None

    @staticmethod
    def open(
        store: ObjectStore,
        clock: Clock,
        random_source: random.Random,
        ids: IdGenerator,
        identity: StoreIdentity,
        shard: int,
        writer: Writer,
        load_directory: LoadDirectory,
        *,
        read_only: bool = False,
        witness: str = "",
        settings: CommitSettings | None = None,
    ) -> MetadataLog:
        """Read the shard's state; create its head where the shard was never used and this is no reader.

        `load_directory` reads an object's directory; it raises ObjectNotFoundError where the object is gone,
        and may be called from any method here. `witness`: who else knows that the shard was used, see
        `head_witness`. Raises StoreCorruptError where the head is lost, StoreNotUsableError where newer
        software is needed, StoreUnavailableError.
        """
        assert 0 <= shard < identity.shard_count, "a shard of this store"
        machine = ShardMachine(load_directory)
        log = HeadLog(
            store,
            clock,
            random_source,
            ids,
            identity,
            StoreLayout(shard),
            machine,
            writer,
            settings or CommitSettings(),
        )
        log.open(read_only=read_only, witness=witness)
        return MetadataLog(log, machine)

    @property
    def layout(self) -> StoreLayout:
        return self._log.layout

    @property
    def store_date_ms(self) -> int:
        """The store's clock when the head was last read whole; `refresh(dated=True)` makes that now."""
        return self._log.view.date_ms

    @property
    def last_fold_error(self) -> StoreError | None:
        """Why the last fold that followed a commit failed; None where it did not. It is tried again after the
        next.
        """
        return self._last_fold_error

    def state(self) -> ShardState:
        """The newest state at hand, without asking the store."""
        return self._log.view.state

    def refresh(self, *, dated: bool = False) -> ShardState:
        """The state of now: one conditional GET where nothing is new. Raises StoreUnavailableError."""
        return self._log.refresh(dated=dated).state

    def next_object_name(self) -> str:
        """A name for an object that is about to be written; never to be used for anything else."""
        return format_object_name(self.state().seq, self._log.ids.uuid())

    def claim(self, owner: str, claim_uuid: UUID, at_least: int = 0) -> int:
        """Become the owner; returns the epoch. The caller has made `claim_uuid` durable on its own disk
        before. `state().claim_before(epoch)` names the former owner.
        """
        return self._commit(lambda state: shard_judge.judge_claim(state, owner, claim_uuid, at_least)).outcome

    def add(self, objects: Objects, epoch: int) -> AddOutcome:
        """Make uploaded objects live, slice by slice. Raises FencedError under an epoch that is over."""
        for ref, entries in objects:
            tips = {entry.topic_id_partition for entry in entries}
            require_request(
                len(tips) == len(entries), "an object has at most one slice of a partition", name=ref.name
            )
            for entry in entries:
                require_request(entry.base_offset < entry.end_offset, "a slice has a range", name=ref.name)
        with self._directories_at_hand(objects):
            landed = self._commit(lambda state: self._judge_add(state, objects, epoch), epoch=epoch)
        return AddOutcome(landed.seq, landed.outcome)

    def replace(
        self,
        inputs: Mapping[TopicIdPartition, Sequence[LiveSlice]],
        input_names: Sequence[str],
        outputs: Objects,
        *,
        covers: Mapping[TopicIdPartition, bool],
        catalog_seq: int,
        drops_records: bool,
    ) -> ReplaceOutcome:
        """Swap exactly these inputs for the outputs that were made from them.

        `covers` names the partitions of which all live slices from the first on were compacted. `catalog_seq`
        is from `Catalog.confirm`, called just before. Raises PreconditionFailedError where `drops_records`
        and a newer configuration was used here before.
        """
        plan = ReplacePlan(inputs, outputs, covers, catalog_seq if drops_records else None)
        plan.check(input_names)
        with self._directories_at_hand(outputs):
            landed = self._commit(lambda state: replace_judge.judge_replace(state, plan))
        refused, clipped = landed.outcome
        return ReplaceOutcome(landed.seq, refused, clipped, landed.has_committed)

    def advance_log_start(
        self, starts: Mapping[TopicIdPartition, int], *, epoch: int | None, catalog_seq: int | None
    ) -> AdvanceOutcome:
        """Move log starts forward. Only an owner, under its epoch, may go beyond a tiered end.

        `catalog_seq` is from `Catalog.confirm` where a configuration decided this, None where a person did.
        """
        landed = self._commit(
            lambda state: shard_judge.judge_advance(state, starts, epoch, catalog_seq), epoch=epoch
        )
        return AdvanceOutcome(landed.seq, landed.outcome)

    def drop_partitions(self, topic_id: UUID, catalog_seq: int) -> int:
        """Drop what a deleted topic has here; returns the commit that says so. `catalog_seq` is from
        `Catalog.confirm_deleted`, called just before: a topic that the catalog does not know is not a deleted
        one.
        """
        return self._commit(
            lambda state: shard_judge.judge_drop_partitions(state, topic_id, catalog_seq, self.store_date_ms)
        ).seq

    def forget(self, names: Iterable[str]) -> tuple[str, ...]:
        """Take deleted files off the list of dropped ones; returns those that were on it."""
        wanted = tuple(names)
        return self._commit(lambda state: judge_forget(state, wanted)).outcome

    def fold(self) -> int | None:
        """Move the head's commits into a checkpoint. The fold's commit number; None where there was nothing
        to do.
        """
        with self._fold_lock:
            return self._folder.fold()

    def fold_if_needed(self) -> int | None:
        """`fold` where the head has outgrown its limits."""
        with self._fold_lock:
            return self._folder.fold() if self._folder.is_due() else None

    def check(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        self._log.check()
        self.state().check()

    def _commit(self, judge: Callable[[ShardState], Judgement[R]], *, epoch: int | None = None) -> Landed[R]:
        landed = self._log.commit(judge, epoch=epoch)
        if landed.has_committed and self._log.settings.fold_by_itself:
            self._fold_after_commit()
        return landed

    def _fold_after_commit(self) -> None:
        """The commit is made: that the head could not be folded after it is not its caller's failure."""
        if not self._folder.is_due() or not self._fold_lock.acquire(blocking=False):
            return  # nothing to do, or somebody is doing it
        try:
            self._folder.fold()
        except StoreError as error:
            self._last_fold_error = error
        else:
            self._last_fold_error = None
        finally:
            self._fold_lock.release()

    def _judge_add(self, state: ShardState, objects: Objects, epoch: int) -> Judgement[tuple[Refusal, ...]]:
        """As `judge_add`, where objects that an earlier call has committed after all count as committed
        now.
        """
        known: list[Refusal] = []
        fresh: list[tuple[ObjectRef, Sequence[SliceEntry]]] = []
        for ref, entries in objects:
            refused = self._refused_before(state, ref, epoch)
            if refused is None:
                fresh.append((ref, entries))
            else:
                known.extend(refused)
        if not fresh:
            return Judgement((), tuple(known))
        judgement = shard_judge.judge_add(state, fresh, epoch)
        return Judgement(judgement.actions, (*known, *judgement.outcome))

    def _refused_before(self, state: ShardState, ref: ObjectRef, epoch: int) -> tuple[Refusal, ...] | None:
        """What the commit that brought this object refused of it; None where no commit of ours has brought
        it.
        """
        live_object = state.objects.get(ref.name)
        dropped = state.dropped_objects.get(ref.name)
        if live_object is not None:
            seq = live_object.seq
        elif dropped is not None:
            seq = dropped.brought_seq
        else:
            return None
        commit = self._log.find_commit(seq)
        if commit is None or commit.epoch != epoch:
            return None
        for action in commit.actions:
            if isinstance(action, Add) and action.object == ref:
                return tuple(Refusal(ref.name, tip, reason) for tip, reason in action.refused)
        return None

    @contextmanager
    def _directories_at_hand(self, objects: Objects) -> Generator[None]:
        for ref, entries in objects:
            self._machine.keep_directory(ref, entries)
        try:
            yield
        finally:
            for ref, _ in objects:
                self._machine.release_directory(ref)
