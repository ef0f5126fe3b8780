"""The end of former versions of an Iceberg table: of snapshots, and of the files that no snapshot needs then.

A commit expires snapshots, in this order:

    1   the new metadata lacks them, and names their lists of manifests in a property
    2   rows and marks of dead rows are deleted that only they had
    3   then their manifests
    4   then their lists

After a crash in between the next commit does what is left, before it expires more. A list or a manifest that
is missing shows that step 2 was done. So that no file has to be looked for in all manifests, snapshots expire
in a row, oldest first: a file that one snapshot has and the next one lacks never comes back. A table with a
branch, or one that was rolled back or replaced, has no such row, and keeps all snapshots and all files, those
of snapshots that expired before, too; a tag keeps its snapshot and all later ones.

`kept_versions` has the properties that say how long snapshots stay. A snapshot's age begins when the next one
replaces it. Metadata files of former versions stay as long, also those that the log in the metadata, which
has room for a hundred, does not name any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile

from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from stratalog.base.errors import ObjectNotFoundError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.formats.iceberg_io import StoreFileIO, plain_location
from stratalog.pipeline.lake.kept_versions import (
    LEAST_SNAPSHOTS,
    SNAPSHOT_AGE,
    SNAPSHOTS_EXPIRE,
    flag,
    number,
)

VERSION_KEY = re.compile(r"metadata/v(\d+)\.metadata\.json")
"""The names of the metadata files of versions."""

EXPIRED_PROPERTY = "stratalog.expired"
"""The name of the property with the lists of manifests of the snapshots that expired last, oldest first."""


def expired_snapshots(metadata: TableMetadata, now_ms: int) -> list[Snapshot]:
    """The snapshots that the metadata need not have any more, oldest first."""
    age_ms, least = number(metadata.properties, SNAPSHOT_AGE), number(metadata.properties, LEAST_SNAPSHOTS)
    row = _row(metadata)
    if len(row) < len(metadata.snapshots) or not flag(metadata.properties, SNAPSHOTS_EXPIRE):
        return []
    named = {ref.snapshot_id for name, ref in metadata.refs.items() if name != MAIN_BRANCH}
    due = takewhile(
        lambda pair: pair[0].snapshot_id not in named and pair[1].timestamp_ms + age_ms <= now_ms,
        pairwise(row),
    )
    return [snapshot for snapshot, _ in due][: max(0, len(row) - least)]


def without_old_versions(metadata: TableMetadata, now_ms: int) -> TableMetadata:
    """The metadata without the former metadata files that were replaced long ago."""
    age_ms = number(metadata.properties, SNAPSHOT_AGE)
    log = metadata.metadata_log
    if not log or not flag(metadata.properties, SNAPSHOTS_EXPIRE):
        return metadata
    kept = [entry for entry, following in pairwise(log) if following.timestamp_ms + age_ms > now_ms]
    return metadata.model_copy(update={"metadata_log": [*kept, log[-1]]})


def old_versions(made: TableMetadata, written_ms: Mapping[int, int], now_ms: int) -> list[int]:
    """The versions whose metadata files need not stay: each was replaced long ago, and the newest metadata
    does not name it. `written_ms` has the time at which each version was written, by its number."""
    if not flag(made.properties, SNAPSHOTS_EXPIRE):
        return []
    # A file is known by its name: locations of others may be spelt in another way.
    names = (f"metadata/{entry.metadata_file.rpartition('/')[2]}" for entry in made.metadata_log)
    named = {int(found[1]) for name in names if (found := VERSION_KEY.fullmatch(name)) is not None}
    before_ms = now_ms - number(made.properties, SNAPSHOT_AGE)
    return [
        one
        for one, following in pairwise(sorted(written_ms))
        if one not in named and written_ms[following] <= before_ms
    ]


def pending_lists(metadata: TableMetadata) -> list[str]:
    """The lists of manifests of snapshots whose files may be there yet, oldest first."""
    found: list[str] = json.loads(metadata.properties.get(EXPIRED_PROPERTY, "[]"))
    return found


def delete_expired(store: ObjectStore, io: StoreFileIO, metadata: TableMetadata) -> bool:
    """Delete what only the snapshots had that the metadata names as expired. Returns False, and deletes
    nothing, if another program has left snapshots beside the row of the current one: they may have any file.
    Raises StoreError; another call goes on."""
    lists = pending_lists(metadata)
    row = _row(metadata)
    if not lists:
        return True
    if not row or len(row) < len(metadata.snapshots):
        return False
    with suppress(ObjectNotFoundError):
        # The last one is not expired.
        made = [_manifests(io, place) for place in [*lists, row[0].manifest_list]]
        with suppress(ObjectNotFoundError):
            _delete(store, io, [path for pair in pairwise(made) for path in _gone_files(io, *pair)])
        _delete(
            store, io, [path for before, after in pairwise(made) for path in before.keys() - after.keys()]
        )
    _delete(store, io, lists)
    return True


def _row(metadata: TableMetadata) -> list[Snapshot]:
    """The current snapshot and those before it, oldest first."""
    found: list[Snapshot] = []
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        found.append(snapshot)
        parent_id = snapshot.parent_snapshot_id
        snapshot = None if parent_id is None else metadata.snapshot_by_id(parent_id)
    return found[::-1]


def _manifests(io: StoreFileIO, place: str) -> dict[str, ManifestFile]:
    """The manifests of a list by their locations. Raises ObjectNotFoundError."""
    return {plain_location(one.manifest_path): one for one in read_manifest_list(io.new_input(place))}


def _gone_files(
    io: StoreFileIO, before: Mapping[str, ManifestFile], after: Mapping[str, ManifestFile]
) -> Iterator[str]:
    """The files of a snapshot that the next one lacks. Raises ObjectNotFoundError if a manifest of either is
    gone, before it yields any."""
    gone = [path for name in before.keys() - after.keys() for path in _paths(io, before[name])]
    stays = {path for name in after.keys() - before.keys() for path in _paths(io, after[name])}
    yield from (path for path in gone if path not in stays)


def _paths(io: StoreFileIO, manifest: ManifestFile) -> Iterator[str]:
    return (plain_location(entry.data_file.file_path) for entry in manifest.fetch_manifest_entry(io))


def _delete(store: ObjectStore, io: StoreFileIO, locations: Sequence[str]) -> None:
    """Delete files of the table. Others, which it may name, stay."""
    keys = [io.key_of(location) for location in locations if io.has(location)]
    if keys:
        store.delete_many(keys)
