"""The state of a shard as rows of checkpoint pages, and its fields in the root."""

from __future__ import annotations

import dataclasses
from typing import cast
from uuid import UUID

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.json_document import MAX_INTEGER, JsonFields, to_integer, to_row, to_text, to_uuid
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder, CheckpointRoot
from stratalog.remote.metadata.head.checkpoint_page import KeyRange, Row, RowKey, TableChange
from stratalog.remote.metadata.head.checkpoint_writer import CheckpointChanges
from stratalog.remote.metadata.head.head_state import all_changed, unfolded
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.head.state_fields import changes_of, common_from_checkpoint, simple_change
from stratalog.remote.metadata.shard.partition_row import EMPTY_ROW, PartitionRow, StoredSlices
from stratalog.remote.metadata.shard.shard_actions import MAX_PARTITION, format_ref, parse_ref
from stratalog.remote.metadata.shard.shard_state import (
    OBJECTS,
    PARTITIONS,
    DroppedTopic,
    LiveObject,
    ShardClaim,
    ShardState,
)
from stratalog.remote.metadata.shard.slice_pages import SlicePages
from stratalog.remote.metadata.shard.slice_row import (
    NO_MINIMUM,
    SLICE_COLUMNS,
    SLICE_ENCODINGS,
    SLICE_KEY_SIZE,
    SLICES,
    format_slice,
    parse_last_batch,
    parse_transactions,
)

