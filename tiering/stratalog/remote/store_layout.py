"""Every key in a store.

    stratalog.json                          identity of the store
    catalog/head, checkpoints/, pages/, history/, scratch/
    shards/NNNN/head                        what is live in a shard
    shards/NNNN/checkpoints/SEQ-UUID        root of a state
    shards/NNNN/pages/SEQ-UUID              part of a state
    shards/NNNN/history/FIRST-LAST-UUID     commits that left the head
    shards/NNNN/scratch/UUID                probes
    shards/NNNN/data/BIRTH-UUID             object files

Numbers in names are decimal, 20 digits (a shard's: 4), zero-padded, so that names sort by number. Keys are
relative to the store's root. The catalog has the same tree as a shard, without data.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from stratalog.base.types import TopicIdPartition

IDENTITY_KEY = "stratalog.json"
MAX_SHARD_COUNT = 10_000
"""Four digits name a shard."""

_CATALOG_PREFIX = "catalog/"
_SHARDS_PREFIX = "shards/"
_SCRATCH = "scratch/"
_SHARD_DIGITS = 4
_SEQ_DIGITS = 20
_HASHED_ID_BYTES = 4


def shard_of(tip: TopicIdPartition, shard_count: int) -> int:
    """The shard that a partition belongs to: its topic's partitions are spread from a start that the id
    chooses.
    """
    assert 1 <= shard_count <= MAX_SHARD_COUNT, "a store has between one and 10,000 shards"
    start = int.from_bytes(tip.topic_id.bytes[:_HASHED_ID_BYTES], "big")
    return (start + tip.partition) % shard_count


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The keys of one shard, or of the catalog where `shard` is None. Immutable."""

    shard: int | None

    @property
    def prefix(self) -> str:
        """Begins every key here, and ends with a slash."""
        return _CATALOG_PREFIX if self.shard is None else f"{_SHARDS_PREFIX}{self.shard:0{_SHARD_DIGITS}d}/"

    @property
    def prefixes_behind_head(self) -> tuple[str, ...]:
        """Where keys lie that come into being behind the head only, but probes: shards follow the catalog."""
        return (self.prefix, _SHARDS_PREFIX) if self.shard is None else (self.prefix,)

    @property
    def head_key(self) -> str:
        return self.prefix + "head"

    @property
    def data_prefix(self) -> str:
        return self.prefix + "data/"

    @property
    def scratch_prefix(self) -> str:
        return self.prefix + _SCRATCH

    def data_key(self, name: str) -> str:
        return self.data_prefix + name

    def checkpoint_key(self, name: str) -> str:
        return f"{self.prefix}checkpoints/{name}"

    def page_key(self, name: str) -> str:
        return f"{self.prefix}pages/{name}"

    def history_key(self, name: str) -> str:
        return f"{self.prefix}history/{name}"

    def scratch_key(self, uuid: UUID) -> str:
        return f"{self.scratch_prefix}{uuid}"


def is_probe(key: str) -> bool:
    """Whether it is one of those that say nothing about the store: they come before anything else."""
    return f"/{_SCRATCH}" in key


def format_checkpoint_name(seq: int, uuid: UUID) -> str:
    """`SEQ-UUID`, of a checkpoint's root and of its pages; `seq` is the newest commit that it includes."""
    assert seq >= 0, "a commit number"
    return f"{seq:0{_SEQ_DIGITS}d}-{uuid}"


def format_history_name(first_seq: int, last_seq: int, uuid: UUID) -> str:
    """`FIRST-LAST-UUID`; both ends are in the object."""
    assert 1 <= first_seq <= last_seq, "a history holds at least one commit"
    return f"{first_seq:0{_SEQ_DIGITS}d}-{last_seq:0{_SEQ_DIGITS}d}-{uuid}"
