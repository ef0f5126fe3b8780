"""A shard's metadata log: the owner of the shard and its live objects, and all changes of them.

Uploaders, compactors, retention and collectors of any number of processes each open one and commit through
it; they agree through the bucket alone. `head_log` has the protocol, `shard_judge` and `replace_judge` the
rules, `shard_builder` their effect.

Everything that a method here returns as committed is durable. A method that raises StoreUnavailableError
leaves it open whether its commit landed. Calling it again with the same arguments is always safe; for `add`
it returns the outcome of the first call if that one landed after all.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, cast
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.checkpoint import CheckpointRoot
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.committed_log import CommittedLog
from stratalog.remote.metadata.head.document_ref import FileKind
from stratalog.remote.metadata.head.head_actions import ActionTable
from stratalog.remote.metadata.head.head_log import (
    CommitSettings,
    HeadLog,
    Judgement,
    Prepared,
    StoreActor,
)
from stratalog.remote.metadata.head.metadata_version import ActionVersions
from stratalog.remote.metadata.head.page_loader import RunAll
from stratalog.remote.metadata.shard import replace_judge, shard_judge
from stratalog.remote.metadata.shard.replace_judge import ReplacePlan, require_request
from stratalog.remote.metadata.shard.shard_actions import (
    SHARD_ACTIONS,
    SHARD_VERSIONS,
    Add,
    AddGap,
    LowerTieredEnd,
    PartitionOffset,
    brought_by,
    objects_of,
)
from stratalog.remote.metadata.shard.shard_builder import LoadDirectory, apply_commit
from stratalog.remote.metadata.shard.shard_checkpoint import (
    shard_detached,
    shard_from_checkpoint,
    shard_rebased,
    shard_to_changes,
)
from stratalog.remote.metadata.shard.shard_judge import NOT_FINALIZED, LostRange, Refusal
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.metadata.shard.slice_pages import OffsetRange
from stratalog.remote.objects.object_ref import ObjectRef, birth_of, format_object_name
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_layout import StoreLayout, seq_prefix

Objects = Sequence[tuple[ObjectRef, Sequence[SliceEntry]]]


class AddOutcome(NamedTuple):
    """The result of `MetadataLog.add`."""

    seq: int
    """The commit that made the objects live; where all slices were refused, the state that was judged."""
    refused: tuple[Refusal, ...]
    """Slices that did not become live. All others did."""


class ReplaceOutcome(NamedTuple):
    """The result of `MetadataLog.replace`."""

    seq: int
    refused: tuple[Refusal, ...]
    """The partitions that keep their inputs, by output object."""
    clipped: tuple[PartitionOffset, ...]
    """Partitions whose output begins at a later offset than planned, because log start has moved."""
    has_committed: bool
    """False if every partition was refused; the outputs are orphans then."""


class AdvanceOutcome(NamedTuple):
    """The result of `MetadataLog.advance_log_start`, `add_gaps` and `drop_tier`. What needed no change is not
    refused."""

    seq: int
    refused: tuple[Refusal, ...]


Replaced = tuple[tuple[Refusal, ...], tuple[PartitionOffset, ...]]


class PreparedReplace(NamedTuple):
    """A replacement ahead of its commit. Immutable."""

    plan: ReplacePlan
    judged: Prepared[ShardState, Replaced] | None
    """Its judgement; None if only the commit can tell."""


class ShardMachine:
    """The rules of a shard's log. Thread-safe: threads add and remove different keys of the directories."""

    def __init__(self, load_directory: LoadDirectory) -> None:
        self._load_directory = load_directory
        self._at_hand: dict[str, Sequence[SliceEntry]] = {}

    @property
    def table(self) -> ActionTable:
        return SHARD_ACTIONS

    @property
    def versions(self) -> ActionVersions:
        return SHARD_VERSIONS

    def empty(self) -> ShardState:
        return ShardState()

    def apply(self, state: ShardState, commit: Commit, root: CheckpointRoot | None) -> ShardState:
        return apply_commit(state, commit, self._directory, root)

    @contextmanager
    def read_ahead(self, commits: Sequence[Commit], run_all: RunAll) -> Generator[None]:
        refs = [ref for commit in commits for ref in objects_of(commit) if ref.name not in self._at_hand]
        found = run_all([partial(self._load_directory, ref) for ref in refs])
        directories = cast("Sequence[Sequence[SliceEntry]]", found)
        with self.directories_at_hand(list(zip(refs, directories, strict=True))):
            yield

    to_checkpoint = staticmethod(shard_to_changes)
    from_checkpoint = staticmethod(shard_from_checkpoint)
    rebased = staticmethod(shard_rebased)
    detached = staticmethod(shard_detached)
    brought_by = staticmethod(brought_by)

    def live_objects(self, state: ShardState) -> Container[str]:
        return state.objects

    @contextmanager
    def directories_at_hand(self, objects: Objects) -> Generator[None]:
        """Keep directories while their objects are committed, so that their writer need not read them."""
        for ref, entries in objects:
            self._at_hand[ref.name] = entries
        try:
            yield
        finally:
            for ref, _ in objects:
                self._at_hand.pop(ref.name, None)

    def _directory(self, ref: ObjectRef) -> Sequence[SliceEntry]:
        entries = self._at_hand.get(ref.name)
        return self._load_directory(ref) if entries is None else entries


