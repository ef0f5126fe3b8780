"""A machine that dies at every single operation on its disk, and the log that it finds afterwards.

Each work load runs once to count its operations; then it runs again and again, dying at the first, the
second, and so on, half-way through where the operation is an append. From each of these moments every mixture
of surviving contents and names is built, opened as a new process would, and compared with what had been
acknowledged.

The work loads that differ by their configuration only die at some of the operations, and of the mixtures
between everything and nothing some are built, unless it is a long run: see `Sampling`.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Iterator

import pytest

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.types import Durability
from stratalog.log.checkpoint import RECOVERY_POINT_FILE, OffsetCheckpoint
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.record.header import HEADER_SIZE
from stratalog.segment.file_names import LOG_SUFFIX
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.log_ledger import LogLedger, read_local
from tests.support.logs.log_machine import DATA_DIR, NEVER_MS, PARTITION, PARTITION_DIR, LogMachine
from tests.support.logs.sampling import Sampling

# Where names are lost, files are lost, and their contents hardly matter: not every mixture is worth a run.
SURVIVALS = (
    *(
        Survival(contents, names)
        for contents in (Kept.NONE, Kept.ALL)
        for names in (Kept.NONE, Kept.HALF, Kept.ALL)
    ),
    *(Survival(contents, Kept.ALL) for contents in (Kept.HALF, Kept.ZEROS, Kept.NOISE)),
)
EVERYTHING_KEPT = Survival(Kept.ALL, Kept.ALL)
NOTHING_KEPT = Survival(Kept.NONE, Kept.NONE)

ONLY_LOOKING = frozenset(
    {"read_at", "size", "read_file", "list_directory", "exists", "is_directory", "file_size", "modified_ms"}
    | {"read_into", "open_read", "close", "free_bytes", "link_count", "real_path"}
)

TIERED = LogConfig(segment_bytes=1024, index_interval_bytes=100, min_durability=Durability.DISK)
PLAIN = LogConfig(
    segment_bytes=1024,
    index_interval_bytes=100,
    remote_storage_enable=False,
    retention_bytes=2500,
    retention_ms=-1,
)
TRANSACTIONAL = LogConfig(
    segment_bytes=1400, index_interval_bytes=100, remote_storage_enable=False, retention_ms=-1
)
# Most appends are flushed before they are acknowledged, and every segment has its space reserved.
FLUSHING = dataclasses.replace(PLAIN, flush_messages=7, preallocate=True)
FLUSHING_TIERED = dataclasses.replace(TIERED, flush_messages=1, preallocate=True)

Work = Callable[[LogMachine, LogLedger], None]


def tiered_work(machine: LogMachine, ledger: LogLedger) -> None:
    """Append, flush, roll, checkpoint, tier, drop local segments, stop, start again, append."""
    log = machine.start()
    for _ in range(4):
        ledger.append(log, [ledger.batch(3)])
    ledger.append(log, [ledger.batch(2), ledger.batch(9), ledger.batch(1)])
    ledger.flush(log)
    for _ in range(3):
        ledger.append(log, [ledger.batch(6)])
    log.roll()
    ledger.append(log, [ledger.batch(5)])
    ledger.flush(log)
    machine.checkpoint()
    ledger.append(log, [ledger.batch(8), ledger.batch(8), ledger.batch(8)])
    log.update_tiered_end_offset(log.segments()[1].end_offset)
    log.delete_local_segments(ignore_retention=True)
    ledger.note_starts(log)
    machine.clock.advance(60_000)
    ledger.append(log, [ledger.batch(4)])
    ledger.flush(log)
    ledger.append(log, [ledger.batch(4)])
    machine.stop()
    ledger.durable_end_offset = log.log_end_offset
    log = machine.start()
    ledger.append(log, [ledger.batch(7)])
    ledger.flush(log)
    ledger.append(log, [ledger.batch(2)])


def plain_work(machine: LogMachine, ledger: LogLedger) -> None:
    """Append, delete records, let retention drop segments, all with little flushed."""
    log = machine.start()
    for _ in range(6):
        ledger.append(log, [ledger.batch(8), ledger.batch(4)])
    log.increment_log_start_offset(21)
    ledger.note_starts(log)
    log.delete_old_segments()
    ledger.note_starts(log)
    ledger.append(log, [ledger.batch(3)])
    ledger.flush(log)
    for _ in range(3):
        ledger.append(log, [ledger.batch(18)])
    machine.checkpoint()
    log.delete_old_segments()
    ledger.note_starts(log)
    machine.clock.advance(60_000)
    ledger.append(log, [ledger.batch(3)])
    log.increment_log_start_offset(log.log_end_offset)
    ledger.note_starts(log)
    log.delete_old_segments()
    ledger.note_starts(log)


def truncating_work(machine: LogMachine, ledger: LogLedger) -> None:
    """Start anew at lower and at higher offsets, with unequal amounts flushed before and behind."""
    log = machine.start()
    for _ in range(6):
        ledger.append(log, [ledger.batch(8)])
    ledger.flush(log)
    machine.checkpoint()
    ledger.restart_at(log, 20)
    for _ in range(8):
        ledger.append(log, [ledger.batch(6)])
    ledger.restart_at(log, 500)
    ledger.append(log, [ledger.batch(6)])
    ledger.flush(log)
    ledger.append(log, [ledger.batch(8), ledger.batch(8)])


def transactional_work(machine: LogMachine, ledger: LogLedger) -> None:
    """Producers in turn, transactions over segments, truncations into them, snapshots, owners in turn."""
    now_ms = machine.clock.now_ms()
    log = machine.start()
    for number in range(8):
        ledger.append(
            log,
            [
                ledger.producer_batch(1, 4, is_transactional=True),
                ledger.producer_batch(2, 3, is_transactional=number % 2 == 0),
                ledger.batch(1),
            ],
        )
        ledger.leader_epoch += number % 3
        if number % 3 == 2:
            ledger.end_transaction(log, 2, committed=number == 2, now_ms=now_ms)
        if number == 4:
            ledger.end_transaction(log, 1, committed=False, now_ms=now_ms)
            ledger.flush(log)
            machine.checkpoint()
    ledger.truncate_to(log, log.log_end_offset - 11)
    ledger.append(log, [ledger.producer_batch(1, 2, is_transactional=True)])
    ledger.flush(log)
    ledger.truncate_to(log, 21)
    ledger.append(log, [ledger.producer_batch(2, 2, is_transactional=False), ledger.batch(9)])
    ledger.end_transaction(log, 1, committed=False, now_ms=now_ms)
    log.roll()
    ledger.append(log, [ledger.producer_batch(1, 2, is_transactional=True)])
    machine.stop()
    ledger.durable_end_offset = log.log_end_offset
    log = machine.start()
    ledger.append(log, [ledger.producer_batch(1, 2, is_transactional=True), ledger.batch(2)])
    ledger.end_transaction(log, 1, committed=True, now_ms=now_ms)
    ledger.flush(log)
    log.increment_log_start_offset(log.segments()[2].base_offset)
    ledger.note_starts(log)
    log.delete_old_segments()
    ledger.note_starts(log)
    ledger.append(log, [ledger.producer_batch(2, 1, is_transactional=True)])
    ledger.end_transaction(log, 2, committed=False, now_ms=now_ms)
    # The recovery point is the end of a segment that is sealed after that, and nothing is flushed any more.
    ledger.flush(log)
    machine.checkpoint()
    log.roll()
    ledger.append(log, [ledger.batch(3)])


WORKS = pytest.mark.parametrize(
    ("work", "config", "one_in"),
    [
        (tiered_work, TIERED, 1),
        (plain_work, PLAIN, 1),
        (truncating_work, PLAIN, 1),
        (truncating_work, TIERED, 3),
        (transactional_work, TRANSACTIONAL, 1),
        (tiered_work, FLUSHING_TIERED, 3),
        (plain_work, FLUSHING, 3),
        (truncating_work, FLUSHING, 3),
    ],
    ids=[
        "tiered",
        "plain",
        "truncating",
        "truncating-tiered",
        "transactional",
        "tiered-flushing",
        "plain-flushing",
        "truncating-flushing",
    ],
)


def new_machine(disk: FaultyFileSystem, config: LogConfig) -> LogMachine:
    return LogMachine(disk, config, producer_id_expiration_ms=NEVER_MS)


def count_operations(work: Work, config: LogConfig) -> list[str]:
    disk = FaultyFileSystem()
    machine = new_machine(disk, config)
    ledger = LogLedger()
    work(machine, ledger)
    assert machine.manager is not None
    trace = list(disk.trace)
    ledger.verify(machine.manager.log(PARTITION), after_crash=False)
    assert not machine.scheduler.failures
    return trace


def deaths(trace: list[str]) -> Iterator[tuple[int, float]]:
    """Every moment to die at that differs from the others.

    Behind an operation is the same moment as before the next one, and an operation that only looks leaves the
    disk as the next one finds it, when more has been acknowledged.
    """
    for operation, name in enumerate(trace, start=1):
        kind = name.split(" ")[0]
        if kind not in ONLY_LOOKING:
            yield operation, 0.0
        if kind == "append":
            yield operation, 0.5
            yield operation, 1.0


@WORKS
def test_dying_at_every_operation_loses_nothing_that_was_flushed(
    work: Work, config: LogConfig, one_in: int
) -> None:
    trace = count_operations(work, config)
    assert len(trace) > 100
    sampling = Sampling()
    for operation, part in sampling.some(deaths(trace), one_in):
        disk = FaultyFileSystem()
        disk.crash_at(operation, part=part)
        ledger = LogLedger()
        with pytest.raises(SimulatedCrash):
            work(new_machine(disk, config), ledger)
        verified: list[dict[str, bytes | None]] = []
        of_each = (Survival(Kept.EACH, names, seed=operation) for names in (Kept.ALL, Kept.EACH))
        for survival in (*SURVIVALS, *of_each):
            if survival not in (NOTHING_KEPT, EVERYTHING_KEPT) and not sampling.one_in(2):
                continue
            found = disk.reopened(survival)
            # Many mixtures are the same disk, as soon as little was unsynced.
            if (contents := found.inner.contents()) not in verified:
                verified.append(contents)
                verify_found(found, config, ledger, goes_on=survival == NOTHING_KEPT)
        # The process alone dies, and the machine later: what the next process found is on the disk by then.
        verify_found(disk.killed(), config, ledger, goes_on=True)


def verify_found(disk: FaultyFileSystem, config: LogConfig, ledger: LogLedger, *, goes_on: bool) -> None:
    """Open what is left, twice: what is served once must be there again if the machine dies at once.

    `goes_on`: and append to it, too.
    """
    found = ledger.copy()
    log = new_machine(disk, config).start()
    assert log.high_watermark == log.log_end_offset
    found.verify(log, after_crash=True)
    again = disk.reopened(NOTHING_KEPT)
    log = new_machine(again, config).start()
    assert read_local(log) == list(found.acknowledged.values())
    if goes_on:
        found.append(log, [found.batch(3)])
        found.flush(log)
        found.verify(new_machine(again.reopened(NOTHING_KEPT), config).start(), after_crash=True)


@WORKS
def test_a_log_that_is_refused_is_left_as_it_was_at_every_operation(
    work: Work, config: LogConfig, one_in: int
) -> None:
    """What a human decides on is what was found, whatever the former process was in the midst of."""
    trace = count_operations(work, config)
    refused_count = 0
    for operation, part in Sampling().some(deaths(trace), one_in):
        disk = FaultyFileSystem()
        disk.crash_at(operation, part=part)
        with pytest.raises(SimulatedCrash):
            work(new_machine(disk, config), LogLedger())
        found = disk.killed()
        if not damage_below_recovery_point(found.inner):
            continue
        before = log_files(found.inner)
        with pytest.raises(DataDirectoryError, match="had been fsynced"):
            new_machine(found, config).start()
        assert log_files(found.inner) == before, f"dead at {operation}: {trace[operation - 1]}"
        refused_count += 1
    assert refused_count > (10 if one_in == 1 else 0)


def damage_below_recovery_point(disk: MemoryFileSystem) -> bool:
    """Alter the first batch of the segment that has the recovery point in it, if there is one; no clean
    shutdown hides it."""
    recovery_point = OffsetCheckpoint(disk, f"{DATA_DIR}/{RECOVERY_POINT_FILE}").read().get(PARTITION, 0)
    logs = sorted(path for path in log_files(disk) if path.endswith(LOG_SUFFIX))
    below = [path for path in logs if base_offset_of(path) < recovery_point]
    later = logs[len(below) :]
    if not below or (later and base_offset_of(later[0]) == recovery_point):
        return False
    data = bytearray(disk.read_file(below[-1]))
    if not data:
        return False
    data[HEADER_SIZE - 1] ^= 1
    file = disk.open_append(below[-1])
    file.truncate(0)
    file.append([bytes(data)])
    file.close()
    if disk.exists(f"{DATA_DIR}/{CLEAN_SHUTDOWN_FILE}"):
        disk.unlink(f"{DATA_DIR}/{CLEAN_SHUTDOWN_FILE}")
    return True


def base_offset_of(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(LOG_SUFFIX))


def log_files(disk: MemoryFileSystem) -> dict[str, bytes | None]:
    return {path: data for path, data in disk.contents().items() if path.startswith(f"{PARTITION_DIR}/")}


@WORKS
def test_a_disk_that_fails_once_leaves_no_half_truths(work: Work, config: LogConfig, one_in: int) -> None:
    """Every operation in turn fails, once. Steps may fail; what is acknowledged is there, what was refused is
    not."""
    sampling = Sampling()
    for operation, name in enumerate(count_operations(work, config), start=1):
        # Most operations only look, at what others have looked at.
        if not sampling.one_in(3 * one_in if name.split(" ")[0] in ONLY_LOOKING else one_in):
            continue
        disk = FaultyFileSystem()
        # Nothing goes on after the last of these: it takes the whole directory away.
        disk.fail_at(operation, number=(errno.ENOSPC, errno.EPERM, errno.EIO)[operation % 3], part=0.5)
        machine = new_machine(disk, config)
        ledger = LogLedger()
        try:
            work(machine, ledger)
        except LogStoreError:
            pass
        for log in machine.manager.logs() if machine.manager is not None else ():
            if not log.is_offline and not log.is_closed:
                ledger.append(log, [ledger.batch(2)])
                ledger.verify(log, after_crash=False)
        for survival in (NOTHING_KEPT, EVERYTHING_KEPT):
            verify_found(disk.reopened(survival), config, ledger, goes_on=False)
