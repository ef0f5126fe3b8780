"""The files of refreshes, and the removal of those of refreshes that did not commit.

    data/ID/…                   rows, and marks of dead rows
    _bad/ID/…                   records whose values could not be decoded
    metadata/ID-…               what a format writes before the commit
    _stratalog/refreshes/ID     the note of a refresh that has begun: it names the one that it follows

A refresh writes its note first. It can only commit behind the one that it follows. So once the table has
another one, whatever note is left belongs to a refresh that can commit no more: its files are deleted. A
refresh that was killed leaves its files until the next one has committed.

The names follow from the refresh and the task, and so do the bytes. A task that runs twice writes the same
files twice, so a refresh that commits has no others.
"""

from __future__ import annotations

import json

from stratalog.objectstore.protocol import ObjectStore

_NOTES = "_stratalog/refreshes/"


def data_directory(refresh_id: str) -> str:
    """The prefix of a refresh's rows and marks."""
    return f"data/{refresh_id}/"


def bad_directory(refresh_id: str) -> str:
    """The prefix of a refresh's bad records."""
    return f"_bad/{refresh_id}/"


def metadata_prefix(refresh_id: str) -> str:
    """The prefix of what a format writes before the commit, in the folder of its metadata."""
    return f"metadata/{refresh_id}-"


class RefreshFiles:
    """The files of one refresh. Not thread-safe: the driver uses it. All methods raise StoreError."""

    def __init__(self, store: ObjectStore, refresh_id: str) -> None:
        self._store = store
        self._refresh_id = refresh_id

    def begin(self, follows: str | None) -> None:
        """Note the refresh, behind the one that the table has; None without any. Delete the files of those
        that can commit no more."""
        self._sweep(follows)
        note = json.dumps({"follows": follows}).encode()
        self._store.put(f"{_NOTES}{self._refresh_id}", note)

    def end(self) -> None:
        """The refresh has committed: delete the files of refreshes that can commit no more."""
        self._sweep(self._refresh_id)

    def give_up(self) -> None:
        """The refresh has not committed and will not: delete all of its files. The note stays for the next
        one, because a write that got lost may land later."""
        self._delete(self._refresh_id)

    def _sweep(self, current: str | None) -> None:
        for info in list(self._store.list(_NOTES)):
            refresh_id = info.key.removeprefix(_NOTES)
            if refresh_id == current:
                self._store.delete_many([info.key])
            elif refresh_id != self._refresh_id and self._follows(info.key) != current:
                self._delete(refresh_id)
                self._store.delete_many([info.key])

    def _follows(self, key: str) -> str | None:
        follows: str | None = json.loads(self._store.get(key).data)["follows"]
        return follows

    def _delete(self, refresh_id: str) -> None:
        prefixes = (data_directory(refresh_id), bad_directory(refresh_id), metadata_prefix(refresh_id))
        keys = [info.key for prefix in prefixes for info in self._store.list(prefix)]
        if keys:
            self._store.delete_many(keys)
