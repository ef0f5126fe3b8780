"""Cleans, moves and retention of one log keep out of each other's way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.checkpoint import OffsetCheckpoint
from stratalog.log.log_config import LogConfig
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, OTHER_DIR, PARTITION, TOPIC_ID, LogMachine
from tests.support.logs.moving_log import OTHER_PARTITION_DIR, MovingLog

THREE = encode_batch([Record(number, 1000, b"k", b"v") for number in range(3)])
COMPACTED = LogConfig(
    remote_storage_enable=False,
    retention_ms=-1,
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=1024,
)


def policy(*kinds: str, retention_bytes: int = -1) -> LogConfig:
    return LogConfig(
        segment_bytes=1024,
        index_interval_bytes=100,
        remote_storage_enable=False,
        cleanup_policy=frozenset(kinds),
        retention_ms=-1,
        retention_bytes=retention_bytes,
    )


def cleaner_of(clock: ManualClock, manager: LogManager) -> CleanerPool:
    """A pool whose retention alone is used."""

    def clean(to_clean: LogToClean, limits: CleanLimits) -> CleanResult:
        raise AssertionError(f"{to_clean.partition} was cleaned with {limits}")

    return CleanerPool(clock, ManualScheduler(clock), manager.cleaner, clean, CleanerSettings())


@pytest.mark.parametrize("is_deleted_too", [True, False])
def test_retention_goes_on_while_a_compacted_log_moves(is_deleted_too: bool) -> None:
    kinds = ("compact", "delete") if is_deleted_too else ("compact",)
    moving = MovingLog(config=policy(*kinds, retention_bytes=2 * 1024 if is_deleted_too else -1))
    manager, log = moving.manager, moving.log
    cleaner = cleaner_of(moving.machine.clock, manager)
    if not is_deleted_too:
        log.increment_log_start_offset(log.reader.segments()[2].base_offset + 1)
        moving.ledger.note_starts(log)
    counts = list[tuple[int, int]]()
    assert manager.tasks.delete_old_segments(log) == 0, "it is the cleaner's"

    def retain(_: int) -> None:
        counts.append((cleaner.delete_old_segments(), manager.tasks.delete_old_segments(log)))
        moving.ledger.note_starts(log)
        assert manager.moves.is_moving(PARTITION)
        with manager.cleaner.held(log) as is_held:
            assert not is_held, "the move still keeps the cleaner away"

    assert not manager.moves.is_moving(PARTITION)
    move = manager.begin_move(PARTITION, OTHER_DIR)
    assert move.state is MoveState.WAITING
    move.cancel("the test begins another one")
    before = len(log.reader.segments())
    assert moving.begin(retain).run() is MoveState.DONE
    assert counts[0][0] == 0
    assert counts[0][1] == before - len(log.reader.segments())
    assert counts[0][1] >= 2
    assert set(counts[1:]) <= {(0, 0)}
    assert log.local_log.directory == OTHER_PARTITION_DIR
    assert not manager.moves.is_moving(PARTITION)
    assert read_local(log)[0].offset >= log.offsets.log_start_offset
    moving.ledger.verify(log, after_crash=False)


def test_behind_a_move_a_compacted_log_is_the_cleaners_again() -> None:
    moving = MovingLog(config=policy("compact"))
    manager, log = moving.manager, moving.log
    assert moving.begin().run() is MoveState.DONE
    log.increment_log_start_offset(log.reader.segments()[2].base_offset + 1)
    assert manager.tasks.delete_old_segments(log) == 0
    assert cleaner_of(moving.machine.clock, manager).delete_old_segments() == 2


def machine_cleaned_to(offset: int) -> LogMachine:
    """A log of 27 records in batches of three, cleaned up to that offset."""
    machine = LogMachine(config=COMPACTED)
    log = machine.start()
    for _ in range(9):
        log.appender.append_as_leader(THREE, 1)
    machine.stop()
    OffsetCheckpoint(machine.disk, f"{DATA_DIR}/{CLEANER_OFFSET_FILE}").write({PARTITION: offset})
    return machine


def compacted() -> tuple[LogMachine, LogManager]:
    machine = machine_cleaned_to(25)
    manager = machine.open()
    manager.open_log(PARTITION, TOPIC_ID, COMPACTED)
    return machine, manager


def cleaned(machine: LogMachine) -> int | None:
    """The cleaned offset that the next process will read."""
    return OffsetCheckpoint(machine.disk, f"{DATA_DIR}/{CLEANER_OFFSET_FILE}").read().get(PARTITION)


@pytest.mark.parametrize(("offset", "end_offset"), [(20, 18), (18, 18), (26, 24), (40, 27), (27, 27)])
def test_a_truncation_takes_what_is_gone_out_of_the_cleaners_checkpoint(offset: int, end_offset: int) -> None:
    machine, manager = compacted()
    assert manager.truncate_to(PARTITION, offset) == end_offset
    assert cleaned(machine) == min(25, end_offset)


def test_so_do_beginning_anew_and_deleting() -> None:
    machine, manager = compacted()
    manager.truncate_fully_and_start_at(PARTITION, 12)
    assert (cleaned(machine), manager.log(PARTITION).offsets.log_end_offset) == (12, 12)
    manager.delete_log(PARTITION)
    assert cleaned(machine) is None
    manager.open_log(PARTITION, TOPIC_ID, COMPACTED)
    assert cleaned(machine) is None


def test_of_a_log_that_was_found_shorter_it_says_nothing() -> None:
    machine = machine_cleaned_to(9999)
    machine.start()
    assert cleaned(machine) is None


@pytest.mark.parametrize("change", ["truncate", "restart", "delete", "aside", "let_go", "retention"])
def test_a_change_of_a_log_waits_for_a_clean_that_runs(change: str) -> None:
    _, manager = compacted()
    log = manager.log(PARTITION)
    changes: dict[str, Callable[[], object]] = {
        "truncate": lambda: manager.truncate_to(PARTITION, 20),
        "restart": lambda: manager.truncate_fully_and_start_at(PARTITION, 20),
        "delete": lambda: manager.delete_log(PARTITION),
        "aside": lambda: manager.set_aside(PARTITION, "fenced"),
        "let_go": lambda: manager.let_go(PARTITION),
        "retention": lambda: manager.tasks.delete_old_segments(log),
    }
    with ThreadPoolExecutor(1) as pool, ExitStack() as clean:
        assert clean.enter_context(manager.cleaner.held(log))
        if change == "retention":
            # The cleaner looks after its own; this is one that has just ceased to be.
            log.reconfigure(dataclasses.replace(COMPACTED, cleanup_policy=frozenset({"delete"})))
        changed = pool.submit(changes[change])
        while True:
            try:
                manager.cleaner.check_done(log)
            except CleaningAbortedError:
                break
        if change != "retention":
            assert (log.offsets.log_end_offset, log.availability.is_closed, changed.done()) == (
                27,
                False,
                False,
            )
        clean.close()
        changed.result(20)
