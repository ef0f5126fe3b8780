"""Compaction over a store on which every single request goes wrong in every way, and dies at each of them.

A run has a few dozen requests. For each of them, and each fault that makes a difference there, a shard with
the same past is compacted once more: whatever happens, readers see the state before or the one after a
commit, writes that land late change nothing, and the next run finishes the work.
"""

from __future__ import annotations

import functools
import itertools
from random import Random

import pytest

from stratalog.base.errors import StoreError
from stratalog.base.types import TopicIdPartition
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, Operation
from tests.support.tiered.compaction_history import CompactionHistory


class FaultAt:
    """One fault at the n-th request after the plan is armed: opening the shard is not what is tested."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.operations: list[Operation] = []
        self.is_armed = False
        self._number = number
        self._fault = fault

    def __call__(self, operation: Operation) -> Fault:
        if not self.is_armed:
            return Fault.NONE
        self.operations.append(operation)
        is_it = len(self.operations) - 1 == self._number and self._fault in FAULTS_OF_VERB[operation.verb]
        return self._fault if is_it else Fault.NONE


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


def run_with(seed: int, plan: FaultAt) -> CompactionHistory:
    """One run under a plan, checked after the run, after late writes have landed, and after a good run."""
    history = past(seed)
    store = FaultyObjectStore(history.store, Random(seed), plan, actor="compactor")
    compactor = history.compactor(store)
    plan.is_armed = True
    before = readable(history)
    try:
        compactor.run_once()
    except (StoreError, ActorStopped):
        pass
    # What a process leaves when it dies is swept by the next one; a run that ended has swept for itself.
    history.filesystem.remove_tree("/tiered/compaction")
    history.filesystem.make_directories("/tiered/compaction")
    history.require(before)
    between = readable(history)
    store.release_all()
    history.require(between)
    history.settle()
    return history


def operations_of(seed: int) -> list[Operation]:
    plan = FaultAt(-1, Fault.FAILS)
    run_with(seed, plan)
    return plan.operations


@functools.cache
def busy_seed() -> int:
    """The first past after which a run reads several objects and writes both kinds."""
    for seed in itertools.count():
        operations = operations_of(seed)
        on_data = [operation.verb for operation in operations if "/data/" in operation.key]
        if on_data.count("GET") >= 6 and on_data.count("PUT") >= 2:
            return seed
    raise AssertionError


def test_every_fault_at_every_request_leaves_the_old_state_or_the_new_one() -> None:
    seed = busy_seed()
    operations = operations_of(seed)
    assert any(operation.verb == "PUT" and operation.key.endswith("head") for operation in operations)
    for number, operation in enumerate(operations):
        for fault in FAULTS_OF_VERB[operation.verb]:
            try:
                run_with(seed, FaultAt(number, fault))
            except AssertionError as error:
                pytest.fail(f"seed {seed}, {fault.value} at request {number} ({operation}): {error}")


def test_a_compactor_that_lost_the_race_replaces_nothing() -> None:
    """Another compactor commits between the first one's last PUT and its commit."""
    history = past(busy_seed())
    rival = history.compactor()
    is_done = False

    def act_before_the_commit(operation: Operation) -> None:
        nonlocal is_done
        if operation.verb == "PUT" and operation.key.endswith("/head") and not is_done:
            is_done = True
            assert all(report.refused is None for report in rival.run_once())

    store = FaultyObjectStore(history.store, Random(0), actor="late", before=act_before_the_commit)
    compactor = history.compactor(store)
    before = readable(history)
    reports = compactor.run_once()
    assert is_done
    assert any(report.refused is not None for report in reports)
    history.require(before)
    history.settle()
