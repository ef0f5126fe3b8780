"""Two compactors, an uploader and retention at once, on one shard: between any two requests of the one
compactor the others may do all that they do. No record is lost, none comes back, and the work of the loser
is all that is wasted.
"""

from __future__ import annotations

import dataclasses
from random import Random

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.store_faults import Operation
from tests.support.logs.sampling import IS_WHOLE, SEED
from tests.support.tiered.compaction_history import CompactionHistory

RIVAL_DIRECTORY = "/tiered/rival"


class Race:
    """A shard with several actors. Not thread-safe: others act within the requests of one compactor."""

    def __init__(self, seed: int) -> None:
        self.history = CompactionHistory(seed)
        self.chance = Random(seed)
        self.rival = self._rival()
        self.reports: list[CompactionReport] = []
        self._is_on = False
        self._is_busy = False

    def _rival(self) -> Compactor:
        def change(settings: CompactionSettings) -> CompactionSettings:
            return dataclasses.replace(settings, spool_directory=RIVAL_DIRECTORY, merge_fanout=3)

        self.history.filesystem.make_directories(RIVAL_DIRECTORY)
        return self.history.tiered.compactor(change=change)

    def run(self) -> None:
        """The first compactor, with the others in between."""
        history = self.history
        for _ in range(3):
            history.upload()
        store = FaultyObjectStore(history.store, self.chance, actor="first", before=self._act)
        compactor = history.compactor(store)
        self._is_on = True
        for _ in range(3):
            self.reports += compactor.run()
            self.require()
            history.clock.advance(self.chance.choice((0, 1_000, 5_000)))
        self._is_on = False

    def _act(self, operation: Operation) -> None:
        """Others act before a request of the first compactor, most often before its commit."""
        is_commit = operation.verb == "PUT" and operation.key.endswith("/head")
        if not self._is_on or self._is_busy or self.chance.random() > (0.5 if is_commit else 0.1):
            return
        self._is_busy = True
        try:
            self._let_others_act()
        except AssertionError as error:
            # The compactor would take it for a defect of its own, and go on.
            raise ActorStopped(*error.args) from error
        finally:
            self._is_busy = False

    def _let_others_act(self) -> None:
        # The oracle must have seen when a tombstone was stamped before it is removed.
        self.require()
        match self.chance.choice(("compact", "compact", "upload", "trim")):
            case "compact":
                self.reports += self.rival.run()
            case "upload":
                self.history.upload()
            case _:
                self.history.trim()
        self.require()

    def require(self) -> None:
        """Check what is there against all that was ever written."""
        for tip, oracle in self.history.oracles.items():
            partition = self.history.tiered.partition(tip)
            oracle.require(
                oracle.readable(partition.log_start_offset),
                self.records(tip),
                log_start_offset=partition.log_start_offset,
                compacted_upto=partition.compacted_upto,
                now_ms=self.history.clock.now_ms(),
            )

    def records(self, tip: TopicIdPartition) -> list[Record]:
        return self.history.tiered.records(tip)


def test_a_race_loses_nothing() -> None:
    lost_count = 0
    for seed in range(SEED, SEED + (300 if IS_WHOLE else 8)):
        race = Race(seed)
        try:
            race.run()
            race.history.settle()
            race.require()
            assert race.history.filesystem.list_directory(RIVAL_DIRECTORY) == []
        except (AssertionError, ActorStopped) as error:
            error.add_note(f"seed {seed}")
            raise
        lost_count += sum(report.refused is not None for report in race.reports)
        assert all(report.refused is None or report.failed_attempts == 0 for report in race.reports)
    assert lost_count > 0, "some commit comes second"
