"""A log without writers, while time goes on and the cleaner comes again and again.

Knows the batches of the log, and not how a clean finds out when it is due.
"""

from __future__ import annotations

import dataclasses
import random

from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.log.checkpoint import OffsetCheckpoint
from stratalog.manager.directories.manifest import read_manifest
from stratalog.record.record import Record
from tests.support.cleaner.cleaning_history import CONFIG, CleaningHistory
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
        assert self._history.machine.manager is not None
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
            if self.manager.last_survey.next_horizon_ms == 2**63 - 1:
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
                if not self.manager.find_horizon():
                    return
                continue
            before = [one.value for one in self.below_frontier()]
            is_recopy = found.first_dirty_offset == found.first_uncleanable_offset
            result = self._history.clean_found(found)
            self.manager.done(found, result.end_offset, result.horizon_ms)
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
