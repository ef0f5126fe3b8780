"""Watches a store from outside, keeps what it must remember, and proves the protocol's invariants at every
step.

The audit sees every write that lands, whatever answer its actor got. It follows the head commit by commit,
so it notices at once when one is overwritten; it keeps every record that a commit has made readable, so it
notices when one is there twice or lost; and it remembers every object ever written, so it can say what a
commit meant even after the object is gone. It trusts neither the writers' judgement nor their views: only the
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.base.errors import LogStoreError, ObjectNotFoundError
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.head.checkpoint import CheckpointRoot, read_root
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import DocumentRef, FileKind
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_actions import Fold
from stratalog.remote.metadata.head.pin import Pin
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS, Add, AddGap, LowerTieredEnd, Replace
from stratalog.remote.metadata.shard.shard_builder import apply_commit
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_layout import StoreLayout
from tests.support.simulation.mock_objects import MockRecord, MockSlice, latest_by_key, parse_mock_slices
from tests.support.stored_fields import stored_fields
from tests.support.tiered.shard_states import partitions_in, stored_state


class InvariantViolatedError(AssertionError):
    """Something holds no more that the protocol promises."""


class MetadataAudit:
    """The audit. Not thread-safe: one actor runs at a time."""

    def __init__(self, store: ObjectStore, layout: StoreLayout) -> None:
        """`store` is the one beneath all faults."""
        self._store = store
        self._layout = layout
        self._objects: dict[str, tuple[MockSlice, ...]] = {}
        self._pinned: dict[int, frozenset[str]] = {}
        """The keys that the state at each pin that holds has, and those that it is built from."""
        self._is_checked = False
        self._objects_at: list[frozenset[str]] = [frozenset()]
        """The names of the live objects after each commit."""
        self._checkpoints: dict[int, DocumentRef] = {}
        """All checkpoints that a commit brought, by their own commits."""
        self.head: Head | None = None
        self.state = ShardState()
        self.commits: list[Commit] = []
        """Every commit that ever landed, in order."""
        self.committed: dict[TopicIdPartition, dict[int, MockRecord]] = {}
        self.gaps: dict[TopicIdPartition, set[tuple[int, int]]] = {}
        """Every range that an owner has recorded as lost."""
        self.acknowledged: set[int] = set()
        """Numbers of the records that an owner has acknowledged as committed."""

    def landed(self, key: str, data: bytes) -> None:
        """A write has landed."""
        self._is_checked = False
        if key == self._layout.head_key:
            self._head_landed(Head.decode(data, key, SHARD_ACTIONS))
        elif key.startswith(self._layout.data_prefix):
            name = key.removeprefix(self._layout.data_prefix)
            slices = parse_mock_slices(data)
            _require(self._objects.setdefault(name, slices) == slices, f"the name {name} was used twice")

    def deleted(self) -> None:
        """Objects were deleted."""
        self._is_checked = False

    def acknowledge(self, records: Sequence[MockRecord]) -> None:
        """An owner says that these are committed."""
        self._is_checked = False
        self.acknowledged.update(record.number for record in records)

    def check(self) -> None:
        """Check all rules. Raises InvariantViolatedError."""
        if self._is_checked or self.head is None:
            return
        keys = {found.key for found in self._store.list(self._layout.prefix)}
        try:
            self.state.check()
        except AssertionError as error:
            raise InvariantViolatedError(f"the state contradicts itself: {error}") from error
        self._check_present(self.head, keys)
        numbers = {record.number for records in self.committed.values() for record in records.values()}
        _require(
            self.acknowledged <= numbers,
            f"acknowledged but not committed: {self.acknowledged - numbers}",
        )
        for tip in self.state.partitions:
            self._check_readable(tip, self.state.partition(tip))
        self._is_checked = True

    def directory(self, ref: ObjectRef) -> Sequence[SliceEntry]:
        """The directory of an object, even of one that is gone."""
        return [part.entry() for part in self._objects[ref.name]]

    def readable(self, partition: TieredPartition) -> Iterator[MockRecord]:
        """Records that a reader of the partition gets, in the order of its slices."""
        for live in partition.slices:
            if live.gap is not None:
                continue
            for part in self._objects[live.object_name]:
                if part.partition == live.entry.topic_id_partition:
                    for record in part.records:
                        in_slice = live.base_offset <= record.offset < live.end_offset
                        if in_slice and record.offset >= partition.log_start_offset:
                            yield record

    def _head_landed(self, head: Head) -> None:
        before = self.head
        if before is None:
            _require(head.seq == 0, "a new head has no commits")
            self.head = head
            return
        _require(head.seq == before.seq + 1, f"commit {before.seq} was overwritten: head {head.seq} followed")
        known = self.commits + [commit for commit in head.commits if commit.seq == head.seq]
        _require(len(known) == head.seq, "the new commit is not in the head")
        for commit in head.commits:
            _require(known[commit.seq - 1].uuid == commit.uuid, f"commit {commit.seq} was overwritten")
        _require(
            [commit.seq for commit in head.commits] == list(range(head.folded_seq + 1, head.seq + 1)),
            "a commit is neither in the checkpoint nor in the head",
        )
        self._commit_landed(known[-1])
        if head.checkpoint is not None and head.checkpoint != before.checkpoint:
            self._check_checkpoint(head)
            self._checkpoints[head.folded_seq] = head.checkpoint
        former = self._pinned
        self._pinned = {
            pin.seq: former[pin.seq] if pin.seq in former else frozenset(self._needed_keys(pin))
            for pin in head.pins
        }
        self.head = head

    def _commit_landed(self, commit: Commit) -> None:
        before = self.state
        for action in commit.actions:
            if isinstance(action, Add):
                _require(
                    commit.epoch == before.epoch,
                    f"a former owner (epoch {commit.epoch}) added under epoch {before.epoch}",
                )
                self._add_records(action)
            if isinstance(action, AddGap):
                _require(
                    commit.epoch == before.epoch,
                    f"a former owner (epoch {commit.epoch}) added a gap under epoch {before.epoch}",
                )
                lost = action.base_offset, action.end_offset
                self.gaps.setdefault(action.partition, set()).add(lost)
            if isinstance(action, LowerTieredEnd):
                _require(
                    commit.epoch == before.epoch,
                    f"a former owner (epoch {commit.epoch}) lowered an end under epoch {before.epoch}",
                )
                self._forget_behind(action)
        try:
            # Not rebased on the checkpoint: this state has all slices in memory, whatever is folded.
            after = apply_commit(before, commit, self.directory, self._folded_root(commit))
        except LogStoreError as error:
            raise InvariantViolatedError(f"commit {commit.seq} cannot be applied: {error}") from error
        _require(after.epoch >= before.epoch, "the epoch went back")
        _require(after.orphan_horizon_seq >= before.orphan_horizon_seq, "the horizon went back")
        _require(after.folded_seq >= before.folded_seq, "the checkpoint went back")
        _require(after.history_start_seq >= before.history_start_seq, "the start of history went back")
        lowered = dict(
            one for action in commit.actions if isinstance(action, LowerTieredEnd) for one in action.ends
        )
        for tip, partition in before.partitions.items():
            later = after.partitions.get(tip)
            if later is not None:
                _require(later.log_start_offset >= partition.log_start_offset, "log start went back")
                upto = min(partition.compacted_upto, lowered.get(tip, partition.compacted_upto))
                _require(later.compacted_upto >= upto, "compacted_upto went back")
        self.commits.append(commit)
        self._objects_at.append(frozenset(after.objects))
        self.state = after

    def _add_records(self, add: Add) -> None:
        refused = {tip for tip, _ in add.refused}
        for part in self._objects[add.object.name]:
            if part.partition in refused:
                continue
            records = self.committed.setdefault(part.partition, {})
            for record in part.records:
                _require(record.offset not in records, f"offset {record.offset} was committed twice")
                _require(
                    record.number not in {known.number for known in records.values()},
                    f"record {record.number} was committed twice",
                )
                records[record.offset] = record

    def _forget_behind(self, lower: LowerTieredEnd) -> None:
        """Records behind the new ends are not committed any more: the owner's disk has them."""
        for tip, end in lower.ends:
            records = self.committed.get(tip, {})
            for offset in [offset for offset in records if offset >= end]:
                self.acknowledged.discard(records.pop(offset).number)
            self.gaps[tip] = {lost for lost in self.gaps.get(tip, ()) if lost[1] <= end}

    def _check_checkpoint(self, head: Head) -> None:
        """A fold changes nothing: a fresh reader sees the same state."""
        assert head.checkpoint is not None, "the caller has one"
        state = stored_state(self._store, self._layout, head.checkpoint)
        for commit in head.commits:
            state = apply_commit(state, commit, self.directory, self._folded_root(commit))
        _require(partitions_in(state) == partitions_in(self.state), "a fold lost or changed slices")
        _require(state.objects == self.state.objects, "a fold lost or changed objects")
        _require(
            state.dropped_objects == self.state.dropped_objects, "a fold lost or changed what is dropped"
        )
        _require(state.replacements == self.state.replacements, "a fold lost or changed what folds replaced")

    def _folded_root(self, commit: Commit) -> CheckpointRoot | None:
        for action in commit.actions:
            if isinstance(action, Fold):
                return read_root(self._store, self._layout, action.checkpoint)
        return None

    def _needed_keys(self, pin: Pin) -> Iterator[str]:
        """Keys of the objects that are live in a pinned state, and of what it can be built from: the
        checkpoint, and the objects that the commits behind it bring."""
        layout, seq = self._layout, pin.state_seq
        yield from (layout.data_key(name) for name in self._objects_at[seq])
        for commit in self.commits[pin.folded_seq : seq]:
            yield from (layout.data_key(name) for name in brought_by(commit))
        if pin.folded_seq:
            _require(pin.folded_seq in self._checkpoints, f"pin {pin.seq} has a checkpoint that never was")
            checkpoint = self._checkpoints[pin.folded_seq]
            yield layout.checkpoint_key(checkpoint.name)
            for page in self._root(pin, checkpoint).pages:
                yield layout.page_key(page.name)

    def _root(self, pin: Pin, checkpoint: DocumentRef) -> CheckpointRoot:
        try:
            return read_root(self._store, self._layout, checkpoint)
        except ObjectNotFoundError as error:
            raise InvariantViolatedError(f"pin {pin.seq} lost its checkpoint") from error

    def _check_present(self, head: Head, keys: set[str]) -> None:
        layout = self._layout
        for seq, pinned in self._pinned.items():
            _require(pinned <= keys, f"pin {seq} lost {sorted(pinned - keys)}")
        for name in self.state.objects:
            _require(layout.data_key(name) in keys, f"live object {name} is missing")
        if head.checkpoint is not None:
            _require(layout.checkpoint_key(head.checkpoint.name) in keys, "the checkpoint is missing")
            for page in read_root(self._store, layout, head.checkpoint).pages:
                _require(layout.page_key(page.name) in keys, f"page {page.name} of the checkpoint is missing")
        for one in self.state.replacements:
            _require(layout.checkpoint_key(one.name) in keys, f"root {one.name} is missing before its list")
        ref = head.history
        while ref is not None and ref.seq >= self.state.history_start_seq:
            _require(layout.history_key(ref.name) in keys, f"history object {ref.name} is missing")
            earlier = stored_fields(self._store.get(layout.history_key(ref.name)).data, ref.name)
            fields = earlier.optional_fields("predecessor")
            ref = None if fields is None else DocumentRef.from_json(fields, FileKind.HISTORY)
        for commit in head.commits:
            for name in brought_by(commit):
                _require(
                    layout.data_key(name) in keys,
                    f"inline commit {commit.seq} brings object {name}, which is gone",
                )

    def _check_readable(self, tip: TopicIdPartition, partition: TieredPartition) -> None:
        live_gaps = {(live.base_offset, live.end_offset) for live in partition.slices if live.gap is not None}
        known_gaps = self.gaps.get(tip, set())
        expected_gaps = {lost for lost in known_gaps if lost[1] > partition.log_start_offset}
        _require(live_gaps == expected_gaps, f"the gaps are {live_gaps}, they should be {expected_gaps}")
        lost_offsets = {offset for base, end in known_gaps for offset in range(base, end)}
        _require(not lost_offsets & self.committed.get(tip, {}).keys(), "a lost offset has a record")
        readable = list(self.readable(partition))
        offsets = [record.offset for record in readable]
        _require(offsets == sorted(set(offsets)), "a reader's offsets do not ascend")
        committed = [
            record
            for record in self.committed.get(tip, {}).values()
            if record.offset >= partition.log_start_offset
        ]
        _require(set(readable) <= set(committed), "a reader sees what was never committed")
        seen, expected = _values(readable), _values(committed)
        _require(seen == expected, f"the latest values are {seen}, they should be {expected}")
        keys = [record.key for record in readable if record.offset < partition.compacted_upto]
        _require(len(keys) == len(set(keys)), "below compacted_upto a key has two records")


def brought_by(commit: Commit) -> list[str]:
    """Names of the data objects that a commit brings."""
    names: list[str] = []
    for action in commit.actions:
        match action:
            case Add():
                names.append(action.object.name)
            case Replace():
                names.extend(ref.name for ref in action.outputs)
            case _:
                pass
    return names


def _values(records: Sequence[MockRecord]) -> dict[str, int]:
    latest = latest_by_key(records).items()
    return {key: record.number for key, record in sorted(latest) if not record.is_tombstone}


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantViolatedError(what)
