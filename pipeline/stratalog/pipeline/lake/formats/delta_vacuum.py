"""The end of former versions of a Delta table: of files that were removed long ago, and of old commits.

Both happen with a checkpoint, which first lacks what is deleted:

    1   files are deleted whose removal is older than the table says, and that nothing else names
    2   the checkpoint is written, which names the removed files that are still there
    3   commits and checkpoints are deleted that come before a checkpoint of that age

After a crash in between the log names the removed files, so the next checkpoint begins with them again.
`kept_versions` has the properties that say how long they stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.formats.deletion_vector import described_rows
from stratalog.pipeline.lake.formats.delta_log import (
    CHECKPOINT_KEY,
    COMMIT_KEY,
    LOG,
    Action,
    DeltaState,
)
from stratalog.pipeline.lake.kept_versions import (
    FILE_RETENTION,
    LOG_EXPIRES,
    LOG_RETENTION,
    flag,
    interval_ms,
)


def delete_removed(store: ObjectStore, state: DeltaState, now_ms: int) -> None:
    """Delete the files whose removal is older than the table says, and take it from the state. Raises
    StoreError."""
    before_ms = now_ms - interval_ms(_configuration(state), FILE_RETENTION)
    ends = {
        identity: action
        for identity, action in state.removes.items()
        if action.get("deletionTimestamp", now_ms) <= before_ms
    }
    stays = [action for identity, action in state.removes.items() if identity not in ends]
    keys = set(_keys(ends.values())) - set(_keys([*state.adds.values(), *stays]))
    if keys:
        store.delete_many(sorted(keys))
    for identity in ends:
        del state.removes[identity]


def delete_old_log(store: ObjectStore, state: DeltaState, now_ms: int) -> None:
    """Delete the commits and checkpoints before the newest checkpoint that is older than the table says.
    Raises StoreError."""
    configuration = _configuration(state)
    before_ms = now_ms - interval_ms(configuration, LOG_RETENTION)
    if not flag(configuration, LOG_EXPIRES):
        return
    listed = list(store.list(LOG))
    checkpoints = {
        int(found[1]): info.modified_ms
        for info in listed
        # Parts of a checkpoint may be all that there is of it.
        if (found := CHECKPOINT_KEY.fullmatch(info.key)) is not None and not found[2]
    }
    old = [version for version, modified_ms in checkpoints.items() if modified_ms <= before_ms]
    if not old:
        return
    ends = [
        info.key
        for info in listed
        if (found := COMMIT_KEY.fullmatch(info.key) or CHECKPOINT_KEY.fullmatch(info.key)) is not None
        and int(found[1]) < max(old)
    ]
    if ends:
        store.delete_many(ends)


def _configuration(state: DeltaState) -> Mapping[str, str]:
    assert state.metadata is not None, "a table has a schema"
    configuration: Mapping[str, str] = state.metadata.get("configuration") or {}
    return configuration


def _keys(actions: Iterable[Action]) -> Iterator[str]:
    """The files in the table that actions name: those of rows, and those of deletion vectors."""
    for action in actions:
        path = unquote(action["path"])
        if "://" not in path and not path.startswith("/"):
            yield path
        vector = action.get("deletionVector")
        if vector is not None and vector["storageType"] == "u":
            yield described_rows(vector).path
