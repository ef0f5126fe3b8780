"""A partition goes to and fro between two disks while many threads use its log.

No sleeps and no timing: whatever the interleaving is, every acknowledged record is there once, in order, and
no reader meets an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import Durability
from stratalog.log.log_config import LogConfig
from stratalog.log.read.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.batch import decode_all
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.log_machine import PARTITION, LogMachine

CONFIG = LogConfig(
    segment_bytes=4096,
    index_interval_bytes=200,
    remote_storage_enable=False,
    retention_ms=-1,
    min_durability=Durability.DISK,
    file_delete_delay_ms=0,
)
MOVE_COUNT = 6
APPENDS_PER_MOVE = 80
RECORDS_PER_APPEND = 3
WRITER_COUNT = 2


class Beside:
    """What threads do with the log until the test `is_done`. Thread-safe."""

    def __init__(self, log: UnifiedLog) -> None:
        self.log = log
        self.is_done = threading.Event()
        self.placed: dict[int, bytes] = {}
        self.allowed = threading.Semaphore(0)
        """Appends that may still be made."""
        self._lock = threading.Lock()

    def until_done(self, work: Callable[[], object]) -> None:
        try:
            while not self.is_done.is_set():
                work()
        finally:
            # A failure ends the others, too; the future hands it to the test.
            self.is_done.set()

    def append(self, writer: int, number: list[int]) -> None:
        """Records that exist once, some of them acknowledged as durable only."""
        if not self.allowed.acquire(timeout=0.01):
            return
        number[0] += 1
        values = [b"%d:%d:%d" % (writer, number[0], index) for index in range(RECORDS_PER_APPEND)]
        batch = encode_batch([Record(0, 1000 + number[0], b"key", value) for value in values])
        info = self.log.appender.append_as_leader(batch, 1)
        if number[0] % 5 == 0:
            assert self.log.flusher.flush() > info.last_offset
            assert self.log.offsets.high_watermark > info.last_offset
        with self._lock:
            for offset, value in zip(range(info.base_offset, info.last_offset + 1), values, strict=True):
                assert offset not in self.placed, "an offset is given once"
                self.placed[offset] = value

    def read_all(self, isolation: Isolation) -> None:
        """From the log's start to its end, or until it is overtaken by a deletion."""
        offset = self.log.offsets.log_start_offset
        while offset < self.log.offsets.high_watermark:
            try:
                data = self.log.reader.read(offset, 700, isolation)
            except OffsetOutOfRangeError:
                assert self.log.offsets.log_start_offset > offset
                return
            if not data.batches:
                return
            offsets = [record.offset for record in decode_all(data.batches)]
            assert offsets == list(range(offsets[0], data.next_offset))
            assert offsets[0] <= offset
            offset = data.next_offset

    def look_up(self) -> None:
        newest = self.log.reader.max_timestamp()
        if newest is not None:
            found = self.log.reader.offset_for_timestamp(newest.timestamp_ms)
            assert found is not None or self.log.offsets.log_start_offset > newest.offset
        # None where the last of them was sealed meanwhile.
        assert [info.is_active for info in self.log.reader.segments()].count(True) <= 1
        self.log.producers()

    def delete(self) -> None:
        """Records that were flushed go, and the segments that held nothing else."""
        self.log.flusher.flush()
        offset = self.log.offsets.recovery_point - 150
        if offset > self.log.offsets.log_start_offset:
            self.log.increment_log_start_offset(offset)
        self.log.retention.delete_old_segments()


def move_to_and_fro(machine: LogMachine, beside: Beside, paths: tuple[str, str]) -> None:
    """Each move begins when half of the records came that are appended beside it, or were left of the one
    before."""
    assert machine.manager is not None
    for number in range(MOVE_COUNT):
        end_offset = beside.log.offsets.log_end_offset
        beside.allowed.release(APPENDS_PER_MOVE)
        while beside.log.offsets.log_end_offset < end_offset + APPENDS_PER_MOVE // 2 * RECORDS_PER_APPEND:
            if beside.is_done.is_set():
                return
        move = machine.manager.begin_move(PARTITION, paths[(number + 1) % 2])
        assert move.run() is MoveState.DONE, move.progress
        assert beside.log.local_log.directory.startswith(paths[(number + 1) % 2])


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("deletes", [False, True], ids=["all", "deleting"])
def test_a_partition_moves_beside_appends_and_reads(tmp_path: Path, is_on_disk: bool, deletes: bool) -> None:
    disk: FileSystem = PosixFileSystem() if is_on_disk else MemoryFileSystem()
    root = str(tmp_path) if is_on_disk else ""
    paths = (f"{root}/one", f"{root}/two")
    machine = LogMachine(disk, CONFIG, data_dirs=paths)
    log = machine.start()
    beside = Beside(log)
    works: list[Callable[[], object]] = [
        lambda: beside.read_all(Isolation.HIGH_WATERMARK),
        lambda: beside.read_all(Isolation.TXN_COMMITTED),
        beside.look_up,
        beside.delete if deletes else log.flusher.flush,
        machine.checkpoint,
    ]
    works += [partial(beside.append, writer, [0]) for writer in range(WRITER_COUNT)]
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(beside.until_done, work) for work in works]
        try:
            move_to_and_fro(machine, beside, paths)
        finally:
            beside.is_done.set()
    for future in futures:
        future.result()
    verify(log, beside)
    machine.stop()
    machine.scheduler.run_due()
    log = machine.start()
    assert log.recovery_report.was_clean
    verify(log, beside)
    machine.stop()


def verify(log: UnifiedLog, beside: Beside) -> None:
    """Exactly what was acknowledged is there, in order."""
    log.check()
    assert sorted(beside.placed) == list(range(log.offsets.log_end_offset))
    found: dict[int, bytes | None] = {}
    offset = log.offsets.log_start_offset
    while offset < log.offsets.log_end_offset:
        data = log.reader.read(offset, 1 << 20, Isolation.LOG_END)
        found |= {record.offset: record.value for record in decode_all(data.batches)}
        offset = data.next_offset
    kept = {
        offset: value for offset, value in beside.placed.items() if offset >= log.offsets.log_start_offset
    }
    assert {
        offset: value for offset, value in found.items() if offset >= log.offsets.log_start_offset
    } == kept
