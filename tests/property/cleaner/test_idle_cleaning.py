"""A log without writers: in the end no tombstone is left that a clean has met, no value is lost, and it
is not cleaned for ever."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import given
from hypothesis import strategies as st

from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.log.checkpoint import OffsetCheckpoint
from stratalog.manager.directories.manifest import read_manifest
from stratalog.record.record import Record
from tests.support.cleaner.cleaning_history import (
    CONFIG,
    DELETE_RETENTION_MS,
    PRODUCER_COUNT,
    CleaningHistory,
)
from tests.support.logs.edited_manifest import edit_manifest
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, PARTITION

COMPACTED = dataclasses.replace(CONFIG, cleanup_policy=frozenset({"compact"}))
ROUNDS = 40


class IdleLog:
    """The end of a history. Used by one thread."""

    def __init__(self, history: CleaningHistory, *, min_ratio: float, delete_retention_ms: int) -> None:
        """All transactions of the history have ended. Its cleans are known to the cleaner from now on."""
        self._history = history
        self._chance: random.Random = history.chance
        self.dirty_clean_count = 0
        self.recopy_count = 0
        self.loss_count = 0
        """How often the note was lost of when the log is due."""
        self._config = dataclasses.replace(
            COMPACTED, min_cleanable_dirty_ratio=min_ratio, delete_retention_ms=delete_retention_ms
        )
        history.machine.config = self._config
        history.oracle.delete_retention_ms = delete_retention_ms
        path = f"{DATA_DIR}/{CLEANER_OFFSET_FILE}"
        OffsetCheckpoint(history.machine.disk, path).write({PARTITION: history.first_dirty_offset})
        self.restart(loses_horizons=True)

    @property
    def manager(self) -> CleanerManager:
        return self._history.machine.manager.cleaner

    def restart(self, *, loses_horizons: bool) -> None:
        """Another process goes on, which finds the note of when the log is due, or not."""
        history = self._history
        disk = history.machine.disk
        history.restart(is_clean=self._chance.random() < 0.5)
        if loses_horizons and read_manifest(disk, DATA_DIR).partitions[PARTITION].horizon_ms is not None:
            self.loss_count += 1
            edit_manifest(disk, DATA_DIR, PARTITION, horizon_ms=None)
            history.restart(is_clean=False)

    def settle(self, step_ms: int, restarts: float) -> None:
        """Let time go on until nothing is to come any more. `restarts`: how probable one is in each round."""
        for _ in range(ROUNDS):
            self.clean()
            if self.manager.last_survey.next_clean_ms == 2**63 - 1:
                return
            self._history.machine.clock.advance(step_ms)
            if self._chance.random() < restarts:
                self.restart(loses_horizons=self._chance.random() < 0.3)
        raise AssertionError("the log is due again and again")

    def clean(self) -> None:
        """Clean as the workers do, until they find nothing more to do."""
        while True:
            found = self.manager.take_filthiest()
            if found is None:
                if not self.manager.find_next_clean():
                    return
                continue
            before = [one.value for one in self.below_frontier()]
            is_recopy = found.first_dirty_offset == found.first_uncleanable_offset
            result = self._history.clean_found(found)
            self.manager.done(found, result.end_offset, result.next_clean_ms)
            self.manager.check()
            assert self.manager.failures() == ()
            if is_recopy:
                self.recopy_count += 1
                after = [one.value for one in self.below_frontier()]
                assert [value for value in after if value is not None] == [
                    value for value in before if value is not None
                ]
            else:
                self.dirty_clean_count += 1

    def horizons(self) -> set[int]:
        """The times that are written into batches."""
        headers = (
            located.header
            for segment in self._history.log.local_log.segments
            for located in segment.batches()
        )
        return {header.delete_horizon_ms for header in headers if header.delete_horizon_ms is not None}

    def below_frontier(self) -> list[Record]:
        """The records of users that are clean, but for those of a batch of which others are not."""
        history = self._history
        return [
            one
            for one in read_local(history.log)
            if one.offset in history.oracle.history
            and history.log.offsets.log_start_offset <= one.offset
            and history.oracle.history[one.offset].batch_last_offset < history.first_dirty_offset
        ]

    def lonely_markers(self) -> list[int]:
        """Offsets of the markers that are clean, and of whose transactions no batch is left."""
        history, found = self._history, list[int]()
        with_data: set[int] = set()
        for segment in history.log.local_log.segments:
            for _, header in segment.batches():
                if header.base_offset >= history.first_dirty_offset:
                    return found
                if header.is_control:
                    if header.producer_id not in with_data and header.records_count:
                        found.append(header.base_offset)
                    with_data.discard(header.producer_id)
                elif header.is_transactional:
                    with_data.add(header.producer_id)
        return found


STEPS = (
    ["write"] * 6
    + ["transact"] * 6
    + ["produce"]
    + ["end"] * 3
    + ["roll"] * 3
    + ["clean"] * 3
    + ["advance", "advance", "delete", "restart"]
)


def play(history: CleaningHistory, step: str) -> None:
    chance = history.chance
    producer_id = chance.randrange(PRODUCER_COUNT)
    if step == "write":
        history.write()
    elif step == "transact":
        history.write_as(producer_id)
    elif step == "produce":
        history.write_as(producer_id, is_transactional=False)
    elif step == "end":
        history.end_transaction(producer_id, committed=chance.random() < 0.5)
    elif step == "roll":
        history.log.roll()
    elif step == "clean":
        history.clean(chance.choice([2, 5, 1000]))
    elif step == "advance":
        history.machine.clock.advance(chance.choice([10, 30_000, 60_000]))
    elif step == "delete":
        history.delete_records(chance.random() / 4)
    else:
        history.restart(is_clean=chance.random() < 0.5)


def idle(seed: int, steps: list[str], *, min_ratio: float, delete_retention_ms: int) -> IdleLog:
    history = CleaningHistory(random.Random(seed))
    for step in steps:
        play(history, step)
    for producer_id in range(PRODUCER_COUNT):
        history.end_transaction(producer_id, committed=history.chance.random() < 0.5)
    if history.chance.random() < 0.8:
        history.log.roll()
    return IdleLog(history, min_ratio=min_ratio, delete_retention_ms=delete_retention_ms)


@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.sampled_from(STEPS), max_size=80),
    min_ratio=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    delete_retention_ms=st.sampled_from([0, 1, 1000, DELETE_RETENTION_MS, 3 * DELETE_RETENTION_MS]),
    step_ms=st.sampled_from([DELETE_RETENTION_MS // 3, DELETE_RETENTION_MS, 10 * DELETE_RETENTION_MS]),
    restarts=st.sampled_from([0.0, 0.0, 0.4]),
)
def test_in_the_end_nothing_is_left_that_had_its_time(
    seed: int, steps: list[str], min_ratio: float, delete_retention_ms: int, step_ms: int, restarts: float
) -> None:
    log = idle(seed, steps, min_ratio=min_ratio, delete_retention_ms=delete_retention_ms)
    former_count = len(log.horizons()) if delete_retention_ms < DELETE_RETENTION_MS else 0
    log.settle(step_ms, restarts)
    left = log.below_frontier()
    assert [one.offset for one in left if one.value is None] == []
    assert len({one.key for one in left}) == len(left)
    assert log.lonely_markers() == []
    # Behind those that took dirt there is one, and two more where it empties a transaction; where the note
    # was lost, one that finds nothing; and where the retention was longer once, one for each time of then.
    lost_count = 1 + log.loss_count
    assert log.recopy_count <= 3 * (1 + log.dirty_clean_count) + lost_count + former_count
    log.settle(100 * step_ms, 0.0)
    before = log.recopy_count
    log.settle(100 * step_ms, 0.0)
    assert log.recopy_count == before
