"""Moves between two log directories: what comes along, and how they end."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from stratalog.base.errors import DataDirectoryError, InvalidRequestError, LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.clean_result import CleanLimits
from stratalog.cleaner.cleaner import Cleaner
from stratalog.cleaner.throttler import Throttler
from stratalog.log.checkpoint import (
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    OffsetCheckpoint,
)
from stratalog.log.log_config import LogConfig
from stratalog.log.log_copy import Commit, LogCopy
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_move import LogMove, MoveProgress, MoveState
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.log_ledger import LogLedger, read_local
from stratalog.testing.log_machine import DATA_DIR, PARTITION, PARTITION_DIR, LogMachine
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.stepped_throttler import SteppedThrottler

OTHER_DIR = "/other"
OTHER_PARTITION_DIR = f"{OTHER_DIR}/{PARTITION}"
NEVER = 2**60
CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100, remote_storage_enable=False, retention_ms=-1)


class Moving:
    """A machine with two directories and a log of several segments in the first. Used by one thread."""

    def __init__(
        self, disk: FaultyFileSystem | None = None, config: LogConfig = CONFIG, *, free_bytes: int = 1 << 40
    ) -> None:
        ids = SequentialIds()
        self.disk = disk or FaultyFileSystem(MemoryFileSystem(free_bytes=free_bytes))
        self.machine = LogMachine(
            self.disk,
            config,
            producer_id_expiration_ms=NEVER,
            data_dirs=(DATA_DIR, OTHER_DIR),
            ids=ids,
        )
        self.ledger = LogLedger()
        self.log = self.machine.start()
        for number in range(12):
            self.append()
            if number % 4 == 2:
                self.end_transaction(committed=number == 6)

    def append(self) -> None:
        self.ledger.append(
            self.log,
            [self.ledger.batch(5), self.ledger.producer_batch(1, 2, is_transactional=True)],
        )

    def end_transaction(self, *, committed: bool) -> None:
        self.ledger.end_transaction(self.log, 1, committed=committed, now_ms=self.machine.clock.now_ms())

    @property
    def manager(self) -> LogManager:
        assert self.machine.manager is not None
        return self.machine.manager

    def begin(self, work: Callable[[int], None] = lambda _: None, target: str = OTHER_DIR) -> LogMove:
        """`work` is done after each step."""
        self.manager.moves.throttler = SteppedThrottler(self.machine.clock, work)
        return self.manager.begin_move(PARTITION, target)

    def files(self, directory: str) -> dict[str, bytes | None]:
        """What is below it, by name."""
        return {
            path.removeprefix(directory + "/"): data
            for path, data in self.disk.inner.contents().items()
            if path.startswith(directory + "/")
        }

    @property
    def wish_count(self) -> int:
        """Moves that nobody has begun again."""
        return len(self.manager.moves.wanted)

    def restart(self) -> None:
        self.machine.stop()
        self.log = self.machine.start()

    def left_over(self) -> list[str]:
        """Directories that a move made, and nobody has removed."""
        return [path for path in self.disk.inner.contents() if path.endswith(("-future", "-delete"))]


def test_everything_comes_along_byte_for_byte() -> None:
    moving = Moving()
    disk = moving.disk.inner
    file = disk.open_append(f"{PARTITION_DIR}/00000000000000000007.cut")
    file.append([b"for a human"])
    moving.ledger.flush(moving.log)
    moving.restart()
    before, sealed_count = moving.files(PARTITION_DIR), len(moving.log.segments()) - 1
    assert sealed_count > 3
    assert moving.begin().run() is MoveState.DONE
    after = moving.files(OTHER_PARTITION_DIR)
    active = f"{moving.log.active_base_offset:020d}"
    kept = {name: data for name, data in before.items() if not name.startswith(active) or "log" in name}
    assert {name: after.get(name) for name in kept} == kept
    # What the active segment's indexes hold is in memory.
    assert {name for name in after if name not in kept} <= {
        f"{active}.{kind}" for kind in ("index", "timeindex", "snapshot")
    }
    assert any(name.endswith(".txnindex") for name in after)
    moving.ledger.verify(moving.log, after_crash=False)
    moving.append()
    moving.ledger.verify(moving.log, after_crash=False)
    moving.machine.clock.advance(60_000)
    assert moving.left_over() == []
    moving.restart()
    assert moving.log.directory == OTHER_PARTITION_DIR
    assert moving.log.recovery_report.was_clean
    moving.ledger.verify(moving.log, after_crash=False)


def test_segments_keep_the_time_when_they_were_written() -> None:
    """Retention asks for it where records have no time."""
    moving = Moving()
    name = "00000000000000000000.log"
    written_ms = 1_600_000_000_000
    moving.disk.set_modified_ms(f"{PARTITION_DIR}/{name}", written_ms)
    assert moving.begin().run() is MoveState.DONE
    assert moving.disk.modified_ms(f"{OTHER_PARTITION_DIR}/{name}") == written_ms


def test_a_log_moves_back_to_where_it_was() -> None:
    moving = Moving()
    for number in range(4):
        target = (OTHER_DIR, DATA_DIR)[number % 2]
        assert moving.begin(lambda _: moving.append(), target).run() is MoveState.DONE
        assert moving.log.directory == f"{target}/{PARTITION}"
        moving.end_transaction(committed=number % 2 == 0)
        moving.append()
        moving.ledger.verify(moving.log, after_crash=False)
    assert [one.state for one in moving.manager.moves.progress()] == [MoveState.DONE]
    assert PARTITION_DIR + "/move.metadata" not in moving.disk.inner.contents()
    moving.manager.check()
    moving.restart()
    moving.ledger.verify(moving.log, after_crash=False)


def test_what_waits_for_a_sync_is_durable_in_the_new_place() -> None:
    moving = Moving()
    end_offset = moving.log.log_end_offset
    assert moving.log.recovery_point < end_offset
    assert moving.begin().run() is MoveState.DONE
    assert moving.log.recovery_point == end_offset == moving.log.flush()


def test_checkpoints_and_log_start_come_along() -> None:
    moving = Moving()
    moving.log.increment_log_start_offset(moving.log.segments()[1].base_offset + 2)
    moving.ledger.note_starts(moving.log)

    def delete_more(step: int) -> None:
        if step == 3:
            moving.log.increment_log_start_offset(moving.log.segments()[2].base_offset + 1)
            moving.log.delete_old_segments()
            moving.ledger.note_starts(moving.log)

    assert moving.begin(delete_more).run() is MoveState.DONE

    def offsets(name: str) -> list[int | None]:
        return [
            OffsetCheckpoint(moving.disk, f"{path}/{name}").read().get(PARTITION)
            for path in (DATA_DIR, OTHER_DIR)
        ]

    assert offsets(LOG_START_OFFSET_FILE) == [None, moving.log.log_start_offset]
    source_point, recovery_point = offsets(RECOVERY_POINT_FILE)
    assert source_point is None
    assert recovery_point is not None
    assert moving.log.segments()[-1].base_offset <= recovery_point <= moving.log.recovery_point
    moving.ledger.verify(moving.log, after_crash=False)
    machine = LogMachine(
        moving.disk.killed(), CONFIG, data_dirs=(DATA_DIR, OTHER_DIR), producer_id_expiration_ms=NEVER
    )
    moving.ledger.durable_end_offset = moving.log.recovery_point
    moving.ledger.verify(machine.start(), after_crash=True)


def test_records_that_are_deleted_at_the_last_moment_stay_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Moving()
    relocate = UnifiedLog.relocate

    def delete_before(log: UnifiedLog, copy: LogCopy, commit: Commit) -> bool:
        log.increment_log_start_offset(30)
        return relocate(log, copy, commit)

    monkeypatch.setattr(UnifiedLog, "relocate", delete_before)
    assert moving.begin().run() is MoveState.DONE
    machine = LogMachine(
        moving.disk.killed(), CONFIG, data_dirs=(DATA_DIR, OTHER_DIR), producer_id_expiration_ms=NEVER
    )
    log = machine.start()
    assert (log.directory, log.log_start_offset) == (OTHER_PARTITION_DIR, 30)


def test_a_compacted_log_with_holes_moves_and_is_cleaned_again() -> None:
    config = LogConfig(
        segment_bytes=1024,
        index_interval_bytes=100,
        cleanup_policy=frozenset({"compact"}),
        remote_storage_enable=False,
    )
    machine = LogMachine(config=config, data_dirs=(DATA_DIR, OTHER_DIR), ids=SequentialIds())
    log = machine.start()
    assert machine.manager is not None
    manager = machine.manager
    newest: dict[bytes | None, bytes | None] = {}

    def fill(count: int) -> None:
        for number in range(count):
            # Every third key comes once, so that something stays of each segment.
            key = b"k%d" % number if number % 3 == 0 else b"often%d" % (number % 5)
            newest[key] = b"v%d" % log.log_end_offset
            log.append_as_leader(encode_batch([Record(0, 1000, key, newest[key])]), 1)
        log.roll()

    def clean() -> bool:
        chosen = manager.cleaner.take_filthiest()
        if chosen is None:
            return False
        limits = CleanLimits(
            map_bytes=1 << 16,
            map_load_factor=0.9,
            io_buffer_bytes=1 << 16,
            check_done=lambda: None,
            throttle=lambda _: None,
        )
        manager.cleaner.done(chosen, Cleaner(machine.clock, SequentialIds()).clean(chosen, limits).end_offset)
        return True

    fill(60)
    assert clean()
    fill(60)
    sizes: list[bool] = []

    def look(_: int) -> None:
        # It would be due, and may not be.
        sizes.append(clean())

    cleaned_offset = cleaner_offset(machine, DATA_DIR)
    assert cleaned_offset is not None
    manager.moves.throttler = SteppedThrottler(machine.clock, look)
    expected = read_local(log)
    assert len(expected) < log.log_end_offset
    assert manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
    assert sizes
    assert not any(sizes)
    assert read_local(log) == expected
    log.check()
    assert cleaner_offset(machine, DATA_DIR) is None
    assert cleaner_offset(machine, OTHER_DIR) == cleaned_offset
    assert clean()
    assert {record.key: record.value for record in read_local(log)} == newest
    machine.stop()
    assert {record.key: record.value for record in read_local(machine.start())} == newest


def cleaner_offset(machine: LogMachine, directory: str) -> int | None:
    return OffsetCheckpoint(machine.disk, f"{directory}/cleaner-offset-checkpoint").read().get(PARTITION)


def test_progress_says_how_far_it_is() -> None:
    moving = Moving()
    seen: list[MoveProgress] = []
    move = moving.begin(lambda _: seen.append(move.progress))
    size_bytes = moving.log.size_bytes
    assert move.progress == MoveProgress(PARTITION, DATA_DIR, OTHER_DIR, MoveState.WAITING, 0, size_bytes, "")
    assert move.run() is MoveState.DONE
    assert all(one.state is MoveState.COPYING for one in seen)
    assert [one.copied_bytes + one.remaining_bytes for one in seen] == [size_bytes] * len(seen)
    copied = [one.copied_bytes for one in seen]
    assert copied == sorted(set(copied))
    assert move.progress == moving.manager.moves.progress()[0]
    assert move.progress._replace(reason="") == MoveProgress(
        PARTITION, DATA_DIR, OTHER_DIR, MoveState.DONE, size_bytes, 0, ""
    )


def test_a_move_waits_for_its_throttle() -> None:
    moving = Moving()
    clock, moved_s = moving.machine.clock, list[float]()
    throttler = moving.manager.moves.throttler = Throttler(clock, max_bytes_per_s=1000)
    move = moving.manager.begin_move(PARTITION, OTHER_DIR)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(move.run)
        while not running.done():
            clock.advance(10)
        moved_s.append(clock.monotonic_s())
        assert running.result() is MoveState.DONE
    # All but the last bit, which is copied under the log's locks, and what is paid at once.
    assert throttler.max_bytes_per_s == 1000
    assert moved_s[0] > (moving.log.size_bytes - 3 * 1024) / 1000 - 1


def test_a_move_is_cancelled_before_it_begins() -> None:
    moving = Moving()
    move = moving.begin()
    assert move.cancel("nobody wants it") is MoveState.CANCELLED
    assert move.run() is MoveState.CANCELLED
    assert move.progress.reason == "nobody wants it"
    assert moving.left_over() == []
    assert moving.begin().run() is MoveState.DONE


class Interrupting:
    """After so many steps another thread does something that ends the move. Used by the mover's thread."""

    def __init__(self, pool: ThreadPoolExecutor, moving: Moving, work: Callable[[], object]) -> None:
        self._pool = pool
        self._moving = moving
        self._work = work
        self.result: object = None

    def __call__(self, step: int) -> None:
        if step == 2:
            self.result = self._pool.submit(self._work)
            throttler = self._moving.manager.moves.throttler
            assert isinstance(throttler, SteppedThrottler)
            assert throttler.is_interrupted.wait(30)


