"""Compaction over a store on which every single request goes wrong in every way, and dies at each of them.

A compaction has a few dozen requests. For each of them, and each fault that makes a difference there, a shard
with the same past is compacted once more: whatever happens, readers see the state before or the one after a
commit, writes that land late change nothing, and the next compaction finishes the work. `make simulate` plays
all of it, `make test` a sample.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest

from stratalog.base.errors import StoreError, StoreUnavailableError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.record.record import Record
from stratalog.remote.tier.orphan_sweep import OrphanSweep, SweepSettings
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.store_faults import (
    FAULTS_OF_VERB,
    Fault,
    FaultPlan,
    FaultsAt,
    Operation,
    RandomFaults,
    no_faults,
)
from tests.support.logs.sampling import SEED, Sampling
from tests.support.tiered.compaction_history import CompactionHistory
from tests.support.tiered.stores.open_streams_store import OpenStreamsStore

DAY_MS = 24 * 3_600_000


def past(seed: int) -> CompactionHistory:
    """A shard with enough to do for several jobs."""
    history = CompactionHistory(seed)
    for _ in range(3):
        history.upload()
    history.trim()
    history.clock.advance(10_000)
    return history


def readable(history: CompactionHistory) -> dict[TopicIdPartition, list[Record]]:
    return {tip: history.tiered.records(tip) for tip in history.oracles}


def compact_with(seed: int, plan: FaultPlan = no_faults) -> list[Operation]:
    """One compaction under a plan, checked after it, after late writes have landed, and after a good one.
    Returns the requests of the first, without those that opened the shard."""
    history = past(seed)
    store = FaultyObjectStore(history.store, Random(seed), plan, actor="compactor")
    compactor = history.compactor(store)
    opened_count = store.trace.operation_count
    before = readable(history)
    with suppress(StoreError, ActorStopped):
        compactor.run()
    # What a process leaves when it dies is swept by the next one; one that ended has swept for itself.
    history.filesystem.remove_tree("/tiered/compaction")
    history.filesystem.make_directories("/tiered/compaction")
    history.require(before)
    between = readable(history)
    store.release_all()
    history.require(between)
    history.settle()
    return [entry.operation for entry in store.trace.entries if entry.operation.number >= opened_count]


@functools.cache
def busy_seed() -> int:
    """The first past after which a compaction reads several objects and writes both kinds."""
    for seed in itertools.count():
        operations = compact_with(seed)
        on_data = [operation.verb for operation in operations if "/data/" in operation.key]
        if on_data.count("GET") >= 6 and on_data.count("PUT") >= 2:
            return seed
    raise AssertionError


def test_every_fault_at_every_request_leaves_the_old_state_or_the_new_one() -> None:
    seed = busy_seed()
    operations = compact_with(seed)
    assert any(operation.verb == "PUT" and operation.key.endswith("head") for operation in operations)
    faults = [(operation, fault) for operation in operations for fault in FAULTS_OF_VERB[operation.verb]]
    for operation, fault in Sampling().at_most(faults, 40):
        try:
            compact_with(seed, FaultsAt({operation.number: fault}))
        except AssertionError as error:
            error.add_note(f"seed {seed}, {fault.value} at {operation}")
            raise


@pytest.mark.parametrize("seed", range(3))
def test_streams_that_break_are_read_on(seed: int) -> None:
    """Each stream breaks amid its body; the job asks for the rest of it and commits."""
    history = past(seed)
    opened: Counter[str] = Counter()
    is_open = False

    def plan(operation: Operation) -> Fault:
        is_first_of_stream = operation.verb == "GET" and "/data/" in operation.key and not operation.condition
        if not is_open or not is_first_of_stream:
            return Fault.NONE
        opened[operation.key] += 1
        return Fault.IS_CUT_OFF

    compactor = history.compactor(FaultyObjectStore(history.store, Random(seed), plan))
    is_open = True
    before = readable(history)
    reports = compactor.run()
    history.require(before)
    assert reports
    assert all(report.refused is None for report in reports)
    assert all(report.get_requests <= 2 * report.inputs for report in reports)
    assert sum(report.get_requests for report in reports) == sum(opened.values())
    assert sum(report.resumed_get_count for report in reports) > 0


class DataFaults(RandomFaults):
    """Faults of the requests for data, once they are on. An upload whose beginning or abort has no answer is
    for the sweep, so these work."""

    def __init__(self, seed: int) -> None:
        super().__init__(Random(seed), 0.2)
        self.are_on = False

    def __call__(self, operation: Operation) -> Fault:
        is_faulty = "/data/" in operation.key and operation.condition not in ("begin", "abort")
        return super().__call__(operation) if self.are_on and is_faulty else Fault.NONE


@pytest.mark.parametrize("thread_count", [1, 8])
def test_requests_that_fail_on_other_threads_leave_nothing_behind(thread_count: int) -> None:
    """Streams, parts and scratch files of jobs that end anywhere while other requests are under way."""
    endings = Counter[bool]()
    seeds = range(SEED, SEED + 200)
    for seed in Sampling().at_most(seeds, 12):
        history = past(seed)
        inner = OpenStreamsStore(history.store)
        faults = DataFaults(seed)
        store = FaultyObjectStore(inner, Random(seed), faults)
        with ThreadPoolExecutor(thread_count) as threads:
            compactor = history.compactor(store, run_beside=threads.submit)
            before = readable(history)
            faults.are_on = True
            with suppress(StoreUnavailableError):  # The metadata log may read a directory, too.
                endings.update(report.refused is None for report in compactor.run())
            assert inner.open_count == 0, f"seed {seed}"
            assert list(history.store.list_uploads("")) == [], f"seed {seed}"
        history.require(before)
        store.release_all()
        history.require(readable(history))
    assert endings[True] > 0
    assert endings[False] > 0


@pytest.mark.parametrize("part_bytes", [300, 1 << 20])
@pytest.mark.parametrize("fault", [Fault.LANDS_UNKNOWN, Fault.FAILS, Fault.LANDS_LATE])
def test_an_output_of_unknown_outcome_is_sent_again(fault: Fault, part_bytes: int) -> None:
    """The job commits although the first two answers for each request of an output were lost."""
    history = past(busy_seed())
    sent: Counter[tuple[str, str]] = Counter()

    def plan(operation: Operation) -> Fault:
        if operation.verb != "PUT" or "/data/" not in operation.key:
            return Fault.NONE
        request = operation.key, operation.condition
        sent[request] += 1
        return fault if sent[request] < 3 else Fault.NONE

    store = FaultyObjectStore(history.store, Random(0), plan)
    before = readable(history)
    reports = history.compactor(store, output_part_bytes=part_bytes).run()
    history.require(before)
    assert [report.refused for report in reports] == [None] * len(reports)
    assert sum(report.outputs for report in reports) == len({key for key, _ in sent}) > 0
    assert set(sent.values()) == {3}
    assert {condition for _, condition in sent} >= (
        {"begin", "part 1", "part 2", "complete"} if part_bytes == 300 else {""}
    )
    store.release_all()
    history.require(readable(history))
    # An upload whose beginning was not answered is for the sweep.
    uploads = list(history.store.list_uploads(""))
    assert bool(uploads) == (part_bytes == 300 and fault is not Fault.FAILS)


@pytest.mark.parametrize("condition", ["part 1", "part 2", "complete"])
def test_a_job_that_fails_leaves_no_parts(condition: str) -> None:
    history = past(busy_seed())

    def plan(operation: Operation) -> Fault:
        return Fault.FAILS if operation.condition == condition else Fault.NONE

    store = FaultyObjectStore(history.store, Random(0), plan)
    before = readable(history)
    reports = history.compactor(store, output_part_bytes=300).run()
    assert any(report.refused is not None for report in reports)
    assert any(entry.fault is Fault.FAILS for entry in store.trace.entries)
    history.require(before)
    assert list(history.store.list_uploads("")) == []
    history.settle()


@pytest.mark.parametrize("fault", [Fault.STOPS_BEFORE, Fault.STOPS_AFTER])
def test_the_parts_of_a_compactor_that_died_are_swept(fault: Fault) -> None:
    history = past(busy_seed())

    def plan(operation: Operation) -> Fault:
        return fault if operation.condition == "part 2" else Fault.NONE

    store = FaultyObjectStore(history.store, Random(0), plan)
    before = readable(history)
    with pytest.raises(ActorStopped):
        history.compactor(store, output_part_bytes=300).run()
    history.require(before)
    [upload] = history.store.list_uploads("")
    history.clock.advance(DAY_MS)
    sweep = OrphanSweep(history.store, history.tiered.metadata, SweepSettings(grace_ms=DAY_MS))
    report = sweep.run(history.clock.now_ms(), StopSignal(), is_whole=True)
    assert upload.key in {one.key for one in report.deleted}
    assert list(history.store.list_uploads("")) == []
    history.require(before)


def test_a_compactor_that_lost_the_race_replaces_nothing() -> None:
    """Another compactor commits between the first one's last PUT and its commit."""
    history = past(busy_seed())
    rival = history.compactor()
    is_done = False

    def act_before_the_commit(operation: Operation) -> None:
        nonlocal is_done
        if operation.verb == "PUT" and operation.key.endswith("/head") and not is_done:
            is_done = True
            assert all(report.refused is None for report in rival.run())

    store = FaultyObjectStore(history.store, Random(0), actor="late", before=act_before_the_commit)
    compactor = history.compactor(store)
    before = readable(history)
    reports = compactor.run()
    assert is_done
    assert any(report.refused is not None for report in reports)
    history.require(before)
    history.settle()
