"""A table of Delta Lake. Rows die by deletion vectors, so an incremental refresh writes a few bytes for each.

The position is among the table's properties, which each commit of a refresh replaces. Readers need Delta's
reader version 3 with deletion vectors. Former versions end as `delta_vacuum` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import pyarrow as pa
from pyroaring import BitMap

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreError, UnsupportedOperationError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.formats.deletion_vector import (
    FIRST_POSITION,
    decoded_vector,
    described_rows,
    encoded_vector,
    vector_descriptor,
    vector_path,
)
from stratalog.pipeline.lake.formats.delta_checkpoint import COMMITS_A_CHECKPOINT, write_checkpoint
from stratalog.pipeline.lake.formats.delta_log import Action, DeltaState, read_log, write_commit
from stratalog.pipeline.lake.formats.delta_schema import delta_schema, has_local_times, has_variants
from stratalog.pipeline.lake.formats.delta_vacuum import delete_old_log, delete_removed
from stratalog.pipeline.lake.kept_versions import require_sound
from stratalog.pipeline.lake.lake_table import (
    ChangedFile,
    DeadRows,
    TableChange,
    TableChangedError,
    TableFile,
    TableState,
    WrittenFile,
)
from stratalog.pipeline.lake.refresh_files import data_directory
from stratalog.pipeline.lake.row_files import integer_bounds
from stratalog.pipeline.lake.table_position import POSITION_PROPERTY, TablePosition

_VARIANTS = "variantType"
_KNOWN_FEATURES = frozenset({"deletionVectors", "timestampNtz", "appendOnly", "invariants"})
_BOUNDED_COLUMNS = ("partition", "offset")
"""Readers leave out files by the bounds of these columns, which are never null."""
_VECTOR_FRAME_BYTES = 8
"""The size and the checksum around a vector."""


class DeltaTable:
    """Implements `LakeTable`. Not thread-safe: the driver uses it."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        schema: pa.Schema,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`schema` is that of the files that a commit adds, `properties` those of `kept_versions` that it
        sets."""
        self.removal = VectorRemoval()
        self._store = store
        self._clock = clock
        self._properties = properties
        self._schema_json = delta_schema(schema)
        self._state = DeltaState()

    def rows_directory(self, refresh_id: str) -> str:
        """A folder among `data/`."""
        return data_directory(refresh_id)

    def read(self) -> TableState:
        """The newest version. Raises StoreError, UnsupportedOperationError."""
        self._state = state = read_log(self._store)
        if state.metadata is None:
            return TableState(None, (), exists=False)
        _require_known(state)
        text = state.metadata.get("configuration", {}).get(POSITION_PROPERTY)
        files = tuple(map(_file_of, state.adds.values()))
        return TableState(None if text is None else TablePosition.from_json(text), files, exists=True)

    def commit(self, change: TableChange) -> None:
        """Write the next commit. Raises TableChangedError, StoreError, InvalidConfigError for a property of
        the table that is malformed."""
        state, actions = self._state, list(self._actions(change))
        if not write_commit(self._store, state.version + 1, actions):
            raise TableChangedError(
                "another refresh, or another program, has changed the table meanwhile; run again",
                table=self._store.url,
                version=state.version + 1,
            )
        state.apply_all(actions)
        if state.version and state.version % COMMITS_A_CHECKPOINT == 0:
            now_ms = self._clock.now_ms()
            with suppress(StoreError):
                # The next checkpoint has what is left.
                delete_removed(self._store, state, now_ms)
            with suppress(StoreError):
                # The log is whole without it.
                write_checkpoint(self._store, state)
                delete_old_log(self._store, state, now_ms)

    def _actions(self, change: TableChange) -> Iterator[Action]:
        now_ms = self._clock.now_ms()
        former = self._state.metadata
        yield {"commitInfo": _commit_info(change, now_ms, is_first=former is None)}
        if former is None or change.is_full:
            yield {"protocol": _protocol(self._schema_json)}
        configuration = {} if former is None else dict(former.get("configuration", {}))
        configuration |= {
            **self._properties,
            "delta.enableDeletionVectors": "true",
            POSITION_PROPERTY: change.position.to_json(),
        }
        require_sound("delta", configuration)
        table_id = uuid5(NAMESPACE_URL, f"stratalog:{change.position.refresh_id}")
        yield {
            "metaData": {
                "id": str(table_id) if former is None else former["id"],
                "format": {"provider": "parquet", "options": {}},
                "schemaString": self._schema_json,
                "partitionColumns": [],
                "configuration": configuration,
                "createdTime": now_ms if former is None else former.get("createdTime", now_ms),
            }
        }
        removed = list(self._state.adds) if change.is_full else [one.before.path for one in change.changed]
        for path in removed:
            yield {"remove": _remove(self._state.adds[path], now_ms)}
        for one in change.changed:
            if one.marked is not None and one.marked.dead is not None:
                # The same file with another mark.
                add: dict[str, Any] = {**self._state.adds[one.marked.path]}
                add["deletionVector"] = vector_descriptor(one.marked.dead)
                # The bounds are those of all rows, dead ones too.
                add["stats"] = json.dumps({**json.loads(add["stats"]), "tightBounds": False})
                yield {"add": {**add, "dataChange": True, "modificationTime": now_ms}}
        for written in change.added:
            yield {"add": _add(written, now_ms)}


class VectorRemoval:
    """Implements `RowRemoval` by deletion vectors. Immutable."""

    @property
    def writes_rows(self) -> bool:
        """No row is: dead ones get a mark."""
        return False

    def dead_rows(self, store: ObjectStore, file: TableFile) -> BitMap:
        """The rows of the file's vector. Raises StoreError."""
        if file.dead is None:
            return BitMap()
        size = file.dead.size_bytes + _VECTOR_FRAME_BYTES
        data = store.get_range(file.dead.path, file.dead.position, size)
        return decoded_vector(data, {"key": file.dead.path, "file": file.path})

    def remove(self, store: ObjectStore, file: TableFile, dead: BitMap, refresh_id: str) -> ChangedFile:
        """Write a vector. Raises StoreError."""
        if len(dead) == file.row_count:
            return ChangedFile(file)
        path = vector_path(data_directory(refresh_id), uuid5(UUID(refresh_id), file.path))
        data = encoded_vector(dead)
        store.put(path, data)
        size = len(data) - FIRST_POSITION - _VECTOR_FRAME_BYTES
        return ChangedFile(file, marked=file._replace(dead=DeadRows(path, FIRST_POSITION, size, len(dead))))


