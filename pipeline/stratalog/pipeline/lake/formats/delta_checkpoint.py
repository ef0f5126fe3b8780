"""Checkpoints of a Delta table's log: the state after a commit, so that readers need no older commits.

_delta_log/00000000000000000010.checkpoint.parquet   a row for each action, in the column of its name
_delta_log/_last_checkpoint                          the number of the newest one
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.formats.delta_log import LOG, Action, DeltaState, checkpoint_key

COMMITS_A_CHECKPOINT = 10

_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR_FIELDS: dict[str, Any] = {
    "storageType": pa.string(),
    "pathOrInlineDv": pa.string(),
    "offset": pa.int32(),
    "sizeInBytes": pa.int32(),
    "cardinality": pa.int64(),
}
_VECTOR = pa.struct(_VECTOR_FIELDS)
_FILE = {"path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(), "dataChange": pa.bool_()}
_FORMAT_FIELDS: dict[str, Any] = {"provider": pa.string(), "options": _TEXTS}
_FORMAT = pa.struct(_FORMAT_FIELDS)
_COLUMNS: dict[str, dict[str, Any]] = {
    "txn": {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()},
    "add": {
        **_FILE,
        "modificationTime": pa.int64(),
        "stats": pa.string(),
        "tags": _TEXTS,
        "deletionVector": _VECTOR,
    },
    "remove": {
        **_FILE,
        "deletionTimestamp": pa.int64(),
        "extendedFileMetadata": pa.bool_(),
        "deletionVector": _VECTOR,
    },
    "metaData": {
        "id": pa.string(),
        "name": pa.string(),
        "description": pa.string(),
        "format": _FORMAT,
        "schemaString": pa.string(),
        "partitionColumns": pa.list_(pa.string()),
        "configuration": _TEXTS,
        "createdTime": pa.int64(),
    },
    "protocol": {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": pa.list_(pa.string()),
        "writerFeatures": pa.list_(pa.string()),
    },
}
_SCHEMA = pa.schema({name: pa.struct(fields) for name, fields in _COLUMNS.items()})


def write_checkpoint(store: ObjectStore, state: DeltaState) -> None:
    """Store a checkpoint of the state. Raises StoreError."""
    rows = [{name: _row(name, action)} for name, action in _actions(state)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), sink, compression="snappy")
    data = sink.getvalue().to_pybytes()
    store.put(checkpoint_key(state.version), data)
    last = {"version": state.version, "size": len(rows), "sizeInBytes": len(data)}
    store.put(f"{LOG}_last_checkpoint", json.dumps(last).encode())


def _actions(state: DeltaState) -> Iterator[tuple[str, Action]]:
    assert state.protocol is not None, "a table has a protocol"
    assert state.metadata is not None, "a table has a schema"
    yield "protocol", state.protocol
    yield "metaData", state.metadata
    yield from (("txn", action) for action in state.transactions.values())
    yield from (("add", action) for action in state.adds.values())
    yield from (("remove", action) for action in state.removes.values())


def _row(name: str, action: Action) -> dict[str, Any]:
    """The action, with maps as the pairs that Arrow takes."""
    return {field: _value(action.get(field), kind) for field, kind in _COLUMNS[name].items()}


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if kind == _TEXTS:
        return list(value.items())
    if kind == _FORMAT:
        return {**value, "options": list((value.get("options") or {}).items())}
    return value
