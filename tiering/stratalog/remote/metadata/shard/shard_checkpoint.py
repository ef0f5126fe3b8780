"""The state of a shard as rows of checkpoint pages, and its fields in the root."""

from __future__ import annotations

import bisect
from collections import defaultdict
from typing import Any
from uuid import UUID

from stratalog.base.errors import StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.json_document import JsonFields, to_integer, to_row, to_text, to_uuid
from stratalog.remote.metadata.head.checkpoint import CheckpointParts
from stratalog.remote.metadata.head.checkpoint_page import Row, RowKey, Table
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.head.state_fields import (
    common_from_parts,
    extras_of,
    state_parts,
)
from stratalog.remote.metadata.shard.shard_actions import MAX_PARTITION, format_ref, parse_ref
from stratalog.remote.metadata.shard.shard_state import DroppedTopic, LiveObject, ShardClaim, ShardState
from stratalog.remote.metadata.shard.slice_row import (
    GAP_COLUMNS,
    GAPS,
    SLICE_COLUMNS,
    SLICE_KEY_SIZE,
    SLICES,
    format_gap,
    format_slice,
    parse_gap,
    parse_last_batch,
    parse_slice,
    slice_key,
)
from stratalog.remote.metadata.shard.tiered_partition import LiveSlice, TieredPartition

PARTITIONS = "partitions"
OBJECTS = "objects"
_PARTITION_COLUMNS = (
    "topic_id",
    "partition",
    "log_start_offset",
    "tiered_end_offset",
    "stable_end_offset",
    "end_mark",
    "compacted_upto",
)
_OBJECT_COLUMNS = (
    "name",
    "size_bytes",
    "data_position",
    "directory_position",
    "directory_bytes",
    "key_streams_end",
    "directory_crc",
    "seq",
    "live_slices",
    "live_bytes",
    "uploaded_ms",
)
_KINDS = {
    PARTITIONS: (_PARTITION_COLUMNS, 2),
    SLICES: (SLICE_COLUMNS, SLICE_KEY_SIZE),
    GAPS: (GAP_COLUMNS, SLICE_KEY_SIZE),
    OBJECTS: (_OBJECT_COLUMNS, 1),
}
_ROOT_FIELDS = ("claims", "dropped_topics")


def shard_to_parts(state: ShardState) -> CheckpointParts:
    """Root fields and tables of a state."""
    partitions = sorted(state.partitions.items(), key=_partition_key)
    fields: dict[str, object] = {
        "claims": [
            [claim.epoch, claim.owner, claim.endpoint, str(claim.uuid), claim.seq, claim.time_ms]
            for claim in state.claims
        ],
        "dropped_topics": [
            [str(topic_id), topic.seq, topic.time_ms]
            for topic_id, topic in sorted(state.dropped_topics.items())
        ],
    }
    tables: dict[str, Table[Any]] = {
        PARTITIONS: Table(
            _PARTITION_COLUMNS, partitions, _partition_key, _format_partition, extras_of(state, PARTITIONS)
        ),
        SLICES: Table(
            SLICE_COLUMNS,
            [live for _, partition in partitions for live in partition.slices if live.gap is None],
            slice_key,
            format_slice,
            extras_of(state, SLICES),
        ),
        GAPS: Table(
            GAP_COLUMNS,
            [live for _, partition in partitions for live in partition.slices if live.gap is not None],
            slice_key,
            format_gap,
            extras_of(state, GAPS),
        ),
        OBJECTS: Table(
            _OBJECT_COLUMNS,
            sorted(state.objects.values(), key=_object_key),
            _object_key,
            _format_object,
            extras_of(state, OBJECTS),
        ),
    }
    return state_parts(state, fields, tables)


