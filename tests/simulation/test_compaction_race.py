"""Two compactors of one shard, one of a server and one of another process, beside uploads and trims: whatever
the order of their requests, nothing is lost or doubled, and the loser of a race says so.

A compactor pauses ahead of each request. The seed chooses which one goes on, and whether an upload or a trim
comes in between. `make simulate` plays many seeds.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from random import Random, randrange

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import INPUTS_GONE, Compactor
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.shard_judge import INPUTS_CHANGED, NOT_FROM_FIRST_SLICE
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation
from tests.support.simulation.step_scheduler import StepScheduler
from tests.support.tiered.compaction_history import CompactionHistory

IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "simulate"
FIRST_SEED = int(os.environ.get("STRATALOG_SIMULATION_FIRST_SEED", randrange(1 << 40) if IS_LONG else 0))
SEEDS = int(os.environ.get("STRATALOG_SIMULATION_SEEDS", "200" if IS_LONG else "6"))
ACTORS = ("server", "process")
RUN_COUNT = 2


class Race:
    """The two compactors and the owner of the shard. Not thread-safe: one test uses it, and its actors take
    turns."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.history = CompactionHistory(seed)
        self.history.filesystem.make_directories("/tiered/compaction")
        for _ in range(4):
            self.history.upload()
        self.history.clock.advance(10_000)
        self.scheduler = StepScheduler()
        self.reports: dict[str, list[CompactionReport]] = {name: [] for name in ACTORS}
        self.data = self.history.tiered.layout.data_key("")
        self.sent: Counter[str] = Counter()
        """The objects that each compactor has begun to send."""

    def play(self) -> None:
        """Run both to their ends, and compare the shard with the oracle after each change."""
        for name in ACTORS:
            self.scheduler.spawn(name, partial(self._compact, name))
        try:
            before, seq = self._readable(), self.history.tiered.metadata.refresh().seq
            while self.scheduler.runnable:
                if self.random.random() < 0.02:
                    self.random.choice((self.history.upload, self.history.upload, self.history.trim))()
                    before = self._readable()
                self.scheduler.resume(self.random.choice(self.scheduler.runnable))
                if self.history.tiered.metadata.refresh().seq != seq:
                    self.history.require(before)
                    before, seq = self._readable(), self.history.tiered.metadata.state().seq
        finally:
            self.scheduler.close()
        self.history.settle()

    def _compact(self, name: str) -> None:
        def pause(operation: Operation) -> Fault:
            self.sent[name] += operation.verb == "PUT" and operation.key.startswith(self.data)
            self.scheduler.pause(name)
            return Fault.NONE

        # Each has a disk of its own, as on two machines, and a memory of its own.
        store = FaultyObjectStore(self.history.store, Random(0), pause, actor=name)
        compactor = Compactor(
            MemoryFileSystem(),
            self.history.clock,
            SequentialIds(1 + ACTORS.index(name)),
            self.history.tiered.shard(store),
            CompactionSettings(
                spool_directory="/compaction", max_inputs_per_job=3, max_job_bytes=2_000, merge_fanout=3
            ),
        )
        for _ in range(RUN_COUNT):
            self.reports[name] += compactor.run()

    def _readable(self) -> dict[TopicIdPartition, list[Record]]:
        return {tip: self.history.tiered.records(tip) for tip in self.history.oracles}


def test_compactors_that_race_lose_and_double_nothing() -> None:
    endings: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        race = Race(seed)
        try:
            race.play()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        for name in ACTORS:
            jobs = [report for report in race.reports[name] if report.inputs]
            for report in jobs:
                lost = {reason for _, reason in report.refused_partitions}
                assert report.refused in (None, INPUTS_GONE), (seed, report)
                assert lost <= {INPUTS_CHANGED, NOT_FROM_FIRST_SLICE}, (seed, report)
                assert report.failed_attempts == 0, "to lose a race is no failure"
                endings["lost" if report.refused else "lost in part" if lost else "won"] += 1
            # Only what a job has sent and could not commit is wasted.
            committed_count = sum(report.outputs for report in jobs)
            wasted_count = race.sent[name] - committed_count
            assert wasted_count >= 0
            assert wasted_count == 0 or any(report.refused for report in jobs), (seed, wasted_count)
    assert endings["won"] > SEEDS
    assert endings["lost"] > 0, endings


@pytest.mark.parametrize("seed", [FIRST_SEED])
def test_a_seed_has_one_race(seed: int) -> None:
    def reports() -> dict[str, list[CompactionReport]]:
        race = Race(seed)
        race.play()
        return race.reports

    assert reports() == reports()
