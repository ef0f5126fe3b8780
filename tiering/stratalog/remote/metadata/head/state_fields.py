"""The checkpoint fields and rows that shards and the catalog share: those of `HeadState`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypedDict, cast
from uuid import UUID

from stratalog.remote.json_document import JsonFields, JsonObject
from stratalog.remote.metadata.head.checkpoint import COMMON_FIELDS, CheckpointFolder, CheckpointRoot
from stratalog.remote.metadata.head.checkpoint_page import KeyRange, Row, RowKey, TableChange
from stratalog.remote.metadata.head.checkpoint_writer import CheckpointChanges
from stratalog.remote.metadata.head.document_ref import DroppedObject, Replacement, parse_tracked_file
from stratalog.remote.metadata.head.head_state import DROPPED, HeadState
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.head.pin import Pin

_DROPPED_COLUMNS = ("name", "kind", "size_bytes", "seq", "time_ms", "brought_seq")


class CommonState(TypedDict):
    """The arguments of `HeadState` that a checkpoint holds."""

    seq: int
    uuid: UUID
    time_ms: int
    epoch: int
    orphan_horizon_seq: int
    catalog_seq: int
    dropped_objects: PersistentMap[str, DroppedObject]
    replacements: tuple[Replacement, ...]
    history_start_seq: int
    deleted_seq: int
    deleted_brought_seq: int
    pins: tuple[Pin, ...]
    root_extras: JsonObject


def changes_of(
    state: HeadState, fields: dict[str, object], tables: dict[str, TableChange]
) -> CheckpointChanges:
    """The changes that a fold writes: the given fields and tables of the state's kind, and those of every
    state.
    """
    common: dict[str, object] = {
        "uuid": str(state.uuid),
        "time_ms": state.time_ms,
        "epoch": state.epoch,
        "horizon": state.orphan_horizon_seq,
        "catalog_seq": state.catalog_seq,
        "history_start": state.history_start_seq,
        "deleted_seq": state.deleted_seq,
        "deleted_brought_seq": state.deleted_brought_seq,
        "pins": [pin.to_json() for pin in state.pins],
        "replacements": [replacement.to_json() for replacement in state.replacements],
    }
    rows: dict[RowKey, Row | None] = {}
    for name in state.changed_keys(DROPPED):
        found = state.dropped_objects.get(cast("str", name))
        rows[(cast("str", name),)] = None if found is None else _format_dropped(found)
    return CheckpointChanges(
        JsonFields({**common, **fields, **state.root_extras}, "checkpoint"),
        {**tables, DROPPED: simple_change(_DROPPED_COLUMNS, rows)},
    )


def simple_change(columns: tuple[str, ...], rows: Mapping[RowKey, Row | None]) -> TableChange:
    """The change of a table of which these rows changed: their new values by key, None if they are gone."""
    keys = sorted(rows)
    fresh = [(key, row) for key in keys if (row := rows[key]) is not None]
    key_size = len(keys[0]) if keys else 1
    return TableChange(columns, key_size, [KeyRange(key, key) for key in keys], fresh)


def common_from_checkpoint(
    folder: CheckpointFolder, root: CheckpointRoot, known_fields: Collection[str]
) -> CommonState:
    """Read the shared arguments of a state. `known_fields`: those of the root that its kind adds.

    Raises StoreCorruptError, ObjectNotFoundError, StoreUnavailableError.
    """
    fields = root.fields
    return CommonState(
        seq=fields.integer("seq", minimum=1),
        uuid=fields.uuid("uuid"),
        time_ms=fields.integer("time_ms"),
        epoch=fields.integer("epoch"),
        orphan_horizon_seq=fields.integer("horizon"),
        catalog_seq=fields.integer("catalog_seq"),
        dropped_objects=PersistentMap(
            (dropped.name, dropped) for dropped in map(_parse_dropped, folder.rows(root, DROPPED))
        ),
        # Before version 5 there were none.
        replacements=fields.each("replacements", Replacement.from_json)
        if "replacements" in fields.values
        else (),
        history_start_seq=fields.optional_integer("history_start", minimum=1) or 1,
        deleted_seq=fields.optional_integer("deleted_seq") or 0,
        deleted_brought_seq=fields.optional_integer("deleted_brought_seq") or 0,
        pins=fields.each("pins", Pin.from_json),
        root_extras=fields.unknown({*COMMON_FIELDS, *known_fields}),
    )


def _format_dropped(dropped: DroppedObject) -> Row:
    return (
        dropped.name,
        dropped.kind.value,
        dropped.size_bytes,
        dropped.seq,
        dropped.time_ms,
        dropped.brought_seq,
    )


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
