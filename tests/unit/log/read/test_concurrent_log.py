"""Readers, flushes and drops beside appends.

No sleeps and no timing: whatever the interleaving is, a reader sees only whole, adjacent records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from stratalog.base.errors import LogStoreError, OffsetOutOfRangeError
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from tests.support.decoded_records import decode_all
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=0)


def read_all(log: UnifiedLog) -> None:
    """From the local log start to the high watermark, or until the reader is overtaken by a drop."""
    offset = log.offsets.local_log_start_offset
    while offset < log.offsets.high_watermark:
        try:
            data = log.reader.read(offset, 500)
        except OffsetOutOfRangeError:
            if log.offsets.local_log_start_offset <= offset:
                raise
            return
        offsets = [record.offset for record in decode_all(data.batches)]
        assert offsets == list(range(offsets[0], data.next_offset))
        assert offsets[0] <= offset
        offset = data.next_offset


def look_up(log: UnifiedLog) -> None:
    """Times and descriptions are of some moment of the log."""
    newest = log.reader.max_timestamp()
    if newest is not None:
        found = log.reader.offset_for_timestamp(newest.timestamp_ms)
        assert found is None or found.offset >= newest.offset or found.timestamp_ms >= newest.timestamp_ms
    infos = log.reader.segments()
    assert [info.is_active for info in infos].count(True) <= 1
    assert all(first.end_offset == second.base_offset for first, second in pairwise(infos))


def drop(machine: LogMachine, log: UnifiedLog) -> None:
    log.update_tiered_end_offset(log.offsets.recovery_point)
    log.retention.delete_local_segments(ignore_retention=True)
    machine.scheduler.run_due()


def until(is_done: threading.Event, work: Callable[[], object]) -> None:
    try:
        while not is_done.is_set():
            work()
    finally:
        # A failure ends the others, too; the future hands it to the test.
        is_done.set()


def test_readers_flushes_and_drops_run_beside_appends() -> None:
    machine = LogMachine(config=CONFIG)
    log = machine.start()
    ledger = LogLedger()
    ledger.append(log, [ledger.batch(1)])
    is_done = threading.Event()
    works: list[Callable[[], object]] = [
        lambda: read_all(log),
        lambda: read_all(log),
        lambda: look_up(log),
        log.flusher.flush,
        lambda: drop(machine, log),
    ]
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(until, is_done, work) for work in works]
        for _ in range(300):
            outcomes = ledger.append(log, [ledger.batch(2), ledger.batch(1)])
            assert not any(isinstance(outcome, LogStoreError) for outcome in outcomes)
            if is_done.is_set():
                break
        is_done.set()
    for future in futures:
        future.result()
    log.check()
    assert log.offsets.log_end_offset == 901


def test_a_reader_that_misses_a_file_of_a_log_that_begins_anew_looks_again() -> None:
    has_renamed, is_missed = threading.Event(), threading.Event()

    def meet(name: str, path: str) -> None:
        """The log files have other names; a reader looks for one of them before that is durable."""
        if name == "sync_directory" and path == PARTITION_DIR:
            has_renamed.set()
            assert is_missed.wait(30)
        elif name == "open_read" and not disk.inner.exists(path):
            is_missed.set()

    disk = HookedDisk()
    log = LogMachine(disk, LogConfig(segment_bytes=1024), max_open=1).start()
    ledger = LogLedger()
    for _ in range(4):
        ledger.append(log, [ledger.batch(20)])
    assert len(log.reader.segments()) > 2
    disk.before = meet
    with ThreadPoolExecutor(1) as pool:
        truncation = pool.submit(log.truncation.truncate_fully_and_start_at, 500)
        assert has_renamed.wait(30)
        with pytest.raises(OffsetOutOfRangeError):
            log.reader.read(0, 500)
        truncation.result()
    assert log.offsets.log_end_offset == 500


def test_appends_of_many_threads_get_offsets_of_their_own() -> None:
    log = LogMachine(config=CONFIG).start()

    def append(thread: int) -> list[tuple[int, bytes | None]]:
        ledger = LogLedger(value_bytes=30 + thread)
        placed: list[tuple[int, bytes | None]] = []
        for _ in range(50):
            request = ledger.batch(3)
            info = log.appender.append_as_leader(request, 1)
            values = [record.value for record in decode_all(request)]
            placed += zip(range(info.base_offset, info.last_offset + 1), values, strict=True)
        return placed

    with ThreadPoolExecutor(4) as pool:
        placed = sorted(pair for pairs in pool.map(append, range(4)) for pair in pairs)
    assert [offset for offset, _ in placed] == list(range(600))
    stored = [
        (record.offset, record.value)
        for offset in range(0, 600, 3)
        for record in decode_all(log.reader.read(offset, 1).batches)
    ]
    assert stored == placed