@pytest.mark.parametrize(
    "kind", ["cancel", "truncate", "start anew", "let go", "delete", "set aside", "close"]
)
def test_whatever_needs_the_log_for_itself_ends_the_move(kind: str) -> None:
    moving = Moving()
    manager, log = moving.manager, moving.log
    works: dict[str, Callable[[], object]] = {
        "cancel": lambda: move.cancel("by hand"),
        "truncate": lambda: manager.truncate_to(PARTITION, 20),
        "start anew": lambda: manager.truncate_fully_and_start_at(PARTITION, 500),
        "let go": lambda: manager.let_go(PARTITION),
        "delete": lambda: manager.delete_log(PARTITION),
        "set aside": lambda: manager.set_aside(PARTITION, "fenced"),
        "close": moving.machine.stop,
    }
    with ThreadPoolExecutor(1) as pool:
        interrupting = Interrupting(pool, moving, works[kind])
        move = moving.begin(interrupting)
        assert move.run() is MoveState.CANCELLED
    assert log.directory == PARTITION_DIR
    assert moving.files(OTHER_DIR).keys().isdisjoint({str(PARTITION)})
    futures = [path for path in moving.left_over() if path.endswith("-future")]
    # A process that stops leaves the wish to the next one.
    assert len(futures) == (kind == "close")
    if kind in ("cancel", "truncate", "start anew"):
        assert {"truncate": 20, "start anew": 500}.get(kind, log.log_end_offset) >= log.log_end_offset
        moving.log.check()


