"""The checkpoint fields and rows that shards and the catalog share: those of `HeadState`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypedDict
from uuid import UUID

from stratalog.remote.json_document import JsonFields, JsonObject
from stratalog.remote.metadata.head.checkpoint import COMMON_FIELDS, CheckpointParts
from stratalog.remote.metadata.head.checkpoint_page import Row, RowKey, Table
from stratalog.remote.metadata.head.document_ref import DroppedObject, parse_tracked_file
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.head.pin import Pin

DROPPED = "dropped"
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
    history_start_seq: int
    pins: tuple[Pin, ...]
    root_extras: JsonObject
    extras: PersistentMap[tuple[str, RowKey], JsonObject]


def state_parts(
    state: HeadState, fields: dict[str, object], tables: dict[str, Table[Any]]
) -> CheckpointParts:
    """The parts of a state: the given fields and tables of its kind, and those of every state."""
    common: dict[str, object] = {
        "uuid": str(state.uuid),
        "time_ms": state.time_ms,
        "epoch": state.epoch,
        "horizon": state.orphan_horizon_seq,
        "catalog_seq": state.catalog_seq,
        "history_start": state.history_start_seq,
        "pins": [pin.to_json() for pin in state.pins],
    }
    return CheckpointParts(
        JsonFields({**common, **fields, **state.root_extras}, "checkpoint"),
        {
            **tables,
            DROPPED: Table(
                columns=_DROPPED_COLUMNS,
                items=sorted(state.dropped_objects.values(), key=_dropped_key),
                key=_dropped_key,
                row=_format_dropped,
                extras=extras_of(state, DROPPED),
            ),
        },
        {},
    )


def extras_of(state: HeadState, kind: str) -> dict[RowKey, JsonObject]:
    """The unknown columns of a kind's rows, by key."""
    return {key: extra for (extra_kind, key), extra in state.extras.items() if extra_kind == kind}


def common_from_parts(
    parts: CheckpointParts, columns: Mapping[str, tuple[tuple[str, ...], int]], known_fields: Collection[str]
) -> CommonState:
    """Parse the shared arguments. `columns`: by kind, the known columns and how many of them are the key.

    Raises StoreCorruptError.
    """
    fields = parts.fields
    extras: list[tuple[tuple[str, RowKey], JsonObject]] = []
    for kind, (names, key_size) in {**columns, DROPPED: (_DROPPED_COLUMNS, 1)}.items():
        for row in parts.rows.get(kind, ()):
            if len(row.values) == len(names):
                continue
            # A row of an older writer is null in the columns of a newer one.
            unknown = {name: value for name, value in row.unknown(names).items() if value is not None}
            if unknown:
                extras.append(((kind, _key_of(row, names[:key_size])), unknown))
    return CommonState(
        seq=fields.integer("seq", minimum=1),
        uuid=fields.uuid("uuid"),
        time_ms=fields.integer("time_ms"),
        epoch=fields.integer("epoch"),
        orphan_horizon_seq=fields.integer("horizon"),
        catalog_seq=fields.integer("catalog_seq"),
        dropped_objects=PersistentMap(
            (dropped.name, dropped) for dropped in map(_parse_dropped, parts.rows.get(DROPPED, ()))
        ),
        history_start_seq=fields.optional_integer("history_start", minimum=1) or 1,
        pins=fields.each("pins", Pin.from_json),
        root_extras=fields.unknown({*COMMON_FIELDS, *known_fields}),
        extras=PersistentMap(extras),
    )


def _key_of(row: JsonFields, names: tuple[str, ...]) -> RowKey:
    values = (row.values.get(name) for name in names)
    return tuple(value if isinstance(value, str | int) else str(value) for value in values)


def _dropped_key(dropped: DroppedObject) -> RowKey:
    return (dropped.name,)


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
