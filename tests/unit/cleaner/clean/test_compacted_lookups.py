"""What is asked of a compacted log beside its records: times, epochs, horizons, deletions and policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from stratalog.log.read.isolation import Isolation
from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_ledger import read_local

SMALL = dataclasses.replace(CONFIG, segment_bytes=300)
RETENTION_MS = CONFIG.delete_retention_ms
MINUTE_MS = 60_000


def reconfigure(history: CompactedLog, **changes: Any) -> None:
    config = dataclasses.replace(history.machine.config, **changes)
    history.machine.config = config
    history.log.reconfigure(config)


def require_times(history: CompactedLog) -> None:
    """Every look-up by time is what a scan of all records finds."""
    there = read_local(history.log)
    for wanted in sorted({one.timestamp_ms + delta for one in there for delta in (-1, 0, 1)} | {0, 2**62}):
        expected = next((one for one in there if one.timestamp_ms >= wanted), None)
        found = history.log.reader.offset_for_timestamp(wanted, Isolation.LOG_END)
        assert (found and found.offset) == (expected and expected.offset)
        assert (found and found.timestamp_ms) == (expected and expected.timestamp_ms)
    newest = max(there, key=lambda one: (one.timestamp_ms, -one.offset))
    found = history.log.reader.max_timestamp()
    assert found is not None
    assert (found.timestamp_ms, found.offset) == (newest.timestamp_ms, newest.offset)


@pytest.mark.parametrize("seed", range(5))
def test_times_are_looked_up_as_by_a_scan(seed: int) -> None:
    """Records are out of order by time, and some that were the newest of their batch or segment go."""
    history = CompactedLog(dataclasses.replace(SMALL, index_interval_bytes=1), seed=seed)
    chance = history.chance
    for number in range(75):
        if number % 19 == 18:
            history.clean_all(chance.choice([1, 3, 1000]))
            require_times(history)
        count = chance.randrange(1, 4)
        pairs = [f"k{chance.randrange(12)}" + chance.choice(["=1", "=2", ""]) for _ in range(count)]
        times_ms = [history.now_ms + chance.randrange(-500_000, 3_000_000) for _ in pairs]
        history.append(
            [
                Record(0, time_ms, pair[:2].encode(), pair[3:].encode() if "=" in pair else None)
                for pair, time_ms in zip(pairs, times_ms, strict=True)
            ]
        )
        history.machine.clock.advance(chance.choice([1, 100, RETENTION_MS // 5]))
    history.clean_all()
    require_times(history)
    history.restart(is_clean=False)
    require_times(history)


def test_a_delete_horizon_does_not_change_the_times_of_records() -> None:
    """It is stored in a field of the batch that else is the base of its records' times."""
    history = CompactedLog(SMALL)
    for number in range(6):
        history.append(
            [
                Record(0, history.now_ms - 7_000 * number, b"t%d" % number, None),
                Record(0, history.now_ms - 9_000 * number, b"v%d" % number, b"v"),
            ]
        )
    before = read_local(history.log)
    for _ in range(3):
        history.clean_all()
        assert [one for one in read_local(history.log) if one.offset < 12] == before
        require_times(history)
        history.machine.clock.advance(RETENTION_MS // 4)
        history.put("x=1")
    horizons = {header.delete_horizon_ms for header in history.headers()[:6]}
    assert horizons == {history.now_ms + RETENTION_MS // 4}


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


def nothing(history: CompactedLog) -> None:
    assert history.log.offsets.log_end_offset > 0


def restart(history: CompactedLog) -> None:
    history.restart(is_clean=True)


def kill(history: CompactedLog) -> None:
    history.restart(is_clean=False)


def keep_no_more(history: CompactedLog) -> None:
    reconfigure(history, delete_retention_ms=0)


def jump_back(history: CompactedLog) -> None:
    history.machine.clock.set_wall_ms(history.now_ms - 10 * RETENTION_MS)


def jump_back_and_forth(history: CompactedLog) -> None:
    jump_back(history)
    history.put("y=1")
    history.clean_all()
    history.machine.clock.set_wall_ms(history.now_ms + 10 * RETENTION_MS)


@pytest.mark.parametrize("meanwhile", [nothing, restart, kill, jump_back, jump_back_and_forth, keep_no_more])
def test_a_delete_horizon_is_kept_through(meanwhile: Callable[[CompactedLog], None]) -> None:
    """A tombstone never goes before the time that its first clean gave it."""
    history = CompactedLog(SMALL)
    history.put("k=1", "other=1")
    history.put("k")
    history.clean_all()
    horizon_ms = history.now_ms + RETENTION_MS
    assert [header.delete_horizon_ms for header in history.headers()].count(horizon_ms) == 1
    meanwhile(history)
    for step in range(12):
        history.put(f"x={step}")
        before_ms = history.now_ms
        history.clean_all()
        is_there = any(one.key == b"k" for one in history.read())
        assert is_there == (before_ms < horizon_ms)
        assert b"k" not in history.read_table()
        history.machine.clock.advance(max(horizon_ms - history.now_ms - 1, 0) if step % 2 == 0 else 1)


@pytest.mark.parametrize("to", range(13))
def test_records_deleted_up_to_the_middle_of_a_batch(to: int) -> None:
    """What was below is not seen again, not by anybody; what is above is as before; a key whose last record
    was deleted is gone."""
    history = CompactedLog(SMALL)
    history.put("a=1", "b=1", "c=1", "d=1")
    history.put("a=2", "e=1", "c=2", "f=1")
    history.log.roll()
    history.put("g=1", "a=3", "h=1")
    history.put("z=1")
    history.log.increment_log_start_offset(to)
    for step in range(4):
        assert history.log.offsets.log_start_offset == to
        assert history.read() == [one for one in history.read() if one.offset >= to]
        assert history.read_table() == history.table()
        if step == 0:
            history.log.retention.delete_old_segments()
        elif step == 1:
            history.clean_all()
            assert history.read() == history.final_records()
        else:
            history.restart(is_clean=step == 2)


def test_a_clean_that_is_killed_again_and_again_comes_to_its_end() -> None:
    history = CompactedLog(dataclasses.replace(SMALL, segment_bytes=500))
    for number in range(36):
        history.put(f"k{number % 7}={number}", f"j{number}=1", txn=number % 2)
        if number % 5 == 4:
            history.end(number % 2, committed=number % 3 > 0)
    for producer_id in history.open_producers:
        history.end(producer_id, committed=True)
    history.log.roll()
    table = history.table()
    at, is_whole = 0, False
    while not is_whole:
        at += 1
        found = [history.disk_now()]
        count = 0

        def on_step() -> None:
            nonlocal count
            count += 1
            if count == at:  # noqa: B023 - called within this turn alone
                found[0] = history.disk_now()  # noqa: B023 - as above

        history.clean(on_step=on_step)
        is_whole = count < at
        if not is_whole:
            history.restart_from(found[0])
        assert history.read_table() == table
        names = [name for name in history.disk_now().contents() if ".cleaned" in name or ".swap" in name]
        assert names == [], "what a kill left is not taken away"
    assert at > 10
    history.clean_all()
    assert history.read() == history.final_records()


def test_policies_alternate() -> None:
    """Compaction without retention, retention without compaction, then both, then compaction again."""
    history = CompactedLog(SMALL)

    def publish(count: int) -> None:
        for number in range(count):
            history.put(f"k{number % 3}={history.log.offsets.log_end_offset}")
        history.log.roll()

    publish(12)
    history.machine.clock.advance(10 * MINUTE_MS)
    assert history.log.retention.delete_old_segments() == 0
    history.clean_all()
    compacted = history.read()
    assert compacted == history.final_records()
    reconfigure(history, cleanup_policy=frozenset({"delete"}), retention_ms=5 * MINUTE_MS)
    assert history.clean() is None
    publish(12)
    assert history.clean() is None
    assert history.log.retention.delete_old_segments() > 0
    assert history.log.offsets.log_start_offset == 12
    assert len(history.read()) == 12
    reconfigure(history, cleanup_policy=frozenset({"compact", "delete"}))
    history.clean_all()
    assert history.read() == history.final_records()
    history.machine.clock.advance(5 * MINUTE_MS + 1)
    publish(2)
    history.log.retention.delete_old_segments()
    assert history.log.offsets.log_start_offset == 24
    assert history.read_table() == history.table()
    reconfigure(history, cleanup_policy=frozenset({"compact"}))
    history.machine.clock.advance(5 * MINUTE_MS + 1)
    publish(9)
    assert history.log.retention.delete_old_segments() == 0
    history.clean_all()
    assert history.read() == history.final_records()
    history.restart(is_clean=False)
    assert history.read() == history.final_records()


def test_a_tiered_topic_is_not_cleaned_here() -> None:
    """Its segments are compacted in the object store; local ones stay as they were written."""
    history = CompactedLog(dataclasses.replace(SMALL, remote_storage_enable=True))
    for number in range(40):
        history.put(f"k={number}")
    history.log.roll()
    before = history.disk_now().contents()
    assert history.clean() is None
    assert history.disk_now().contents() == before


def test_a_gap_between_writes_of_days_is_cleaned_as_any_other() -> None:
    history = CompactedLog(SMALL)
    for day in range(20):
        history.put(f"k={day}", f"d{day}=1", f"d{day - 3}")
        history.machine.clock.advance(24 * 60 * MINUTE_MS)
        history.clean()
        assert history.read_table() == history.table()
    history.clean_all()
    history.put("end=1")
    history.machine.clock.advance(RETENTION_MS + 1)
    history.clean_all()
    assert not [one for one in history.read()[:-1] if one.value is None]


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
