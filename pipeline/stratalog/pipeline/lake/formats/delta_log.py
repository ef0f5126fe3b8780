"""The log of a Delta table: what is live after its commits, and the next commit.

    _delta_log/00000000000000000007.json                 a commit: an action on each line
    _delta_log/00000000000000000010.checkpoint.parquet   the state after commit 10: an action in each row

A commit is a file that must not be there yet, so of two writers one wins.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.base.errors import StoreCorruptError, UnsupportedOperationError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.settled_put import settled_put

LOG = "_delta_log/"
COMMIT_KEY = re.compile(r"_delta_log/(\d{20})\.json")
CHECKPOINT_KEY = re.compile(r"_delta_log/(\d{20})\.checkpoint(.*)\.(parquet|json)")
_ACTIONS = ["add", "remove", "metaData", "protocol", "txn"]

Action = Mapping[str, Any]


@dataclass(slots=True)
class DeltaState:
    """A table after some commits. Not thread-safe: one read makes it."""

    version: int = -1
    """The number of the last commit; -1 without any."""
    protocol: Action | None = None
    metadata: Action | None = None
    adds: dict[str, Action] = field(default_factory=dict)
    """The live files by their paths."""
    removes: dict[tuple[str, str], Action] = field(default_factory=dict)
    """The files that are not live any more, by their paths and deletion vectors."""
    transactions: dict[str, Action] = field(default_factory=dict)
    """The newest transactions of other programs."""

    def apply(self, action: Action) -> None:
        """Take an action."""
        if (added := action.get("add")) is not None:
            self.adds[unquote(added["path"])] = added
            self.removes.pop(_identity(added), None)
        elif (removed := action.get("remove")) is not None:
            identity = _identity(removed)
            self.removes[identity] = removed
            # A checkpoint names the file with its former deletion vectors, too, behind the one that is live.
            live = self.adds.get(identity[0])
            if live is not None and _identity(live) == identity:
                del self.adds[identity[0]]
        elif (metadata := action.get("metaData")) is not None:
            self.metadata = metadata
        elif (protocol := action.get("protocol")) is not None:
            self.protocol = protocol
        elif (transaction := action.get("txn")) is not None:
            self.transactions[transaction["appId"]] = transaction

    def apply_all(self, actions: Iterable[Action]) -> None:
        """Take the actions of the next commit. In it a file may be removed, and added again with another
        deletion vector, in any order."""
        for action in sorted(actions, key=lambda one: "remove" not in one):
            self.apply(action)
        self.version += 1


def commit_key(version: int) -> str:
    """The key of a commit."""
    return f"{LOG}{version:020}.json"


def checkpoint_key(version: int) -> str:
    """The key of a checkpoint after a commit."""
    return f"{LOG}{version:020}.checkpoint.parquet"


def read_log(store: ObjectStore) -> DeltaState:
    """The newest state. Raises StoreCorruptError if commits are missing, UnsupportedOperationError for
    checkpoints in a form that is not known, StoreError."""
    keys = [info.key for info in store.list(LOG)]
    state = DeltaState()
    checkpoints = [found for key in keys if (found := CHECKPOINT_KEY.fullmatch(key)) is not None]
    if checkpoints:
        newest = max(checkpoints, key=lambda found: int(found[1]))
        if newest[2] or newest[3] != "parquet":
            raise UnsupportedOperationError(
                "another program has written a checkpoint of the table in several parts, which this software"
                " does not read; make the table anew elsewhere",
                key=newest[0],
            )
        for action in _checkpoint_actions(store, newest[0]):
            state.apply(action)
        state.version = int(newest[1])
    for version in sorted(int(found[1]) for key in keys if (found := COMMIT_KEY.fullmatch(key)) is not None):
        if version <= state.version:
            continue
        if version != state.version + 1:
            raise StoreCorruptError(
                "commits of the table are missing; make the table anew elsewhere",
                key=commit_key(state.version + 1),
            )
        lines = store.get(commit_key(version)).data.splitlines()
        state.apply_all(json.loads(line) for line in lines if line.strip())
    return state


def write_commit(store: ObjectStore, version: int, actions: Sequence[Action]) -> bool:
    """Write a commit, unless there is one with its number. Returns whether it is there now. Raises
    StoreError."""
    data = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()
    return settled_put(store, commit_key(version), data)


def _identity(action: Action) -> tuple[str, str]:
    """A file with a deletion vector is another one than without it."""
    vector = action.get("deletionVector") or {}
    return unquote(action["path"]), f"{vector.get('pathOrInlineDv', '')}@{vector.get('offset', '')}"


def _checkpoint_actions(store: ObjectStore, key: str) -> Iterator[Action]:
    data = pa.BufferReader(store.get(key).data)
    parquet = pq.ParquetFile(data)
    names = [name for name in parquet.schema_arrow.names if name in _ACTIONS]
    if "sidecar" in parquet.schema_arrow.names and any(
        parquet.read(columns=["sidecar"]).column("sidecar").is_valid().to_pylist()
    ):
        raise UnsupportedOperationError(
            "the checkpoint of the table has sidecar files, which this software does not read", key=key
        )
    for row in parquet.read(columns=names).to_pylist():
        for name, action in row.items():
            if action is not None:
                yield {name: {field: _plain(value) for field, value in action.items() if value is not None}}


def _plain(value: Any) -> Any:
    """A map of Parquet, a list of pairs, as the dictionary that JSON has."""
    if isinstance(value, list) and all(isinstance(one, tuple) for one in value):
        return dict(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items() if inner is not None}
    return value
