"""Measures how long the cleaner of local logs holds the interpreter lock at a time, from taking to release.

It needs trace points. Where the system does not allow them, the benchmark says so.

The interpreter shares the lock as it does in a server, and another thread wants it all the time. Each row is
the longest of all stretches: of a clean of one load, of a look at many logs for the one that is due, and of a
walk for what an idle log keeps.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from uuid import UUID

from lock_holds import ProbeMissingError, holds_of
from log_cleaner import LOADS, Load, clean, fill, percentile_s
from log_engine import LEADER_EPOCH, MIB, open_log, opened
from report import Row, promised, run
from stratalog.base.process_tuning import share_interpreter_lock
from stratalog.base.types import TopicPartition
from stratalog.cleaner.clean.header_walk import find_horizons
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.testing.manual_clock import DEFAULT_NOW_MS

SMALL_BATCH_BYTES = 256
ROUNDS = 3
"""A stretch of the code itself shows in each round; a disturbance by the machine shows in one."""
LOAD: Load = LOADS[0]

Fill = Callable[[UnifiedLog, int], None]
"""Fill a log with about so many bytes, all of them below its active segment."""


def fill_with_batches(log: UnifiedLog, size_bytes: int) -> None:
    """Batches of 16 KiB."""
    fill(log, LOAD, size_bytes)


def fill_with_records(log: UnifiedLog, size_bytes: int) -> None:
    """Batches of one."""
    fill(log, LOAD, size_bytes // 8, SMALL_BATCH_BYTES)


def one_record(random: Random) -> Record:
    return Record(0, DEFAULT_NOW_MS, b"%016d" % random.randrange(LOAD.key_count), bytes(LOAD.value_bytes))


def fill_with_transactions(log: UnifiedLog, size_bytes: int) -> None:
    """Transactions of two batches of one record, every third of which is aborted, and compressed batches
    between them."""
    random, sequence = Random(1), 0
    for number in range(size_bytes // 5000):
        record = one_record(random)
        for _ in range(2):
            batch = encode_batch([record], producer=BatchProducer(1, 0, sequence, is_transactional=True))
            log.appender.append_as_leader(batch, LEADER_EPOCH)
            sequence += 1
        is_committed = number % 3 > 0
        log.appender.append_end_transaction_marker(1, 0, 0, committed=is_committed, leader_epoch=LEADER_EPOCH)
        log.appender.append_as_leader(encode_batch([record] * 10, codec=Codec.ZSTD), LEADER_EPOCH)
    log.roll()
    log.flusher.flush()


def fill_with_aborts(log: UnifiedLog, size_bytes: int) -> None:
    """Transactions of one record, all of them aborted, beside one that is open from the first to the last."""
    log.appender.append_as_leader(
        encode_batch([one_record(Random(1))], producer=BatchProducer(2, 0, 0, is_transactional=True)),
        LEADER_EPOCH,
    )
    random = Random(1)
    for sequence in range(size_bytes // 5000):
        producer = BatchProducer(1, 0, sequence, is_transactional=True)
        log.appender.append_as_leader(encode_batch([one_record(random)], producer=producer), LEADER_EPOCH)
        log.appender.append_end_transaction_marker(1, 0, 0, committed=False, leader_epoch=LEADER_EPOCH)
    log.appender.append_end_transaction_marker(2, 0, 0, committed=True, leader_epoch=LEADER_EPOCH)
    log.roll()
    log.flusher.flush()


def fill_by_producers(log: UnifiedLog, size_bytes: int) -> None:
    """A batch of a record by each of many producers."""
    random = Random(1)
    ids = list(range(size_bytes // 6000))
    random.shuffle(ids)
    for producer_id in ids:
        producer = BatchProducer(producer_id, 0, 0, is_transactional=False)
        log.appender.append_as_leader(encode_batch([one_record(random)], producer=producer), LEADER_EPOCH)
    log.roll()
    log.flusher.flush()


LOADS_OF_A_CLEAN: tuple[tuple[str, Fill], ...] = (
    ("16 KiB batches", fill_with_batches),
    ("batches of a record", fill_with_records),
    ("transactions", fill_with_transactions),
    ("aborted transactions", fill_with_aborts),
    ("a batch of each producer", fill_by_producers),
)


def longest_hold(work: str, make: Callable[[LogManager, int], Callable[[], object]]) -> Iterator[Row]:
    """`make` prepares the work of a round, and returns what is measured of it."""
    all_holds: list[list[float]] = []
    for number in range(ROUNDS):
        with (
            tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
            opened(Path(folder)) as manager,
        ):
            measured = make(manager, number)
            try:
                all_holds.append(holds_of(measured))
            except ProbeMissingError as missing:
                print(f"no measure of the interpreter lock: {missing}", file=sys.stderr)
                return
    holds = min(all_holds, key=lambda holds: holds[-1])
    print(
        f"{work}: the lock was held {len(holds)} times, {percentile_s(holds, 0.5) * 1e6:.0f} us (median),"
        f" {percentile_s(holds, 0.999) * 1e6:.0f} us (99.9 %), {holds[-1] * 1e6:.0f} us (longest)",
        file=sys.stderr,
    )
    yield promised(f"longest hold of the lock, {work} (1/s)", "1/s", 1 / holds[-1], 1000.0)


def measure(quick: bool) -> Iterator[Row]:
    """Rows of the times for which the cleaner keeps the lock from other threads."""
    share_interpreter_lock()
    size_bytes = 6 * MIB if quick else 128 * MIB

    def a_clean(fill_log: Fill) -> Callable[[LogManager, int], Callable[[], object]]:
        def make(manager: LogManager, number: int) -> Callable[[], object]:
            log = open_log(manager, number)
            fill_log(log, size_bytes)
            return lambda: clean(log)

        return make

    def a_look(manager: LogManager, _number: int) -> Callable[[], object]:
        config = LogConfig(
            cleanup_policy=frozenset({"compact"}), remote_storage_enable=False, min_cleanable_dirty_ratio=0.99
        )
        for partition in range(size_bytes // (256 << 10)):
            log = manager.open_log(TopicPartition("idle", partition), UUID(int=7), config)
            log.appender.append_as_leader(encode_batch([one_record(Random(1))]), LEADER_EPOCH)
        return manager.cleaner.take_filthiest

    def a_walk(manager: LogManager, number: int) -> Callable[[], object]:
        log = open_log(manager, number)
        fill_with_records(log, size_bytes)
        return lambda: find_horizons(log, log.offsets.log_end_offset, 0, lambda _: None)

    for name, fill_log in LOADS_OF_A_CLEAN:
        yield from longest_hold(f"clean, {name}", a_clean(fill_log))
    yield from longest_hold("look at idle logs", a_look)
    yield from longest_hold("walk for horizons", a_walk)


if __name__ == "__main__":
    sys.exit(run(measure))
