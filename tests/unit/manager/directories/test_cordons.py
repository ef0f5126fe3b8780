"""Cordons of log directories: the manifest has each, and it is stronger than the settings."""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.directories.manifest import read_manifest
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_machine import LogMachine

A, B, C = "/disk-a/logs", "/disk-b/logs", "/disk-c/logs"


def test_a_cordon_is_in_the_manifest_and_stronger_than_the_settings() -> None:
    disk = FaultyFileSystem()

    def cordons(*given: str) -> tuple[bool | None, ...]:
        """The cordon of each manifest, then the states, of a machine that starts with these settings."""
        machine = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds(), cordoned_dirs=given)
        manager = machine.open()
        manager.directories.alter_cordons(wanted)
        marks = tuple(read_manifest(disk, path).cordoned for path in (A, B, C))
        found = tuple(
            one.path for one in manager.directories.statuses() if one.state is DirectoryState.CORDONED
        )
        assert found == (tuple(given) if wanted is None else tuple(sorted(wanted)))
        assert manager.directories.altered_cordons() == (None if marks == (None, None, None) else found)
        machine.stop()
        return marks

    wanted: list[str] | None = [A, C]
    assert cordons() == (True, False, True)
    wanted = [C]
    assert cordons(A) == (False, False, True)
    wanted = []
    assert cordons(A, B, C) == (False, False, False)
    wanted = None
    assert cordons(B) == (None, None, None)


def test_an_alteration_is_remembered_when_the_settings_change() -> None:
    disk = FaultyFileSystem()
    for given, altered, found in [((), [], ()), ((B,), None, ()), ((A,), [A], (A,)), ((), None, (A,))]:
        machine = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds(), cordoned_dirs=given)
        manager = machine.open()
        if altered is not None:
            manager.directories.alter_cordons(altered)
        assert manager.directories.altered_cordons() == found
        machine.stop()


def test_the_cordon_of_an_offline_directory_stays() -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds())
    manager = machine.open()
    manager.directories.alter_cordons([B])
    disk.fail_where(lambda line: f"{B}/" in line)
    with pytest.raises(DataDirectoryError):
        manager.checkpoint()
    for refused in ([], [A], None):
        with pytest.raises(DataDirectoryError) as failure:
            manager.directories.alter_cordons(refused)
        assert failure.value.fields["path"] == B
        assert manager.directories.altered_cordons() == (B,), "nothing has changed"
    # Others may change while it stays cordoned.
    manager.directories.alter_cordons([B, C])
    disk.mend()
    disk = disk.killed()
    assert [read_manifest(disk, path).cordoned for path in (A, B, C)] == [False, True, True]


class CordoningMachine:
    """Three directories, the second of which is cordoned."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.manager = LogMachine(self.disk, data_dirs=(A, B, C), ids=SequentialIds()).open()
        self.manager.directories.alter_cordons([B])


def test_a_crash_leaves_each_cordon_as_it_was_or_as_it_was_to_be() -> None:
    def verify(death: Death[CordoningMachine]) -> None:
        for disk in death.disks():
            manager = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds()).open()
            found = tuple(
                one.path for one in manager.directories.statuses() if one.state is DirectoryState.CORDONED
            )
            assert found in ((B,), (A, B), (A,), (A, C))

    CrashSweep(CordoningMachine, lambda one: one.manager.directories.alter_cordons([A, C])).at_deaths(verify)
