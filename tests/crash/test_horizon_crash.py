"""A machine that dies at every operation of a clean that notes when the log is due again, or of one that
drops what was due: the next process drops it in time, be the note there or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.manager.directories.manifest import read_manifest
from stratalog.record.builder import encode_batch
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR

RETENTION_MS = 60_000
NOTES = (f" {DATA_DIR}", "-checkpoint", "-checkpoint.tmp", "/manifest", "/manifest.tmp")
# What a clean that dies has left of the dirt may be little.
CONFIG = replace(COMPACTED, delete_retention_ms=RETENTION_MS, min_cleanable_dirty_ratio=0.0)


class CutOff:
    """A log with a tombstone. Used by one thread."""

    def __init__(self, former: str) -> None:
        """`former`: what the clean before has noted, the one that dies has to write down anew."""
        self.disk = FaultyFileSystem()
        self.machine = CleanerMachine(self.disk)
        log = self.machine.open(0, CONFIG)
        if former == "never":
            self.machine.fill(log, 3)
            assert self.run()
        records = [Record(0, self.machine.clock.now_ms(), b"k", value) for value in (b"v", None)]
        log.appender.append_as_leader(encode_batch(records), 1)
        self.machine.fill(log, 3)
        log.flusher.flush()
        if former == "a time":
            assert self.run()
            self.machine.clock.advance(RETENTION_MS)

    def run(self) -> bool:
        return self.machine.pool(manager=self.machine.log_manager.cleaner).clean_filthiest()


def noted(disk: FaultyFileSystem) -> str:
    [entry] = read_manifest(disk, DATA_DIR).partitions.values()
    known = {None: "nothing", NO_HORIZON: "never"}
    return known.get(entry.horizon_ms, "a time")


@pytest.mark.parametrize("former", ["nothing", "never", "a time"])
def test_what_was_due_goes_in_time_wherever_the_machine_dies(former: str) -> None:
    met: set[str] = set()

    def verify(death: Death[CutOff]) -> None:
        for disk in death.disks():
            met.add(noted(disk))
            require_settled(CleanerMachine(disk))

    sweep = CrashSweep(lambda: CutOff(former), CutOff.run, count=10)
    sweep.at_deaths(verify, always=lambda name: name.endswith(NOTES))
    assert met == {former, "never" if former == "a time" else "a time"}


def require_settled(machine: CleanerMachine) -> None:
    log = machine.open(0, CONFIG)
    worker = machine.pool(manager=machine.log_manager.cleaner)
    clean_count = 0
    for _ in range(4):
        while worker.clean_filthiest():
            clean_count += 1
        machine.clock.advance(RETENTION_MS)
    left = read_local(log)
    assert [one for one in left if one.value is None] == []
    assert sorted(one.key or b"" for one in left) == [b"k0", b"k1", b"k2"]
    assert clean_count <= 3
    assert machine.log_manager.cleaner.failures() == ()
    log.check()
