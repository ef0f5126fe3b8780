"""The files of runs, and the removal of those of runs that did not commit.

    data/RUN/…               rows, and marks of dead rows, of a run
    _bad/RUN/…               records whose values could not be decoded
    metadata/RUN-…           what a format writes before the commit
    _stratalog/runs/RUN      the note of a run that has begun; it names the run that it follows

A run writes its note first, and deletes it at its end. A run can only commit behind the run that it follows.
So once the table has another run, whatever note is left belongs to a run that can commit no more: its files
are deleted. A run that was killed leaves its files until the next run has committed.

The names follow from the run and the task, and so do the bytes. A task that runs twice writes the same files
twice, so a run that commits has no others.
"""

from __future__ import annotations

import json

from stratalog.objectstore.protocol import ObjectStore

_NOTES = "_stratalog/runs/"


def data_directory(run_id: str) -> str:
    """The prefix of a run's rows and marks."""
    return f"data/{run_id}/"


def bad_directory(run_id: str) -> str:
    """The prefix of a run's bad records."""
    return f"_bad/{run_id}/"


def metadata_prefix(run_id: str) -> str:
    """The prefix of what a format writes before the commit, in the folder of its metadata."""
    return f"metadata/{run_id}-"


class RunFiles:
    """The files of one run. Not thread-safe: the driver uses it. All methods raise StoreError."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def begin(self, follows: str | None) -> None:
        """Note the run, behind the one that the table has; None without any. Delete the files of runs that
        can commit no more."""
        self._sweep(follows)
        note = json.dumps({"follows": follows}).encode()
        self._store.put(f"{_NOTES}{self._run_id}", note)

    def end(self) -> None:
        """The run has committed: delete the files of runs that can commit no more."""
        self._sweep(self._run_id)

    def give_up(self) -> None:
        """The run has not committed and will not: delete all of its files. The note stays for the next run,
        because a write that got lost may land later."""
        self._delete(self._run_id)

    def _sweep(self, current: str | None) -> None:
        for info in list(self._store.list(_NOTES)):
            run_id = info.key.removeprefix(_NOTES)
            if run_id == current:
                self._store.delete_many([info.key])
            elif run_id != self._run_id and self._follows(info.key) != current:
                self._delete(run_id)
                self._store.delete_many([info.key])

    def _follows(self, key: str) -> str | None:
        follows: str | None = json.loads(self._store.get(key).data)["follows"]
        return follows

    def _delete(self, run_id: str) -> None:
        prefixes = (data_directory(run_id), bad_directory(run_id), metadata_prefix(run_id))
        keys = [info.key for prefix in prefixes for info in self._store.list(prefix)]
        if keys:
            self._store.delete_many(keys)