def _require_known(state: DeltaState) -> None:
    """Raise UnsupportedOperationError for a table that this software must not write."""
    protocol, metadata = state.protocol or {}, state.metadata or {}
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    schema_json = metadata.get("schemaString")
    if not schema_json or not has_variants(schema_json):
        # deltalake adds the feature with any property, and it is of such columns alone.
        features.discard(_VARIANTS)
    if not features <= _KNOWN_FEATURES or metadata.get("partitionColumns"):
        raise UnsupportedOperationError(
            "the table has features of Delta Lake that this software does not know, or is partitioned; name"
            " another place",
            features=", ".join(sorted(features - _KNOWN_FEATURES)),
        )


def _file_of(add: Action) -> TableFile:
    stats = json.loads(add.get("stats") or "{}")
    if "numRecords" not in stats:
        raise UnsupportedOperationError(
            "another program has written a file without its number of rows to the table; name another place",
            file=add["path"],
        )
    vector = add.get("deletionVector")
    dead = None if vector is None else described_rows(vector)
    return TableFile(add["path"], add["size"], stats["numRecords"], dead)


def _commit_info(change: TableChange, now_ms: int, *, is_first: bool) -> dict[str, Any]:
    return {
        "timestamp": now_ms,
        "operation": "CREATE TABLE AS SELECT" if is_first else "WRITE" if change.is_full else "MERGE",
        "operationParameters": {},
        "engineInfo": "stratalog",
        "txnId": change.position.refresh_id,
    }


def _protocol(schema_json: str) -> dict[str, Any]:
    features = ["deletionVectors", *(["timestampNtz"] if has_local_times(schema_json) else [])]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": [*features, "appendOnly", "invariants"],
    }


def _add(written: WrittenFile, now_ms: int) -> dict[str, Any]:
    file = written.file
    bounds = {name: integer_bounds(written.footer, name) for name in _BOUNDED_COLUMNS}
    stats = {
        "numRecords": file.row_count,
        "tightBounds": True,
        "minValues": {name: low for name, (low, _) in bounds.items()},
        "maxValues": {name: high for name, (_, high) in bounds.items()},
        "nullCount": dict.fromkeys(bounds, 0),
    }
    return {
        "path": file.path,
        "partitionValues": {},
        "size": file.size_bytes,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": json.dumps(stats),
    }


def _remove(add: Action, now_ms: int) -> dict[str, Any]:
    removed: dict[str, Any] = {
        "path": add["path"],
        "deletionTimestamp": now_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": add.get("partitionValues") or {},
        "size": add["size"],
    }
    if add.get("deletionVector") is not None:
        removed["deletionVector"] = add["deletionVector"]
    return removed
