"""Refreshes at once delete the files of those that can commit no more, and of no others."""

from __future__ import annotations

import pytest

from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.lake.refresh_files import RefreshFiles, bad_directory, data_directory, keys_directory
from stratalog.testing.manual_clock import ManualClock


class Runs:
    """Refreshes of one table, without the table. Not thread-safe: one test uses it."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore(ManualClock())

    def looked(self, refresh_id: str) -> RefreshFiles:
        """A refresh that reads the table next."""
        files = RefreshFiles(self.store, refresh_id)
        files.look()
        return files

    def begun(self, refresh_id: str, follows: str | None) -> RefreshFiles:
        """A refresh that has written its file."""
        files = self.looked(refresh_id)
        files.begin(follows)
        self.store.put(f"{data_directory(refresh_id)}rows", b"rows")
        self.store.put(f"{keys_directory(refresh_id)}keys", b"keys")
        return files

    @property
    def left(self) -> set[str]:
        """The refreshes with files."""
        return {info.key.split("/")[1] for info in self.store.list("data/")}

    @property
    def notes(self) -> set[str]:
        return {info.key.rpartition("/")[2] for info in self.store.list("_stratalog/refreshes/")}

    @property
    def keys(self) -> set[str]:
        """The refreshes whose keys are there."""
        return {info.key.split("/")[2] for info in self.store.list("_stratalog/keys/")}


def test_one_that_read_an_old_version_leaves_those_behind_it_alone() -> None:
    runs = Runs()
    runs.begun("first", None).end()
    late = runs.looked("late")
    runs.begun("second", "first").end()
    third = runs.begun("third", "second")
    late.begin("first")
    assert runs.left == {"first", "second", "third"}, "the third one may commit yet"
    third.end()
    assert runs.left == {"first", "second", "third"}


def test_one_that_ends_late_leaves_those_behind_it_alone() -> None:
    runs = Runs()
    first = runs.begun("first", None)
    # The first one has committed.
    runs.begun("second", "first").end()
    runs.begun("third", "second")
    first.end()
    assert runs.left == {"first", "second", "third"}


@pytest.mark.parametrize("ends", [False, True])
def test_the_note_of_a_commit_goes_before_the_next_commit(ends: bool) -> None:
    """Also if the next one looked before it was there: otherwise its rows would go as those of a failure."""
    runs = Runs()
    runs.begun("first", None).end()
    third = runs.looked("third")
    second = runs.begun("second", "first")
    if ends:
        second.end()
    third.begin("second")
    third.end()
    runs.begun("fourth", "third").end()
    assert runs.left == {"first", "second", "fourth"}
    assert runs.notes == set()


def test_the_files_of_a_killed_one_go_with_the_next_commit() -> None:
    runs = Runs()
    runs.begun("first", None).end()
    runs.begun("killed", "first")
    second = runs.begun("second", "first")
    assert "killed" in runs.left, "it may be running"
    second.end()
    assert runs.left == {"first", "second"}
    assert runs.notes == set()


def test_the_files_of_one_that_lost_go_with_the_next_one() -> None:
    runs = Runs()
    runs.begun("first", None).end()
    winner = runs.begun("winner", "first")
    runs.begun("loser", "first")
    winner.end()
    assert "loser" in runs.left, "it began later"
    runs.begun("next", "winner")
    assert runs.left == {"first", "winner", "next"}


def test_bad_records_go_if_the_table_has_lost_them() -> None:
    """Those of refreshes at work, and those that come later, stay."""
    runs = Runs()
    paths = {name: f"{bad_directory(name)}0.parquet" for name in ("former", "first", "running", "late")}
    runs.begun("running", None)
    for name in ("former", "first", "running"):
        runs.store.put(paths[name], b"bad")
    second = runs.looked("second")
    runs.store.put(paths["late"], b"bad")
    second.forget_bad([paths["first"]])
    assert {info.key for info in runs.store.list("_bad/")} == {*paths.values()} - {paths["former"]}


def test_keys_last_as_long_as_their_refresh() -> None:
    runs = Runs()
    first = runs.begun("first", None)
    assert runs.keys == {"first"}
    first.end()
    assert runs.keys == set()
    runs.begun("killed", "first")
    last = runs.begun("last", "killed")
    assert runs.keys == {"last"}
    last.give_up()
    assert runs.keys == set()
