"""The epoch of the next append, made durable before it: whatever fails or dies, the append is right."""

from __future__ import annotations

import errno

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE
from stratalog.testing.memory_filesystem import Survival
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.plain_batches import batch

EPOCHS_PATH = f"{PARTITION_DIR}/{LEADER_EPOCH_FILE}"


def test_the_append_behind_it_has_no_epoch_to_write() -> None:
    disk = HookedDisk()
    log = LogMachine(disk).start()
    log.appender.append_as_leader(batch(3), 1)
    assert not log.appender.has_epoch(4)
    log.appender.write_epoch(4)
    assert log.appender.has_epoch(4)
    assert disk.read_file(EPOCHS_PATH) == b"0\n2\n1 0\n4 3\n"
    before = len(disk.trace)
    log.appender.append_as_leader(batch(2), 4)
    assert not any(LEADER_EPOCH_FILE in name for name in disk.trace[before:])
    log.check()


@pytest.mark.parametrize("survival", [EVERYTHING_KEPT, NOTHING_KEPT])
def test_an_epoch_whose_append_never_came_is_forgotten_by_the_next_start(survival: Survival) -> None:
    machine = LogMachine()
    log = machine.start()
    log.appender.append_as_leader(batch(3), 1)
    log.flusher.flush()
    log.appender.write_epoch(4)
    machine.crash(survival)
    log = machine.start()
    assert [one.epoch for one in log.state_transfer.leader_epochs(0, 3)] == [1]
    log.appender.append_as_leader(batch(), 5)
    log.check()


def test_an_epoch_that_another_follows_before_an_append_has_no_entry() -> None:
    log = LogMachine().start()
    for epoch in (1, 2, 3):
        log.appender.write_epoch(epoch)
    log.appender.append_as_leader(batch(), 3)
    assert [tuple(one) for one in log.state_transfer.leader_epochs(0, 1)] == [(3, 0)]
    log.check()


def test_a_refusing_disk_leaves_it_to_the_append_which_says_so() -> None:
    refused = [False]

    def before(name: str, path: str) -> None:
        if refused[0] and LEADER_EPOCH_FILE in path:
            raise OSError(errno.ENOSPC, "no space", path)

    log = LogMachine(HookedDisk(before)).start()
    refused[0] = True
    log.appender.write_epoch(1)
    assert not log.appender.has_epoch(1)
    with pytest.raises(DataDirectoryError):
        log.appender.append_as_leader(batch(), 1)
    refused[0] = False
    assert log.appender.append_as_leader(batch(), 1).base_offset == 0
    # An epoch that goes back is refused by the append, too.
    log.appender.write_epoch(0)
    assert log.appender.has_epoch(1)
    log.check()
