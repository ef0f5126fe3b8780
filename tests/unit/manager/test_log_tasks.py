"""What is done to all logs again and again: the retention of logs that the cleaner has and may not touch."""

from __future__ import annotations

import pytest

from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.log_config import LogConfig
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import OTHER_DIR, PARTITION
from tests.support.logs.moving_log import OTHER_PARTITION_DIR, MovingLog


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
    """Of which only the retention is wanted."""

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