def shard_from_parts(parts: CheckpointParts) -> ShardState:
    """The state that a checkpoint holds. Raises StoreCorruptError."""
    slices: dict[TopicIdPartition, list[LiveSlice]] = defaultdict(list)
    for row in parts.rows.get(SLICES, ()):
        tip, live = parse_slice(row)
        slices[tip].append(live)
    for row in parts.rows.get(GAPS, ()):
        tip, live = parse_gap(row)
        bisect.insort(slices[tip], live, key=lambda one: one.base_offset)
    partitions = dict(_parse_partition(row, slices) for row in parts.rows.get(PARTITIONS, ()))
    if slices:
        raise StoreCorruptError(
            "a checkpoint has slices of a partition that it does not list; keep it and investigate"
        )
    checkpoint_ms = parts.fields.integer("time_ms")
    objects = (_parse_object(row, checkpoint_ms) for row in parts.rows.get(OBJECTS, ()))
    state = ShardState(
        **common_from_parts(parts, _KINDS, _ROOT_FIELDS),
        partitions=PersistentMap(partitions.items()),
        objects=PersistentMap((live.ref.name, live) for live in objects),
        claims=parts.fields.each("claims", _parse_claim),
        dropped_topics=PersistentMap(parts.fields.each("dropped_topics", _parse_dropped_topic)),
    )
    try:
        state.check()
    except AssertionError as error:
        raise StoreCorruptError(
            "a checkpoint contradicts itself; keep it and investigate", reason=error
        ) from error
    return state


def _partition_key(item: tuple[TopicIdPartition, TieredPartition]) -> RowKey:
    return str(item[0].topic_id), item[0].partition


def _object_key(live_object: LiveObject) -> RowKey:
    return (live_object.ref.name,)


def _format_partition(item: tuple[TopicIdPartition, TieredPartition]) -> Row:
    tip, partition = item
    return (
        str(tip.topic_id),
        tip.partition,
        partition.log_start_offset,
        partition.tiered_end_offset,
        partition.stable_end_offset,
        partition.end_mark,
        partition.compacted_upto,
    )


def _parse_partition(
    row: JsonFields, slices: dict[TopicIdPartition, list[LiveSlice]]
) -> tuple[TopicIdPartition, TieredPartition]:
    tip = TopicIdPartition(row.uuid("topic_id"), row.integer("partition", maximum=MAX_PARTITION))
    return tip, TieredPartition(
        log_start_offset=row.integer("log_start_offset"),
        tiered_end_offset=row.integer("tiered_end_offset"),
        stable_end_offset=row.integer("stable_end_offset"),
        end_mark=parse_last_batch(row, "end_mark"),
        compacted_upto=row.integer("compacted_upto"),
        slices=tuple(slices.pop(tip, ())),
    )


def _format_object(live_object: LiveObject) -> Row:
    return (
        *format_ref(live_object.ref).values(),
        live_object.seq,
        live_object.live_slices,
        live_object.live_bytes,
        live_object.uploaded_ms,
    )


def _parse_object(row: JsonFields, checkpoint_ms: int) -> LiveObject:
    """Parse the row of an object. Earlier software kept no time of the upload: it is that of the checkpoint
    then, which is not before it."""
    uploaded_ms = row.optional_integer("uploaded_ms")
    return LiveObject(
        parse_ref(row),
        row.integer("seq", minimum=1),
        row.integer("live_slices"),
        row.integer("live_bytes"),
        checkpoint_ms if uploaded_ms is None else uploaded_ms,
    )


def _parse_claim(item: object, what: str) -> ShardClaim:
    epoch, owner, endpoint, uuid, seq, time_ms = to_row(item, what, 6)
    return ShardClaim(
        epoch=to_integer(epoch, what, 1),
        owner=to_text(owner, what),
        endpoint=to_text(endpoint, what),
        uuid=to_uuid(uuid, what),
        seq=to_integer(seq, what, 1),
        time_ms=to_integer(time_ms, what),
    )


def _parse_dropped_topic(item: object, what: str) -> tuple[UUID, DroppedTopic]:
    topic_id, seq, time_ms = to_row(item, what, 3)
    return to_uuid(topic_id, what), DroppedTopic(to_integer(seq, what, 1), to_integer(time_ms, what))