def test_a_log_that_is_truncated_under_the_move_is_not_moved() -> None:
    moving = Moving()

    def truncate(step: int) -> None:
        if step == 3:
            moving.ledger.truncate_to(moving.log, 20)

    move = moving.begin(truncate)
    assert move.run() is MoveState.FAILED
    assert "truncated" in move.progress.reason
    assert moving.left_over() == []
    moving.append()
    moving.ledger.verify(moving.log, after_crash=False)


def test_a_move_that_the_process_did_not_finish_is_begun_again() -> None:
    moving = Moving()
    with ThreadPoolExecutor(1) as pool:
        moving.begin(Interrupting(pool, moving, moving.machine.stop)).run()
    moving.log = moving.machine.start()
    [wanted] = moving.manager.moves.wanted
    assert (wanted.partition, wanted.target_path) == (PARTITION, OTHER_DIR)
    # Twice: a wish lasts until somebody begins the move, or the partition goes.
    moving.restart()
    [wanted] = moving.manager.moves.wanted
    assert moving.begin(target=wanted.target_path).run() is MoveState.DONE
    assert moving.wish_count == 0
    moving.ledger.verify(moving.log, after_crash=False)
    moving.machine.clock.advance(60_000)
    assert moving.left_over() == []


def test_a_partition_that_goes_takes_the_wish_for_its_move_along() -> None:
    moving = Moving()
    with ThreadPoolExecutor(1) as pool:
        moving.begin(Interrupting(pool, moving, moving.machine.stop)).run()
    manager = moving.machine.open()
    assert moving.wish_count == 1
    manager.delete_log(PARTITION)
    assert moving.wish_count == 0
    moving.machine.clock.advance(60_000)
    assert moving.left_over() == []


