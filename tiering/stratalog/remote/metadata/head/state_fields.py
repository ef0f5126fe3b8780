"""The checkpoint fields and rows that shards and the catalog share: those of `HeadState`."""

from __future__ import annotations

from typing import Any, TypedDict
from uuid import UUID

from stratalog.remote.json_document import JsonFields
from stratalog.remote.metadata.head.checkpoint import CheckpointParts
from stratalog.remote.metadata.head.checkpoint_page import Row, RowKey, Table
from stratalog.remote.metadata.head.document_ref import DroppedObject, parse_tracked_file
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.persistent_map import PersistentMap

DROPPED = "dropped"


class CommonState(TypedDict):
    """The arguments of `HeadState` that a checkpoint holds."""

    seq: int
    uuid: UUID
    time_ms: int
    epoch: int
    catalog_seq: int
    dropped_objects: PersistentMap[str, DroppedObject]


def state_parts(
    state: HeadState, fields: dict[str, object], tables: dict[str, Table[Any]]
) -> CheckpointParts:
    """The parts of a state: the given fields and tables of its kind, and those of every state."""
    common: dict[str, object] = {
        "uuid": str(state.uuid),
        "time_ms": state.time_ms,
        "epoch": state.epoch,
        "catalog_seq": state.catalog_seq,
    }
    return CheckpointParts(
        JsonFields({**common, **fields}, "checkpoint"),
        {
            **tables,
            DROPPED: Table(
                columns=DroppedObject._fields,
                items=sorted(state.dropped_objects.values(), key=_dropped_key),
                key=_dropped_key,
                row=_format_dropped,
            ),
        },
        {},
    )


def common_from_parts(parts: CheckpointParts) -> CommonState:
    """Parse the shared arguments. Raises StoreCorruptError."""
    fields = parts.fields
    return CommonState(
        seq=fields.integer("seq", minimum=1),
        uuid=fields.uuid("uuid"),
        time_ms=fields.integer("time_ms"),
        epoch=fields.integer("epoch"),
        catalog_seq=fields.integer("catalog_seq"),
        dropped_objects=PersistentMap(
            (dropped.name, dropped) for dropped in map(_parse_dropped, parts.rows.get(DROPPED, ()))
        ),
    )


def _dropped_key(dropped: DroppedObject) -> RowKey:
    return (dropped.name,)


def _format_dropped(dropped: DroppedObject) -> Row:
    return dropped.name, dropped.kind.value, *dropped[2:]


def _parse_dropped(row: JsonFields) -> DroppedObject:
    file = parse_tracked_file([row.text("kind"), row.text("name"), row.integer("size_bytes")], row.what)
    return DroppedObject(
        name=file.name,
        size_bytes=file.size_bytes,
        seq=row.integer("seq", minimum=1),
        time_ms=row.integer("time_ms"),
        kind=file.kind,
        brought_seq=row.integer("brought_seq"),
    )