class MetadataLog(CommittedLog[ShardState]):
    """The metadata of one shard in the object store. Thread-safe. One instance makes one commit at a time;
    `state` never waits."""

    def __init__(self, log: HeadLog[ShardState], machine: ShardMachine) -> None:
        """Use `open`."""
        super().__init__(log)
        self._machine = machine

    @staticmethod
    def open(
        actor: StoreActor,
        shard: int,
        load_directory: LoadDirectory,
        *,
        read_only: bool = False,
        witness: str = "",
        settings: CommitSettings | None = None,
    ) -> MetadataLog:
        """Read the shard's state; a writer creates the head of a shard that was never used.

        `load_directory` reads an object's directory and raises ObjectNotFoundError if the object is gone;
        any method here may call it. `witness` names proof outside of the store that the shard was used, see
        `head_witness`. Raises StoreCorruptError if the head is lost, StoreNotUsableError if newer
        software is needed, StoreUnavailableError.
        """
        assert 0 <= shard < actor.identity.shard_count, "a shard of this store"
        machine = ShardMachine(load_directory)
        log = HeadLog(actor, StoreLayout(shard), machine, settings)
        log.open(read_only=read_only, witness=witness)
        return MetadataLog(log, machine)

    @property
    def shard(self) -> int:
        """The number of the shard."""
        shard = self.layout.shard
        assert shard is not None, "the catalog has another class"
        return shard

    @property
    def store_id(self) -> UUID:
        return self._log.identity.store_id

    def next_object_name(self) -> str:
        return format_object_name(self.state().seq, self._log.ids.uuid())

    def object_born_later(self) -> tuple[str, int]:
        """The key and the birth of an object in the store that was born behind the newest commit: the head
        went back to an older state. An empty key if there is none. One listing, which has nothing in it as a
        rule. Raises StoreError.
        """
        prefix = self.layout.data_prefix
        while True:
            seq = self.state().seq
            for info in self._log.store.list(prefix, start_after=prefix + seq_prefix(seq + 1)):
                name = info.key.removeprefix(prefix)
                if FileKind.DATA.is_name(name):
                    break
            else:
                return "", 0
            # Its writer may have committed since the head was read.
            if self.refresh().seq < birth_of(name):
                return info.key, birth_of(name)

    def inline_commit(self, seq: int) -> Commit | None:
        """The commit with this number; None if the head at hand does not have it inline."""
        return self._log.view.head.commit(seq)

    def claim(self, owner: str, claim_uuid: UUID, at_least: int = 0, *, endpoint: str = "") -> int:
        """Become the owner; returns the new epoch. The caller has made `claim_uuid` durable on its disk.
        `endpoint`: where clients reach the owner; empty if it serves none.
        """
        return self._commit(
            lambda state: shard_judge.judge_claim(state, owner, claim_uuid, at_least, endpoint)
        ).outcome

    def add(self, objects: Objects, epoch: int) -> AddOutcome:
        """Make uploaded objects live, slice by slice. Raises NotOwnerError if `epoch` has ended."""
        for ref, entries in objects:
            tips = {entry.topic_id_partition for entry in entries}
            require_request(
                len(tips) == len(entries), "an object has at most one slice of a partition", name=ref.name
            )
            for entry in entries:
                require_request(entry.base_offset < entry.end_offset, "a slice has a range", name=ref.name)
        with self._machine.directories_at_hand(objects):
            landed = self._commit(lambda state: self._judge_add(state, objects, epoch), epoch=epoch)
        return AddOutcome(landed.seq, landed.outcome)

    def replace(
        self,
        inputs: Mapping[TopicIdPartition, SliceRanges],
        input_names: Sequence[str],
        outputs: Objects,
        *,
        covers: Mapping[TopicIdPartition, bool],
        catalog_seq: int,
        drops_records: bool,
        withdrawn: Mapping[TopicIdPartition, str] = MappingProxyType({}),
        compared_from: Mapping[TopicIdPartition, int] = MappingProxyType({}),
    ) -> ReplaceOutcome:
        """Replace exactly these inputs by the outputs that were made from them, as `prepare_replace` and
        `commit_replace` do."""
        prepared = self.prepare_replace(
            inputs,
            input_names,
            outputs,
            covers=covers,
            drops_records=drops_records,
            compared_from=compared_from,
            expected_catalog_seq=catalog_seq,
        )
        return self.commit_replace(prepared, catalog_seq=catalog_seq, withdrawn=withdrawn)

    def prepare_replace(
        self,
        inputs: Mapping[TopicIdPartition, SliceRanges],
        input_names: Sequence[str],
        outputs: Objects,
        *,
        covers: Mapping[TopicIdPartition, bool],
        drops_records: bool,
        compared_from: Mapping[TopicIdPartition, int] = MappingProxyType({}),
        expected_catalog_seq: int,
    ) -> PreparedReplace:
        """Check the replacement of exactly these inputs by the outputs that were made from them, and judge it
        on the state at hand. The outputs need not be in the store yet. Commits nothing.

        `covers` tells for each partition whether its live slices from the first on were compacted.
        `compared_from`: of each partition whose records were compared by version, the first offset that took
        part. It is refused if the log start has moved beyond.
        `expected_catalog_seq`: the number that `Catalog.confirm` will probably give the commit. Raises
        InvalidRequestError if the plan contradicts itself.
        """
        plan = ReplacePlan(
            inputs=inputs,
            outputs=outputs,
            covers=covers,
            catalog_seq=expected_catalog_seq if drops_records else None,
            compared_from=compared_from,
        )
        plan.check(input_names)
        with self._machine.directories_at_hand(outputs):
            return PreparedReplace(plan, self._log.prepare(partial(_judge_replace, plan=plan)))

    def commit_replace(
        self,
        prepared: PreparedReplace,
        *,
        catalog_seq: int,
        withdrawn: Mapping[TopicIdPartition, str] = MappingProxyType({}),
    ) -> ReplaceOutcome:
        """Commit a replacement, all of whose outputs are in the store. It is judged again unless the state
        and the catalog are as they were expected.

        `catalog_seq` is from `Catalog.confirm`, called just before. `withdrawn`: partitions that keep their
        inputs after all, each with the reason. Raises PreconditionFailedError where records were dropped and
        a newer configuration was used here before.
        """
        plan = prepared.plan.confirmed(catalog_seq, withdrawn)
        with self._machine.directories_at_hand(plan.outputs):
            landed = self._commit(
                partial(_judge_replace, plan=plan),
                prepared=prepared.judged if plan is prepared.plan else None,
            )
        refused, clipped = landed.outcome
        return ReplaceOutcome(landed.seq, refused, clipped, landed.has_committed)

    def advance_log_start(
        self, starts: Mapping[TopicIdPartition, int], *, epoch: int | None, catalog_seq: int | None
    ) -> AdvanceOutcome:
        """Move log starts forward. Only an owner, under its epoch, may move one beyond a tiered end.

        `catalog_seq` is from `Catalog.confirm` if a configuration decided the move, None if a person
        did.
        """
        ranges = [OffsetRange(tip, 0, offset) for tip, offset in starts.items()]

        def judge(state: ShardState) -> Judgement[tuple[Refusal, ...]]:
            state.read_ahead(ranges)
            return shard_judge.judge_advance(state, starts, epoch, catalog_seq)

        landed = self._commit(judge, epoch=epoch)
        return AdvanceOutcome(landed.seq, landed.outcome)

    def add_gaps(self, lost: Sequence[LostRange], epoch: int) -> AdvanceOutcome:
        """Record that these ranges, from the tiered ends of their partitions on, never reached the store.
        Refuses them while the own clock is not trusted, and before a metadata version is finalized that has
        gaps. Raises NotOwnerError if `epoch` has ended."""
        for one in lost:
            require_request(
                one.base_offset < one.end_offset, "a gap has a range", **one.partition.error_fields
            )
        self.refresh(dated=True)
        if not self.is_finalized(AddGap):
            refused = [Refusal("", one.partition, NOT_FINALIZED) for one in lost]
            return AdvanceOutcome(self.state().seq, tuple(refused))
        time_ms = self.store_date_ms if self.is_clock_trusted else None
        landed = self._commit(
            lambda state: shard_judge.judge_add_gaps(state, lost, epoch, time_ms), epoch=epoch
        )
        return AdvanceOutcome(landed.seq, landed.outcome)

    def drop_tier(
        self,
        starts: Mapping[TopicIdPartition, int],
        *,
        epoch: int,
        catalog_seq: int,
        confirm: Callable[[], int] | None = None,
    ) -> AdvanceOutcome:
        """Drop the tier of partitions whose records from these offsets on are on the owner's disk: their log
        starts move there, then all of their slices go, and an upload would begin at the log start.

        `catalog_seq` is from `Catalog.confirm`, called just before; `confirm` is asked for it again once the
        log starts have moved, and what it raises ends the drop there. Refuses all of them before a metadata
        version is finalized that has this action. A call after a failure goes on where that one stopped.
        Raises NotOwnerError if `epoch` has ended, PreconditionFailedError if a newer configuration was used
        here before.
        """
        self.refresh()
        if not self.is_finalized(LowerTieredEnd):
            refused = tuple(Refusal("", tip, NOT_FINALIZED) for tip in sorted(starts))
            return AdvanceOutcome(self.state().seq, refused)
        # The start first: between the two commits the partition is a tiered one that begins later.
        self.advance_log_start(starts, epoch=epoch, catalog_seq=catalog_seq)
        confirmed_seq = catalog_seq if confirm is None else confirm()
        landed = self._commit(
            lambda state: shard_judge.judge_drop_slices(state, starts, epoch, confirmed_seq), epoch=epoch
        )
        return AdvanceOutcome(landed.seq, landed.outcome)

    def drop_partitions(self, topic_id: UUID, catalog_seq: int) -> int:
        """Drop the partitions of a deleted topic; returns the commit that did so.

        `catalog_seq` is from `Catalog.confirm_deleted`, called just before: a topic that the catalog does not
        know is not a deleted topic.
        """
        return self._commit(
            lambda state: shard_judge.judge_drop_partitions(state, topic_id, catalog_seq, self.store_date_ms)
        ).seq

    def check(self) -> None:
        super().check()
        self.state().check()

    def _judge_add(self, state: ShardState, objects: Objects, epoch: int) -> Judgement[tuple[Refusal, ...]]:
        """Judge as `judge_add`; objects that an earlier call has committed count as committed now."""
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
        return Judgement(judgement.actions, (*known, *judgement.outcome), judgement.is_whole)

    def _refused_before(self, state: ShardState, ref: ObjectRef, epoch: int) -> tuple[Refusal, ...] | None:
        """The slices that were refused when this object was committed under `epoch`; None if it was
        not.
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


def _judge_replace(state: ShardState, plan: ReplacePlan) -> Judgement[Replaced]:
    state.read_ahead(
        OffsetRange(tip, planned.base_offsets[0], planned.end_offsets[-1])
        for tip, planned in plan.inputs.items()
    )
    return replace_judge.judge_replace(state, plan)
