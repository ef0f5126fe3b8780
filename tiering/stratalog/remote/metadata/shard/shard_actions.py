"""The actions of a shard's commits, each with the outcome that its writer judged.

A follower applies an action as it stands and decides nothing. So an action carries every decision: slices
that were refused, ranges that were clipped, objects that lost their last live slice. These lists are usually
empty and left out, so an action is as small for 5,000 partitions as for one. docs/formats/metadata.md has the
fields of each action; `head_actions` has those of every log.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.json_document import JsonFields, JsonObject, to_integer, to_row, to_text, to_uuid
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.head_actions import (
    COMMON_ACTIONS,
    COMMON_VERSIONS,
    ActionTable,
    given_fields,
)
from stratalog.remote.metadata.head.metadata_version import ActionVersions
from stratalog.remote.objects.object_ref import ObjectRef, birth_of
from stratalog.remote.objects.slice_entry import SliceEntry

MAX_PARTITION = (1 << 31) - 1


class RefusedSlice(NamedTuple):
    """A slice of an object that its commit does not make live."""

    partition: TopicIdPartition
    reason: str


class PartitionOffset(NamedTuple):
    """An offset of one partition."""

    partition: TopicIdPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Makes `owner` the owner of the shard under `epoch`."""

    owner: str
    uuid: UUID
    epoch: int
    at_least: int = 0
    endpoint: str = ""

    def to_json(self) -> JsonObject:
        fields = {"action": "claim", "owner": self.owner, "uuid": str(self.uuid), "epoch": self.epoch}
        return fields | given_fields(at_least=self.at_least, endpoint=self.endpoint)

    @staticmethod
    def from_json(fields: JsonFields) -> Claim:
        return Claim(
            owner=fields.text("owner"),
            uuid=fields.uuid("uuid"),
            epoch=fields.integer("epoch", minimum=1),
            at_least=fields.optional_integer("at_least") or 0,
            endpoint=fields.text("endpoint") if "endpoint" in fields.values else "",
        )


@dataclass(frozen=True, slots=True)
class Add:
    """Adds an object whose slices begin at the tiered ends of their partitions."""

    object: ObjectRef
    refused: tuple[RefusedSlice, ...] = ()

    def to_json(self) -> JsonObject:
        return {"action": "add", "object": format_ref(self.object)} | given_fields(
            refused=_refused_json(self.refused)
        )

    @staticmethod
    def from_json(fields: JsonFields) -> Add:
        return Add(parse_ref(fields.fields("object")), fields.each("refused", _parse_refused))


@dataclass(frozen=True, slots=True)
class AddGap:
    """Adds a gap at the tiered end of a partition: records that never reached the store and are lost."""

    partition: TopicIdPartition
    base_offset: int
    end_offset: int
    reason: str
    time_ms: int
    """By the store's clock."""

    def to_json(self) -> JsonObject:
        tip = self.partition
        return {
            "action": "add_gap",
            "partition": [str(tip.topic_id), tip.partition],
            "base_offset": self.base_offset,
            "end_offset": self.end_offset,
            "reason": self.reason,
            "time_ms": self.time_ms,
        }

    @staticmethod
    def from_json(fields: JsonFields) -> AddGap:
        return AddGap(
            partition=_parse_partition(fields.values.get("partition"), f"{fields.what}: partition"),
            base_offset=fields.integer("base_offset"),
            end_offset=fields.integer("end_offset"),
            reason=fields.text("reason"),
            time_ms=fields.integer("time_ms"),
        )


