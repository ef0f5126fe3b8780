"""Leader epochs of a compacted log, and times at their limits or without any."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog

SMALL = dataclasses.replace(CONFIG, segment_bytes=300)


def test_a_leader_epoch_ends_where_it_did() -> None:
    """Though none of its records is left, nor any segment that began with it."""
    history = CompactedLog(SMALL)
    ends: dict[int, int] = {}
    for epoch in range(1, 12):
        history.leader_epoch = 2 * epoch
        for number in range(epoch % 3 + 1):
            history.put(f"k{number}={epoch}")
        ends[2 * epoch] = history.log.offsets.log_end_offset
    expected = {epoch: history.log.end_offset_for(epoch) for epoch in range(26)}
    for epoch, end_offset in ends.items():
        found = expected[epoch]
        assert found is not None
        assert (found.epoch, found.end_offset) == (epoch, end_offset)
    history.log.roll()
    assert history.clean() is not None
    assert {epoch: history.log.end_offset_for(epoch) for epoch in range(26)} == expected
    for is_clean in (True, False):
        history.restart(is_clean=is_clean)
        assert {epoch: history.log.end_offset_for(epoch) for epoch in range(26)} == expected


def test_without_times_in_its_records_a_segment_is_as_old_as_its_file() -> None:
    history = CompactedLog(dataclasses.replace(SMALL, min_compaction_lag_ms=10_000))
    disk = history.machine.disk
    assert isinstance(disk, MemoryFileSystem)
    disk.now_ms = history.machine.clock.now_ms
    for number in range(20):
        history.append([Record(0, NO_TIMESTAMP, b"k", b"%d" % number)])
    history.log.roll()
    history.put("z=1")
    history.machine.clock.advance(9_999)
    assert history.clean() is None
    history.restart(is_clean=False)
    assert history.clean() is None
    history.machine.clock.advance(1)
    assert history.clean() is not None
    assert history.read() == history.final_records()


@pytest.mark.parametrize("delete_retention_ms", [0, 1, 2**63 - 1])
def test_times_at_their_limits_stay_what_they_are(delete_retention_ms: int) -> None:
    history = CompactedLog(
        dataclasses.replace(
            SMALL, message_timestamp_after_max_ms=2**63 - 1, delete_retention_ms=delete_retention_ms
        )
    )
    for number, time_ms in enumerate((0, 2**62, 2**63 - 2, 1, NO_TIMESTAMP)):
        history.append(
            [Record(0, time_ms, b"k%d" % number, None), Record(0, min(time_ms, 5), b"o%d" % number, b"v")]
        )
    before = history.read()
    history.clean_all()
    assert history.read() == before
    history.put("z=1")
    history.machine.clock.advance(1)
    history.clean_all()
    values_only = [one for one in before if one.value is not None]
    assert history.read()[:-1] == (before if delete_retention_ms == 2**63 - 1 else values_only)