def test_a_move_that_cannot_be_is_refused() -> None:
    moving = Moving()
    manager = moving.manager
    with pytest.raises(InvalidRequestError, match="already"):
        manager.begin_move(PARTITION, DATA_DIR)
    with pytest.raises(DataDirectoryError, match="no log directory"):
        manager.begin_move(PARTITION, "/nowhere")
    with pytest.raises(LogStoreError):
        manager.begin_move(TopicPartition("unknown", 0), OTHER_DIR)
    manager.cordon(OTHER_DIR)
    with pytest.raises(InvalidRequestError, match="uncordon"):
        manager.begin_move(PARTITION, OTHER_DIR)
    manager.cordon(OTHER_DIR, is_cordoned=False)
    moving.disk.make_directories(OTHER_PARTITION_DIR)
    with pytest.raises(DataDirectoryError, match="holds a directory of this partition"):
        manager.begin_move(PARTITION, OTHER_DIR)
    moving.disk.remove_tree(OTHER_PARTITION_DIR)
    move = manager.begin_move(PARTITION, OTHER_DIR)
    with pytest.raises(InvalidRequestError, match="moving already"):
        manager.begin_move(PARTITION, OTHER_DIR)
    assert move.run() is MoveState.DONE


def test_a_directory_without_room_is_refused() -> None:
    moving = Moving(free_bytes=2000)
    with pytest.raises(DataDirectoryError, match="less free space") as failure:
        moving.manager.begin_move(PARTITION, OTHER_DIR)
    assert failure.value.fields["free_bytes"] == 2000