@dataclass(frozen=True, slots=True)
class Replace:
    """Puts the outputs' slices in the place of exactly the slices that they were made from."""

    inputs: tuple[str, ...]
    outputs: tuple[ObjectRef, ...]
    refused: tuple[RefusedSlice, ...] = ()
    refused_slices: tuple[str, ...] = ()
    """The refused partitions, where they are too many for `refused`: for each output a bit for each slice of
    its directory, from `slice_bits`."""
    clipped: tuple[PartitionOffset, ...] = ()
    """Partitions whose output begins later than planned: log start has passed their first inputs."""
    still_live: tuple[str, ...] = ()
    is_compacting: bool = False
    """`compacted_upto` moves in all partitions."""
    compacting_slices: tuple[str, ...] = ()
    """If not empty, the partitions in which it moves: for each output a bit for each slice of its directory,
    from `slice_bits`. So a commit is small whatever the number of partitions."""
    catalog_seq: int | None = None

    def to_json(self) -> JsonObject:
        fields = {
            "action": "replace",
            "inputs": list(self.inputs),
            "outputs": [format_ref(ref) for ref in self.outputs],
        }
        return fields | given_fields(
            refused=_refused_json(self.refused),
            refused_slices=list(self.refused_slices),
            clipped=_offsets_json(self.clipped),
            still_live=[self.inputs.index(name) for name in self.still_live],
            compacting=self.is_compacting,
            compacting_slices=list(self.compacting_slices),
            catalog_seq=self.catalog_seq,
        )

    def compacted_in(self, number: int, entries: Sequence[SliceEntry]) -> Iterator[TopicIdPartition]:
        """The partitions of the output with this number and directory whose `compacted_upto` moves, unless
        they are refused."""
        if self.is_compacting:
            yield from (entry.topic_id_partition for entry in entries)
        elif self.compacting_slices:
            yield from _named(self.compacting_slices[number], entries)

    def refused_in(self, number: int, entries: Sequence[SliceEntry]) -> frozenset[TopicIdPartition]:
        """The partitions of the output with this number and directory that are refused."""
        if self.refused_slices:
            return frozenset(_named(self.refused_slices[number], entries))
        return frozenset(tip for tip, _ in self.refused)

    @staticmethod
    def from_json(fields: JsonFields) -> Replace:
        if not fields.values.keys().isdisjoint(("compacting_except", "compacting_only")):
            raise StoreNotUsableError(
                "a development version before the first release made this commit, and this version cannot"
                " read it; begin a new store",
                what=fields.what,
            )
        inputs = fields.each("inputs", _parse_name)
        last = len(inputs) - 1
        positions = fields.each("still_live", lambda item, what: to_integer(item, what, maximum=last))
        return Replace(
            inputs=inputs,
            outputs=fields.each("outputs", lambda item, what: parse_ref(JsonFields.of(item, what))),
            refused=fields.each("refused", _parse_refused),
            refused_slices=fields.each("refused_slices", _parse_bits),
            clipped=fields.each("clipped", _parse_offset),
            still_live=tuple(inputs[position] for position in positions),
            is_compacting="compacting" in fields.values and fields.flag("compacting"),
            compacting_slices=fields.each("compacting_slices", _parse_bits),
            catalog_seq=fields.optional_integer("catalog_seq"),
        )


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Moves log starts forward. Readers no longer see records below them; slices wholly below are dropped."""

    starts: tuple[PartitionOffset, ...]
    dropped: tuple[str, ...] = ()
    catalog_seq: int | None = None

    def to_json(self) -> JsonObject:
        fields = {"action": "advance_log_start", "starts": _offsets_json(self.starts)}
        return fields | given_fields(dropped=list(self.dropped), catalog_seq=self.catalog_seq)

    @staticmethod
    def from_json(fields: JsonFields) -> AdvanceLogStart:
        return AdvanceLogStart(
            starts=fields.each("starts", _parse_offset),
            dropped=fields.each("dropped", _parse_name),
            catalog_seq=fields.optional_integer("catalog_seq"),
        )


@dataclass(frozen=True, slots=True)
class LowerTieredEnd:
    """Moves tiered ends back: slices that end above them are dropped, and what comes next begins there.

    Each end is the log start of its partition, or the end of a slice.
    """

    ends: tuple[PartitionOffset, ...]
    catalog_seq: int
    dropped: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        fields = {
            "action": "lower_tiered_end",
            "ends": _offsets_json(self.ends),
            "catalog_seq": self.catalog_seq,
        }
        return fields | given_fields(dropped=list(self.dropped))

    @staticmethod
    def from_json(fields: JsonFields) -> LowerTieredEnd:
        return LowerTieredEnd(
            ends=fields.each("ends", _parse_offset),
            catalog_seq=fields.integer("catalog_seq"),
            dropped=fields.each("dropped", _parse_name),
        )


@dataclass(frozen=True, slots=True)
class DropPartitions:
    """Drops all partitions of a deleted topic. The shard remembers the id until a later `expired` names
    it.
    """

    topic_id: UUID
    catalog_seq: int
    dropped: tuple[str, ...] = ()
    expired: tuple[UUID, ...] = ()

    def to_json(self) -> JsonObject:
        fields = {
            "action": "drop_partitions",
            "topic_id": str(self.topic_id),
            "catalog_seq": self.catalog_seq,
        }
        return fields | given_fields(
            dropped=list(self.dropped), expired=[str(topic_id) for topic_id in self.expired]
        )

    @staticmethod
    def from_json(fields: JsonFields) -> DropPartitions:
        return DropPartitions(
            topic_id=fields.uuid("topic_id"),
            catalog_seq=fields.integer("catalog_seq"),
            dropped=fields.each("dropped", _parse_name),
            expired=fields.each("expired", to_uuid),
        )


SHARD_ACTIONS: ActionTable = {
    "claim": Claim.from_json,
    "add": Add.from_json,
    "add_gap": AddGap.from_json,
    "replace": Replace.from_json,
    "advance_log_start": AdvanceLogStart.from_json,
    "lower_tiered_end": LowerTieredEnd.from_json,
    "drop_partitions": DropPartitions.from_json,
    **COMMON_ACTIONS,
}
SHARD_VERSIONS: ActionVersions = {AddGap: 2, LowerTieredEnd: 3, **COMMON_VERSIONS}
"""The metadata versions of these actions."""


def objects_of(commit: Commit) -> Iterator[ObjectRef]:
    """The objects that a commit brings."""
    for action in commit.actions:
        match action:
            case Add():
                yield action.object
            case Replace():
                yield from action.outputs
            case _:
                pass


def brought_by(commit: Commit) -> Iterator[str]:
    """The names of the objects that a commit brings."""
    return (ref.name for ref in objects_of(commit))


def format_ref(ref: ObjectRef) -> dict[str, object]:
    """An object reference by field name."""
    return dict(ref._asdict())


def parse_ref(fields: JsonFields) -> ObjectRef:
    """Parse the reference to an object. Raises StoreCorruptError."""
    ref = ObjectRef(
        name=_parse_name(fields.text("name"), fields.what),
        size_bytes=fields.integer("size_bytes"),
        data_position=fields.integer("data_position"),
        directory_position=fields.integer("directory_position"),
        directory_bytes=fields.integer("directory_bytes"),
        key_streams_end=fields.integer("key_streams_end"),
        directory_crc=fields.integer("directory_crc", maximum=(1 << 32) - 1),
    )
    directory_end = ref.directory_position + ref.directory_bytes
    if (
        not ref.data_position
        <= ref.directory_position
        <= directory_end
        <= ref.key_streams_end
        <= ref.size_bytes
    ):
        raise fields.fault("directory_position", "positions in the order of the file")
    return ref


def slice_bits(entries: Iterable[SliceEntry], tips: Container[TopicIdPartition]) -> str:
    """A bit for each slice, the first one lowest, as a hexadecimal number: whether it is of one of these
    partitions."""
    digits = "".join("1" if entry.topic_id_partition in tips else "0" for entry in entries)
    return f"{int(digits[::-1] or '0', 2):x}"


def _named(bits: str, entries: Iterable[SliceEntry]) -> Iterator[TopicIdPartition]:
    """The partitions whose slices have a bit, see `slice_bits`."""
    mask = int(bits, 16)
    for position, entry in enumerate(entries):
        if mask >> position & 1:
            yield entry.topic_id_partition


def _parse_bits(item: object, what: str) -> str:
    bits = to_text(item, what)
    if not bits or set(bits) - set("0123456789abcdef"):
        raise StoreCorruptError("a field of metadata is no hexadecimal number", what=what, value=bits)
    return bits


def _refused_json(refused: tuple[RefusedSlice, ...]) -> list[object]:
    return [[str(tip.topic_id), tip.partition, reason] for tip, reason in refused]


def _offsets_json(offsets: tuple[PartitionOffset, ...]) -> list[object]:
    return [[str(tip.topic_id), tip.partition, offset] for tip, offset in offsets]


def _parse_name(item: object, what: str) -> str:
    name = to_text(item, what)
    birth_of(name)
    return name


def _parse_partition(item: object, what: str) -> TopicIdPartition:
    topic_id, partition = to_row(item, what, 2)
    return TopicIdPartition(to_uuid(topic_id, what), to_integer(partition, what, 0, MAX_PARTITION))


def _parse_refused(item: object, what: str) -> RefusedSlice:
    topic_id, partition, reason = to_row(item, what, 3)
    return RefusedSlice(_parse_partition([topic_id, partition], what), to_text(reason, what))


def _parse_offset(item: object, what: str) -> PartitionOffset:
    topic_id, partition, offset = to_row(item, what, 3)
    return PartitionOffset(_parse_partition([topic_id, partition], what), to_integer(offset, what))