_PARTITION_COLUMNS = (
    "topic_id",
    "partition",
    "log_start_offset",
    "tiered_end_offset",
    "stable_end_offset",
    "end_mark",
    "compacted_upto",
    "first_slice_offset",
    "slice_count",
    "tiered_bytes",
    "oldest_newest_ms",
    "oldest_ms",
    "newest_ms",
    "open_transactions",
    "lowered_seq",
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
_ROOT_FIELDS = ("claims", "dropped_topics")


def shard_to_changes(state: ShardState) -> CheckpointChanges:
    """The changes that a fold of a state writes."""
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
    partitions: dict[RowKey, Row | None] = {}
    changed: list[tuple[RowKey, PartitionRow]] = []
    for key in state.changed_keys(PARTITIONS):
        tip = cast("TopicIdPartition", key)
        row = state.partitions.get(tip)
        row_key = (str(tip.topic_id), tip.partition)
        partitions[row_key] = None if row is None else _format_partition(tip, row)
        changed.append((row_key, EMPTY_ROW if row is None else row))
    objects: dict[RowKey, Row | None] = {}
    for key in state.changed_keys(OBJECTS):
        name = cast("str", key)
        live_object = state.objects.get(name)
        objects[(name,)] = None if live_object is None else _format_object(live_object)
    tables = {
        PARTITIONS: simple_change(_PARTITION_COLUMNS, partitions),
        SLICES: _slice_change(changed),
        OBJECTS: simple_change(_OBJECT_COLUMNS, objects),
    }
    return changes_of(state, fields, tables)


def _slice_change(changed: list[tuple[RowKey, PartitionRow]]) -> TableChange:
    """The slices of changed partitions: all stored ones go but those of the row's stored pieces, and the ones
    in memory are fresh.
    """
    gone: list[KeyRange] = []
    fresh: list[tuple[RowKey, Row]] = []
    for key, row in sorted(changed):
        next_offset = 0
        for piece in row.pieces:
            if isinstance(piece, StoredSlices):
                if piece.base_offset > next_offset:
                    gone.append(KeyRange((*key, next_offset), (*key, piece.base_offset - 1)))
                next_offset = piece.end_offset
            else:
                fresh.append(((*key, piece.base_offset), format_slice(piece)))
        gone.append(KeyRange((*key, next_offset), (*key, MAX_INTEGER)))
    return TableChange(SLICE_COLUMNS, SLICE_KEY_SIZE, gone, fresh, SLICE_ENCODINGS)


def shard_from_checkpoint(folder: CheckpointFolder, root: CheckpointRoot) -> ShardState:
    """The state that a checkpoint holds; its slices stay in the pages. Raises StoreCorruptError,
    ObjectNotFoundError, StoreUnavailableError, StoreNotUsableError for the layout of an older version.
    """
    partitions = PersistentMap(map(_parse_partition, folder.rows(root, PARTITIONS)))
    pages = SlicePages(folder, root)
    checkpoint_ms = root.fields.integer("time_ms")
    objects = (_parse_object(row, checkpoint_ms) for row in folder.rows(root, OBJECTS))
    state = ShardState(
        **common_from_checkpoint(folder, root, _ROOT_FIELDS),
        partitions=partitions,
        pages=pages,
        objects=PersistentMap((live.ref.name, live) for live in objects),
        claims=root.fields.each("claims", _parse_claim),
        dropped_topics=PersistentMap(root.fields.each("dropped_topics", _parse_dropped_topic)),
    )
    try:
        state.check_rows()
        assert pages.row_count == sum(row.slice_count for row in partitions.values()), "slices are counted"
    except AssertionError as error:
        raise StoreCorruptError(
            "a checkpoint contradicts itself; keep it and investigate", reason=error
        ) from error
    return state


def shard_rebased(state: ShardState, folder: CheckpointFolder, root: CheckpointRoot) -> ShardState:
    """The same state on a newer checkpoint, which is of an earlier commit or of this one. Partitions whose
    last change it has keep nothing in memory.
    """
    partitions = state.partitions.evolve()
    unfolded_slices = state.unfolded_slices
    for key, seq in state.changed_keys(PARTITIONS).items():
        tip = cast("TopicIdPartition", key)
        row = state.partitions.get(tip)
        if row is not None and seq <= root.ref.seq:
            partitions[tip] = row.folded()
            unfolded_slices -= row.unfolded_count
    return dataclasses.replace(
        state,
        partitions=partitions.finish(),
        changed=unfolded(state, root.ref.seq),
        unfolded_slices=unfolded_slices,
        pages=SlicePages(folder, root),
    )


def shard_detached(state: ShardState) -> ShardState:
    """The same state with all slices in memory and every row changed, so that a checkpoint of it needs no
    other one. Loads all pages, and raises as `SlicePages` does.
    """
    partitions = {
        tip: row._replace(pieces=tuple(state.partition(tip).slices)) for tip, row in state.partitions.items()
    }
    return dataclasses.replace(
        state,
        partitions=PersistentMap(partitions.items()),
        changed=all_changed(state, {PARTITIONS: tuple(partitions), OBJECTS: tuple(state.objects)}),
        unfolded_slices=sum(row.slice_count for row in partitions.values()),
        pages=None,
    )


def _format_partition(tip: TopicIdPartition, row: PartitionRow) -> Row:
    return (
        str(tip.topic_id),
        tip.partition,
        row.log_start_offset,
        row.tiered_end_offset,
        row.stable_end_offset,
        row.end_mark,
        row.compacted_upto,
        row.pieces[0].base_offset if row.pieces else row.tiered_end_offset,
        row.slice_count,
        row.tiered_bytes,
        row.oldest_newest_ms,
        row.oldest_ms,
        row.newest_ms,
        row.open_transactions,
        row.lowered_seq,
    )


def _parse_partition(row: JsonFields) -> tuple[TopicIdPartition, PartitionRow]:
    tip = TopicIdPartition(row.uuid("topic_id"), row.integer("partition", maximum=MAX_PARTITION))
    if "slice_count" not in row.values:
        raise StoreNotUsableError(
            "a development version before the first release wrote this checkpoint, and this version cannot"
            " read it; begin a new store",
            what=row.what,
        )
    tiered_end_offset = row.integer("tiered_end_offset")
    slice_count = row.integer("slice_count")
    stored = StoredSlices(row.integer("first_slice_offset"), tiered_end_offset, slice_count)
    return tip, PartitionRow(
        log_start_offset=row.integer("log_start_offset"),
        tiered_end_offset=tiered_end_offset,
        stable_end_offset=row.integer("stable_end_offset"),
        end_mark=parse_last_batch(row, "end_mark"),
        compacted_upto=row.integer("compacted_upto"),
        slice_count=slice_count,
        tiered_bytes=row.integer("tiered_bytes"),
        oldest_newest_ms=row.integer("oldest_newest_ms", minimum=NO_MINIMUM),
        oldest_ms=row.integer("oldest_ms", minimum=NO_MINIMUM),
        newest_ms=row.integer("newest_ms", minimum=NO_MINIMUM),
        open_transactions=parse_transactions(row, "open_transactions"),
        pieces=(stored,) if slice_count else (),
        # Earlier software kept none, and lowered no tiered end.
        lowered_seq=row.optional_integer("lowered_seq") or 0,
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
