"""A transaction whose marker a truncation took, below what was clean."""

from __future__ import annotations

import dataclasses

from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_machine import DATA_DIR, PARTITION

RETENTION_MS = 1000


def test_what_is_undecided_again_is_not_due_for_its_tombstones() -> None:
    """No clean may go beyond the last stable offset, be it only for the time of what it kept."""
    history = CompactedLog(dataclasses.replace(CONFIG, delete_retention_ms=RETENTION_MS))
    history.put("z=1", "t")
    history.put("a=1", txn=1)
    history.put("b=1")
    history.end(1, committed=True)
    history.put("b=2")
    history.put("b=3")
    history.log.roll()
    history.put("q=1")
    history.log.roll()
    assert history.clean() is not None
    manager = history.machine.manager
    assert manager is not None
    cleaner = manager.cleaner
    manager.truncate_to(PARTITION, 4)
    history.log = manager.log(PARTITION)
    history.log.roll()
    assert history.log.offsets.last_stable_offset == 2
    assert (
        cleaner.cleaned_offset(PARTITION, DATA_DIR) == history.log.local_log.segments.active.base_offset == 4
    )
    for _ in range(3):
        history.machine.clock.advance(5 * RETENTION_MS)
        assert not cleaner.find_horizon()
        assert history.clean() is None
    history.log.appender.append_end_transaction_marker(1, 0, 0, committed=True, leader_epoch=1)
    history.log.roll()
    # Decided, it is dirt behind what is clean; the tombstone goes with the first clean.
    assert history.clean() is not None
    assert [(one.offset, one.key) for one in history.read()] == [(0, b"z"), (2, b"a")]
    assert cleaner.failures() == ()
