"""What a commit of a shard can do, with the outcome that its writer judged.

A follower applies an action as it stands and decides nothing, so each action carries what was decided: slices
that were refused, ranges that were clipped, objects that lost their last live slice. In the usual case those
lists are empty and left out, and an action is as small for 5,000 partitions as for one.

    claim               {"action":"claim","owner":TEXT,"uuid":UUID,"epoch":N,"at_least":N}
    add                 {"action":"add","object":REF,"refused":[[TOPIC-ID,PARTITION,REASON]...]}
    replace             {"action":"replace","inputs":[NAME...],"outputs":[REF...],
                         "refused":[[TOPIC-ID,PARTITION,REASON]...],
                         "clipped":[[TOPIC-ID,PARTITION,BASE-OFFSET]...],"still_live":[NAME...],
                         "compacting":true,"compacting_except":[[TOPIC-ID,PARTITION]...],
                         "catalog_seq":N}
    advance_log_start   {"action":"advance_log_start","starts":[[TOPIC-ID,PARTITION,OFFSET]...],
                         "dropped":[NAME...],"catalog_seq":N}
    drop_partitions     {"action":"drop_partitions","topic_id":UUID,"catalog_seq":N,
                         "dropped":[NAME...],"expired":[UUID...]}
    forget              {"action":"forget","names":[NAME...]}
    fold                {"action":"fold","checkpoint":DOC,"history":DOC,"base":NAME,
                         "dropped":[[KIND,NAME,BYTES]...]}

REF is an object reference by field name, DOC is {"name","size_bytes","crc"}. `replace`: `inputs` are the
objects that lose slices, all of them dropped but those in `still_live`; `compacting` says that
`compacted_upto` moves for every partition but those in `compacting_except`. Fields that are not listed here
are kept when a commit is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.document_ref import DocumentRef, FileKind, TrackedFile, parse_tracked_file
from stratalog.remote.metadata.head.json_document import (
    JsonFields,
    JsonObject,
    to_integer,
    to_row,
    to_text,
    to_uuid,
)
from stratalog.remote.objects.object_ref import ObjectRef, birth_of

MAX_PARTITION = (1 << 31) - 1


class Action(Protocol):
    """One action of a commit. Immutable."""

    def to_json(self) -> JsonObject: ...


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
    """A new owner; `epoch` is the one that it got."""

    owner: str
    uuid: UUID
    epoch: int
    at_least: int = 0

    def to_json(self) -> JsonObject:
        fields = {"action": "claim", "owner": self.owner, "uuid": str(self.uuid), "epoch": self.epoch}
        return fields | _given(at_least=self.at_least)

    @staticmethod
    def from_json(fields: JsonFields) -> Claim:
        at_least = fields.optional_integer("at_least") or 0
        return Claim(fields.text("owner"), fields.uuid("uuid"), fields.integer("epoch", minimum=1), at_least)


@dataclass(frozen=True, slots=True)
class Add:
    """An object whose slices begin at the tiered ends of their partitions."""

    object: ObjectRef
    refused: tuple[RefusedSlice, ...] = ()

    def to_json(self) -> JsonObject:
        return {"action": "add", "object": format_ref(self.object)} | _given(
            refused=_refused_json(self.refused)
        )

    @staticmethod
    def from_json(fields: JsonFields) -> Add:
        return Add(parse_ref(fields.fields("object")), fields.each("refused", _parse_refused))


@dataclass(frozen=True, slots=True)
class Replace:
    """Objects whose slices take the place of exactly those that they were made from."""

    inputs: tuple[str, ...]
    outputs: tuple[ObjectRef, ...]
    refused: tuple[RefusedSlice, ...] = ()
    clipped: tuple[PartitionOffset, ...] = ()
    """Partitions whose output begins later than planned, because log start has passed the first inputs."""
    still_live: tuple[str, ...] = ()
    is_compacting: bool = False
    compacting_except: tuple[TopicIdPartition, ...] = ()
    catalog_seq: int | None = None

    def to_json(self) -> JsonObject:
        fields = {
            "action": "replace",
            "inputs": list(self.inputs),
            "outputs": [format_ref(ref) for ref in self.outputs],
        }
        return fields | _given(
            refused=_refused_json(self.refused),
            clipped=_offsets_json(self.clipped),
            still_live=list(self.still_live),
            compacting=self.is_compacting,
            compacting_except=[[str(tip.topic_id), tip.partition] for tip in self.compacting_except],
            catalog_seq=self.catalog_seq,
        )

    @staticmethod
    def from_json(fields: JsonFields) -> Replace:
        return Replace(
            inputs=fields.each("inputs", _parse_name),
            outputs=fields.each("outputs", lambda item, what: parse_ref(JsonFields.of(item, what))),
            refused=fields.each("refused", _parse_refused),
            clipped=fields.each("clipped", _parse_offset),
            still_live=fields.each("still_live", _parse_name),
            is_compacting="compacting" in fields.values and fields.flag("compacting"),
            compacting_except=fields.each("compacting_except", _parse_partition),
            catalog_seq=fields.optional_integer("catalog_seq"),
        )


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Records below these offsets are gone for every reader; slices wholly below are dropped."""

    starts: tuple[PartitionOffset, ...]
    dropped: tuple[str, ...] = ()
    catalog_seq: int | None = None

    def to_json(self) -> JsonObject:
        fields = {"action": "advance_log_start", "starts": _offsets_json(self.starts)}
        return fields | _given(dropped=list(self.dropped), catalog_seq=self.catalog_seq)

    @staticmethod
    def from_json(fields: JsonFields) -> AdvanceLogStart:
        return AdvanceLogStart(
            starts=fields.each("starts", _parse_offset),
            dropped=fields.each("dropped", _parse_name),
            catalog_seq=fields.optional_integer("catalog_seq"),
        )


