"""The files of refreshes, and the removal of those of refreshes that did not commit.

    data/ID/…                   rows, and marks of dead rows
    _data/ID/…                  rows of plain Parquet
    _bad/ID/…                   records whose values could not be decoded, until a full refresh
    metadata/ID-…               what a format writes before the commit
    _stratalog/keys/ID/…        the keys with newer records, until the refresh ends
    _stratalog/refreshes/ID     the note of a refresh that has begun: it names the one that it follows
    _stratalog/probes/ID        what a store is tried with, before its first table

A refresh looks for notes, reads the table, and writes its own note before any file. It can only commit behind
the one that its note names. So a note that was there before the table was read, and is there after it, and
names another one than the table has, belongs to a refresh that can commit no more: its files are deleted. The
note of the one that the table has goes before the next commit, so that no later refresh takes it for one of
those. A refresh that was killed leaves its files until a later one has committed.

A full refresh that was killed behind its commit leaves the bad records of the table before. They are those
that were there before the table was read, and whose refresh has no note then, so that it has ended, and that
the position does not name.

The names follow from the refresh and the task, and so do the bytes. A task that runs twice writes the same
files twice, so a refresh that commits has no others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence

from stratalog.base.errors import ObjectNotFoundError
from stratalog.objectstore.protocol import ObjectStore

_NOTES = "_stratalog/refreshes/"
_BAD = "_bad/"
PROBES = "_stratalog/probes/"
"""The prefix of what a writer tries the store with."""


def data_directory(refresh_id: str) -> str:
    """The prefix of a refresh's rows and marks."""
    return f"data/{refresh_id}/"


def listed_directory(refresh_id: str) -> str:
    """The prefix of a refresh's rows in a table that is read by its list alone. Programs that look for files
    themselves pass over names with an underscore, so they do not take dead rows for living ones."""
    return f"_data/{refresh_id}/"


def bad_directory(refresh_id: str) -> str:
    """The prefix of a refresh's bad records."""
    return f"{_BAD}{refresh_id}/"


def keys_directory(refresh_id: str) -> str:
    """The prefix of the keys with newer records."""
    return f"_stratalog/keys/{refresh_id}/"


def metadata_prefix(refresh_id: str) -> str:
    """The prefix of what a format writes before the commit, in the folder of its metadata."""
    return f"metadata/{refresh_id}-"


_PREFIXES = (data_directory, listed_directory, bad_directory, keys_directory, metadata_prefix)


class RefreshFiles:
    """The files of one refresh. Not thread-safe: the driver uses it. All methods raise StoreError."""

    def __init__(self, store: ObjectStore, refresh_id: str) -> None:
        self._store = store
        self._refresh_id = refresh_id
        self._bad: tuple[str, ...] = ()
        """Bad records that were there before the notes."""
        self._notes: tuple[str, ...] = ()
        """Notes of others that were there before the table was read."""

    def look(self) -> None:
        """Find the bad records and then the notes of others. The caller reads the table afterwards."""
        self._bad = tuple(info.key for info in self._store.list(_BAD))
        self._notes = tuple(info.key for info in self._store.list(_NOTES))

    def begin(self, follows: str | None) -> None:
        """Note the refresh, behind the one that the table has; None without any. Delete the files of those
        that can commit no more."""
        if follows is not None:
            self._store.delete_many([_note_of(follows)])
            self._delete(follows, (keys_directory,))
        self._sweep(follows)
        note = json.dumps({"follows": follows}).encode()
        self._store.put(_note_of(self._refresh_id), note)

    def forget_bad(self, named: Collection[str]) -> None:
        """Delete the bad records that the table does not have any more; `named` are those that it has."""
        at_work = tuple(bad_directory(key.removeprefix(_NOTES)) for key in self._notes)
        ends = [key for key in self._bad if key not in named and not key.startswith(at_work)]
        if ends:
            self._store.delete_many(ends)

    def end(self) -> None:
        """The refresh has committed: delete the files of refreshes that can commit no more."""
        self._store.delete_many([_note_of(self._refresh_id)])
        self._delete(self._refresh_id, (keys_directory,))
        self._sweep(self._refresh_id)

    def give_up(self) -> None:
        """The refresh has not committed and will not: delete all of its files. The note stays for the next
        one, because a write that got lost may land later."""
        self._delete(self._refresh_id)

    def _sweep(self, current: str | None) -> None:
        for key in self._notes:
            try:
                follows: str | None = json.loads(self._store.get(key).data)["follows"]
            except ObjectNotFoundError:
                # It has committed, or another refresh has deleted its files.
                continue
            if follows != current:
                self._delete(key.removeprefix(_NOTES))
                self._store.delete_many([key])

    def _delete(self, refresh_id: str, prefixes: Sequence[Callable[[str], str]] = _PREFIXES) -> None:
        keys = [info.key for prefix in prefixes for info in self._store.list(prefix(refresh_id))]
        if keys:
            self._store.delete_many(keys)


def _note_of(refresh_id: str) -> str:
    return f"{_NOTES}{refresh_id}"
