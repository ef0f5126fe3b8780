"""`stratalog tier restore` to a directory dies, or fails, at each operation of the target's disk.

The next attempt, with the commits of the note in the target, makes the whole store, though the source has
gone on meanwhile. One behind the end changes nothing, and says that the target is a store.
"""

from __future__ import annotations

from typing import Final

import pytest

from stratalog.base.errors import PreconditionFailedError, StoreCorruptError
from stratalog.objectstore.local import LocalObjectStore
from stratalog.remote.restore.restore_note import RestoreNote
from stratalog.remote.restore.store_cut import StoreCutter, Until
from stratalog.remote.restore.store_restore import IS_STORE, StoreRestore
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import IDENTITY_KEY
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.tiered.restore_world import Readable, RestoreWorld
from tests.support.tiered.tiered_store import TieredStore

ROOT: Final = "/target"


class Restoring:
    """A store, and the disk of the target. Not thread-safe."""

    def __init__(self) -> None:
        self.world = RestoreWorld(3)
        for name in ("upload", "upload", "compact", "fold", "upload", "upload"):
            self.world.step(name)
        self.before = self.world.readable()
        self.disk = FaultyFileSystem()

    def store(self, disk: FaultyFileSystem) -> LocalObjectStore:
        return LocalObjectStore(disk, self.world.clock, self.world.ids, ROOT)

    def restore(self) -> None:
        self.restore_to(self.disk)

    def restore_to(self, disk: FaultyFileSystem) -> None:
        """The command without --until."""
        world, target = self.world, self.store(disk)
        identity = StoreIdentity.open(world.bucket)
        note = RestoreNote.find(target)
        until = Until() if note is None else Until(seqs=note.seqs)
        cut = StoreCutter(world.bucket, identity, target).cut(until)
        work = StoreRestore(world.bucket, identity, cut, world.clock.now_ms(), target)
        work.write(world.actor(target, work.identity_for(target)), lambda _: None)

    def is_finished(self, disk: FaultyFileSystem) -> bool:
        """Whether a server would take the target for a store."""
        return disk.exists(f"{ROOT}/{IDENTITY_KEY}")

    def require_whole(self, disk: FaultyFileSystem, expected: Readable) -> None:
        """The target is a store with these records."""
        target = self.store(disk)
        tiered = TieredStore(MemoryFileSystem(), target, self.world.clock, self.world.ids)
        assert self.world.readable(tiered) == expected
        assert RestoreNote.find(target) is None


def go_on(subject: Restoring, disk: FaultyFileSystem) -> None:
    """Repeat the command on the disk that an attempt has left, after the source has gone on."""
    subject.world.upload()
    expected, has_note = subject.before, RestoreNote.find(subject.store(disk)) is not None
    if subject.is_finished(disk) and not has_note:
        with pytest.raises(PreconditionFailedError) as refused:
            subject.restore_to(disk)
        assert refused.value.message.startswith(IS_STORE)
    else:
        if has_note and not subject.is_finished(disk):
            with pytest.raises(StoreCorruptError):
                StoreIdentity.find(subject.store(disk))
        expected = expected if has_note else subject.world.readable()
        subject.restore_to(disk)
    subject.require_whole(disk, expected)


def test_a_restore_that_dies_at_any_operation_of_the_target_is_repeated() -> None:
    def verify(death: Death[Restoring]) -> None:
        for disk in death.disks():
            go_on(death.subject, disk)

    CrashSweep(Restoring, Restoring.restore).at_deaths(verify)


def test_a_restore_that_fails_at_any_operation_of_the_target_is_repeated() -> None:
    """On a full disk, for example."""

    def verify(failure: Failure[Restoring]) -> None:
        go_on(failure.subject, failure.subject.disk)

    CrashSweep(Restoring, Restoring.restore).at_failures(verify)