def test_damage_is_not_copied() -> None:
    moving = Moving()
    segment = moving.log.segments()[2]
    path = f"{PARTITION_DIR}/{segment.base_offset:020d}.log"
    data = bytearray(moving.disk.read_file(path))
    data[len(data) // 2] ^= 4
    file = moving.disk.open_append(path)
    file.truncate(0)
    file.append([bytes(data)])
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert path in move.progress.reason
    assert moving.left_over() == []
    assert moving.log.directory == PARTITION_DIR
    assert not moving.log.is_offline
    moving.append()


def test_a_directory_in_the_partitions_directory_is_for_a_human() -> None:
    moving = Moving()
    moving.disk.make_directories(f"{PARTITION_DIR}/notes")
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert "move that away" in move.progress.reason
    assert moving.left_over() == []


def commit_of(moving: Moving) -> int:
    """The number of the operation that gives the copy its name."""
    return next(
        number
        for number, one in enumerate(moving.disk.trace, start=1)
        if one.startswith("rename") and one.endswith(f"-future {OTHER_PARTITION_DIR}")
    )


@pytest.mark.parametrize("part", [0.0, 1.0])
@pytest.mark.parametrize("operation", ["rename", "sync"])
def test_a_target_that_fails_at_the_commit_counts_for_nothing(operation: str, part: float) -> None:
    moving = Moving()
    assert moving.begin().run() is MoveState.DONE
    commit = commit_of(moving) + (operation == "sync")
    assert moving.disk.trace[commit - 1].startswith(
        "rename" if operation == "rename" else f"sync_directory {OTHER_DIR}"
    )
    disk = FaultyFileSystem()
    disk.fail_at(commit, number=errno.EIO, part=part)
    moving = Moving(disk)
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert OTHER_DIR in move.progress.reason
    assert moving.log.directory == PARTITION_DIR
    moving.append()
    moving.ledger.flush(moving.log)
    moving.ledger.verify(moving.log, after_crash=False)
    # The next start finds both, or not; what was acknowledged since is in the source.
    has_both = OTHER_PARTITION_DIR in disk.inner.contents()
    assert has_both == (operation == "sync" or part == 1)
    machine = LogMachine(
        disk.killed(),
        CONFIG,
        producer_id_expiration_ms=NEVER,
        data_dirs=(DATA_DIR, OTHER_DIR),
        ids=SequentialIds(1),
    )
    log = machine.start()
    assert log.directory == PARTITION_DIR
    moving.ledger.verify(log, after_crash=True)
    assert OTHER_PARTITION_DIR not in disk.inner.contents()
    assert machine.manager is not None
    assert machine.manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
    moving.ledger.verify(log, after_crash=False)


def test_where_nobody_knows_which_copy_counts_the_log_is_offline() -> None:
    moving = Moving()
    assert moving.begin().run() is MoveState.DONE
    commit = commit_of(moving) + 1
    disk = FaultyFileSystem()
    disk.fail_at(commit, part=1)
    # And the source does not take the word that voids it.
    disk.fail_at(commit + 2)
    moving = Moving(disk)
    assert moving.begin().run() is MoveState.FAILED
    assert disk.trace[commit + 1].endswith("move.void.tmp")
    assert moving.log.is_offline
    with pytest.raises(LogStoreError):
        moving.log.flush()
    moving.ledger.durable_end_offset = moving.log.recovery_point
    machine = LogMachine(
        disk.killed(),
        CONFIG,
        producer_id_expiration_ms=NEVER,
        data_dirs=(DATA_DIR, OTHER_DIR),
        ids=SequentialIds(1),
    )
    log = machine.start()
    assert log.directory == OTHER_PARTITION_DIR
    moving.ledger.verify(log, after_crash=True)


def test_a_source_that_fails_takes_the_log_and_the_move_along() -> None:
    moving = Moving()

    def fail(step: int) -> None:
        if step == 2:
            moving.disk.fail_at(moving.disk.operation_count + 1)
            with pytest.raises(LogStoreError):
                moving.log.flush()

    move = moving.begin(fail)
    assert move.run() is MoveState.FAILED
    assert moving.log.is_offline
    assert moving.log.directory == PARTITION_DIR
    assert OTHER_PARTITION_DIR not in moving.disk.inner.contents()


def test_an_older_copy_on_a_disk_that_comes_back_is_put_away() -> None:
    """The source failed right after the commit, and was away at the next start."""
    moving = Moving()
    assert moving.begin().run() is MoveState.DONE
    aside = commit_of(moving) + 2
    assert moving.disk.trace[aside - 1].startswith(f"rename {PARTITION_DIR} ")
    disk = FaultyFileSystem()
    disk.fail_at(aside)
    moving = Moving(disk)
    assert moving.begin().run() is MoveState.DONE
    moving.append()
    moving.ledger.flush(moving.log)
    disk = disk.killed()
    ids = SequentialIds(1)

    def start(*data_dirs: str) -> UnifiedLog:
        machine = LogMachine(disk, CONFIG, producer_id_expiration_ms=NEVER, data_dirs=data_dirs, ids=ids)
        log = machine.start()
        assert log.directory == OTHER_PARTITION_DIR
        moving.ledger.verify(log, after_crash=True)
        moving.log = log
        moving.append()
        machine.stop()
        moving.ledger.durable_end_offset = log.log_end_offset
        return log

    start(OTHER_DIR)
    assert f"{OTHER_PARTITION_DIR}/move.metadata" in disk.inner.contents()
    start(DATA_DIR, OTHER_DIR)
    assert PARTITION_DIR not in disk.inner.contents()
    start(DATA_DIR, OTHER_DIR)