@dataclass(frozen=True, slots=True)
class DropPartitions:
    """All partitions of a deleted topic are gone; its id is remembered until `expired` of a later one names
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
        return fields | _given(
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


@dataclass(frozen=True, slots=True)
class Forget:
    """Dropped files that have been deleted from the bucket."""

    names: tuple[str, ...]

    def to_json(self) -> JsonObject:
        return {"action": "forget", "names": list(self.names)}

    @staticmethod
    def from_json(fields: JsonFields) -> Forget:
        return Forget(fields.each("names", to_text))


@dataclass(frozen=True, slots=True)
class Fold:
    """Commits up to the checkpoint's leave the head."""

    checkpoint: DocumentRef
    history: DocumentRef | None
    base: str | None
    """Name of the checkpoint that it was built from; None where it is the first."""
    dropped: tuple[TrackedFile, ...] = ()
    """The replaced root and those of its pages that the new one does not share."""

    def to_json(self) -> JsonObject:
        fields: JsonObject = {"action": "fold", "checkpoint": self.checkpoint.to_json()}
        return dict(fields) | _given(
            history=None if self.history is None else self.history.to_json(),
            base=self.base,
            dropped=[[file.kind.value, file.name, file.size_bytes] for file in self.dropped],
        )

    @staticmethod
    def from_json(fields: JsonFields) -> Fold:
        history = fields.optional_fields("history")
        return Fold(
            checkpoint=DocumentRef.from_json(fields.fields("checkpoint"), FileKind.CHECKPOINT),
            history=None if history is None else DocumentRef.from_json(history, FileKind.HISTORY),
            base=None if fields.values.get("base") is None else fields.text("base"),
            dropped=fields.each("dropped", parse_tracked_file),
        )


@dataclass(frozen=True, slots=True)
class UnknownAction:
    """An action of newer software. It is kept as it is, and nobody here writes on top of it."""

    name: str
    document: JsonObject

    def to_json(self) -> JsonObject:
        return self.document


ActionTable = Mapping[str, Callable[[JsonFields], Action]]
SHARD_ACTIONS: ActionTable = {
    "claim": Claim.from_json,
    "add": Add.from_json,
    "replace": Replace.from_json,
    "advance_log_start": AdvanceLogStart.from_json,
    "drop_partitions": DropPartitions.from_json,
    "forget": Forget.from_json,
    "fold": Fold.from_json,
}


def parse_action(fields: JsonFields, table: ActionTable) -> Action:
    """The action that a JSON object describes. Raises StoreCorruptError where it is malformed."""
    name = fields.text("action")
    parse = table.get(name)
    return UnknownAction(name, fields.values) if parse is None else parse(fields)


def _given(**fields: object) -> dict[str, object]:
    """Only what differs from the default, which is empty, zero, false or absent for every optional field."""
    return {name: value for name, value in fields.items() if value or (value == 0 and name == "catalog_seq")}


def format_ref(ref: ObjectRef) -> dict[str, object]:
    """An object reference by field name."""
    return dict(ref._asdict())


def parse_ref(fields: JsonFields) -> ObjectRef:
    """Raises StoreCorruptError."""
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
