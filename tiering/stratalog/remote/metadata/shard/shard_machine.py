"""What a shard's log is made of: its actions, how they apply, and how its state lies in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.remote.metadata.head.checkpoint import CheckpointParts
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.shard.actions import SHARD_ACTIONS, ActionTable
from stratalog.remote.metadata.shard.shard_builder import LoadDirectory, apply_commit
from stratalog.remote.metadata.shard.shard_checkpoint import shard_from_parts, shard_to_parts
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry


class ShardMachine:
    """Thread-safe: the directories at hand are a dictionary that is only ever added to and taken from by
    key.
    """

    def __init__(self, load_directory: LoadDirectory) -> None:
        self._load_directory = load_directory
        self._at_hand: dict[str, Sequence[SliceEntry]] = {}

    @property
    def table(self) -> ActionTable:
        return SHARD_ACTIONS

    def empty(self) -> ShardState:
        return ShardState()

    def apply(self, state: ShardState, commit: Commit) -> ShardState:
        return apply_commit(state, commit, self._directory)

    def to_checkpoint(self, state: ShardState) -> CheckpointParts:
        return shard_to_parts(state)

    def from_checkpoint(self, parts: CheckpointParts) -> ShardState:
        return shard_from_parts(parts)

    def keep_directory(self, ref: ObjectRef, entries: Sequence[SliceEntry]) -> None:
        """Have a directory at hand while its object is committed: the writer need not read what it wrote."""
        self._at_hand[ref.name] = entries

    def release_directory(self, ref: ObjectRef) -> None:
        self._at_hand.pop(ref.name, None)

    def _directory(self, ref: ObjectRef) -> Sequence[SliceEntry]:
        entries = self._at_hand.get(ref.name)
        return self._load_directory(ref) if entries is None else entries
