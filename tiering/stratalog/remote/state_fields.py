"""The fields of a checkpoint's root, and the rows of its pages, that shards and the catalog share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypedDict
from uuid import UUID

from stratalog.remote.checkpoint import COMMON_FIELDS, CheckpointParts
from stratalog.remote.checkpoint_page import Row, RowKey, Table
from stratalog.remote.document_ref import DroppedObject, parse_tracked_file
from stratalog.remote.json_document import JsonFields, JsonObject
from stratalog.remote.log_state import LogState
from stratalog.remote.persistent_map import PersistentMap

DROPPED = "dropped"
_DROPPED_COLUMNS = ("name", "kind", "size_bytes", "seq", "time_ms", "brought_seq")


class CommonState(TypedDict):
    """Arguments of `LogState` that a checkpoint holds."""

    seq: int
    uuid: UUID
    time_ms: int
    epoch: int
    horizon: int
    catalog_seq: int
    dropped_objects: PersistentMap[str, DroppedObject]
    pins: tuple[JsonObject, ...]
    root_extras: JsonObject
    extras: PersistentMap[tuple[str, RowKey], JsonObject]


def state_parts(state: LogState, fields: dict[str, object], tables: dict[str, Table]) -> CheckpointParts:
    """The parts of a state: what its kind has, and what every state has."""
    rows: list[Row] = [
        (file.name, file.kind.value, file.size_bytes, file.seq, file.time_ms, file.brought_seq)
        for _, file in sorted(state.dropped_objects.items(), key=lambda item: item[0])
    ]
    common: dict[str, object] = {
        "uuid": str(state.uuid),
        "time_ms": state.time_ms,
        "epoch": state.epoch,
        "horizon": state.horizon,
        "catalog_seq": state.catalog_seq,
        "pins": list(state.pins),
    }
    return CheckpointParts(
        JsonFields({**common, **fields, **state.root_extras}, "checkpoint"),
        {**tables, DROPPED: make_table(state, DROPPED, _DROPPED_COLUMNS, 1, rows)},
        {},
    )


def make_table(state: LogState, kind: str, columns: tuple[str, ...], key_size: int, rows: list[Row]) -> Table:
    """A table with the unknown columns of its rows."""
    extras = {key: extra for (extra_kind, key), extra in state.extras.items() if extra_kind == kind}
    return Table(columns, key_size, rows, extras)


def common_from_parts(
    parts: CheckpointParts, columns: Mapping[str, tuple[tuple[str, ...], int]], known_fields: Collection[str]
) -> CommonState:
    """Arguments of `LogState`. `columns`: by kind the known columns and how many are the key. Raises
    StoreCorruptError."""
    fields = parts.fields
    extras: list[tuple[tuple[str, RowKey], JsonObject]] = []
    for kind, (names, key_size) in {**columns, DROPPED: (_DROPPED_COLUMNS, 1)}.items():
        for row in parts.rows.get(kind, ()):
            if len(row.values) == len(names):
                continue
            # A row that an older writer added has nothing in a newer one's columns.
            unknown = {name: value for name, value in row.unknown(names).items() if value is not None}
            if unknown:
                extras.append(((kind, _key_of(row, names[:key_size])), unknown))
    return CommonState(
        seq=fields.integer("seq", minimum=1),
        uuid=fields.uuid("uuid"),
        time_ms=fields.integer("time_ms"),
        epoch=fields.integer("epoch"),
        horizon=fields.integer("horizon"),
        catalog_seq=fields.integer("catalog_seq"),
        dropped_objects=PersistentMap(
            (dropped.name, dropped) for dropped in map(_parse_dropped, parts.rows.get(DROPPED, ()))
        ),
        pins=fields.each("pins", lambda item, what: JsonFields.of(item, what).values),
        root_extras=fields.unknown({*COMMON_FIELDS, *known_fields}),
        extras=PersistentMap(extras),
    )


def _key_of(row: JsonFields, names: tuple[str, ...]) -> RowKey:
    values = (row.values.get(name) for name in names)
    return tuple(value if isinstance(value, str | int) else str(value) for value in values)


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
