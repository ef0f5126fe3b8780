"""Every key in a store; docs/formats/metadata.md lists them.

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
_DATA = "data"
_SCRATCH = "scratch/"
_SHARD_DIGITS = 4
_SEQ_DIGITS = 20
_HASHED_ID_BYTES = 4


def shard_of(tip: TopicIdPartition, shard_count: int) -> int:
    """The shard of a partition. The partitions of a topic are spread over consecutive shards, from a start
    that depends on the topic id.
    """
    assert 1 <= shard_count <= MAX_SHARD_COUNT, "a store has between one and 10,000 shards"
    start = int.from_bytes(tip.topic_id.bytes[:_HASHED_ID_BYTES], "big")
    return (start + tip.partition) % shard_count


def kind_of_key(key: str) -> str:
    """`data` for a data object, or the prefix of all of a shard's; `metadata` for everything else."""
    parts = key.split("/")
    return "data" if len(parts) > 2 and f"{parts[0]}/" == _SHARDS_PREFIX and parts[2] == _DATA else "metadata"


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The keys of one shard, or of the catalog where `shard` is None. Immutable."""

    shard: int | None

    @property
    def prefix(self) -> str:
        """The beginning of every key here, with its slash."""
        return _CATALOG_PREFIX if self.shard is None else f"{_SHARDS_PREFIX}{self.shard:0{_SHARD_DIGITS}d}/"

    @property
    def prefixes_behind_head(self) -> tuple[str, ...]:
        """Prefixes of keys that are put only after the head (except probes): shards follow the catalog."""
        return (self.prefix, _SHARDS_PREFIX) if self.shard is None else (self.prefix,)

    @property
    def head_key(self) -> str:
        return self.prefix + "head"

    @property
    def data_prefix(self) -> str:
        return f"{self.prefix}{_DATA}/"

    def data_key(self, name: str) -> str:
        return self.data_prefix + name

    def checkpoint_key(self, name: str) -> str:
        return f"{self.prefix}checkpoints/{name}"

    def page_key(self, name: str) -> str:
        return f"{self.prefix}pages/{name}"

    def history_key(self, name: str) -> str:
        return f"{self.prefix}history/{name}"

    @property
    def scratch_prefixes(self) -> tuple[str, ...]:
        """Prefixes of probes; those of the whole store are the catalog's."""
        own = self.prefix + _SCRATCH
        return (own, _SCRATCH) if self.shard is None else (own,)


def seq_prefix(seq: int) -> str:
    """The beginning of the names whose first number is `seq`; names that sort before it have smaller ones."""
    return f"{seq:0{_SEQ_DIGITS}d}"


def first_seq_of_history(name: str) -> int:
    """FIRST of `FIRST-LAST-UUID`."""
    return int(name[:_SEQ_DIGITS])


def is_probe(key: str) -> bool:
    """Whether the key is a probe's: probes come before anything else and prove nothing about the store."""
    return f"/{_SCRATCH}" in key


def format_checkpoint_name(seq: int, uuid: UUID) -> str:
    """`SEQ-UUID`, the name of a checkpoint's root or page; `seq` is the newest commit in it."""
    assert seq >= 0, "a commit number"
    return f"{seq:0{_SEQ_DIGITS}d}-{uuid}"


def format_history_name(first_seq: int, last_seq: int, uuid: UUID) -> str:
    """`FIRST-LAST-UUID`; both ends are in the object."""
    assert 1 <= first_seq <= last_seq, "a history holds at least one commit"
    return f"{first_seq:0{_SEQ_DIGITS}d}-{last_seq:0{_SEQ_DIGITS}d}-{uuid}"
