"""A job needs no more scratch than was computed from its plan, and does not begin where there is less."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest

from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.scratch_budget import scratch_bytes
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Operation
from tests.support.tiered.compaction_history import CompactionHistory

DIRECTORY = "/tiered/compaction"


def past(seed: int) -> CompactionHistory:
    history = CompactionHistory(seed)
    for _ in range(4):
        history.upload()
    history.clock.advance(10_000)
    return history


def used_bytes(history: CompactionHistory) -> int:
    is_there = history.filesystem.exists(DIRECTORY)
    names = history.filesystem.list_directory(DIRECTORY) if is_there else []
    return sum(history.filesystem.file_size(f"{DIRECTORY}/{name}") for name in names)


@pytest.mark.parametrize("seed", range(12))
def test_jobs_stay_within_their_need_and_do_not_begin_with_less(seed: int) -> None:
    history, random = past(seed), Random(seed)
    changes: dict[str, Any] = {
        "merge_fanout": 3,
        "job_memory_bytes": random.choice((0, 0, 2_000, 20_000, 1 << 20)),
        "hash_part_entries": random.choice((1, 3, 1 << 20)),
        "output_part_bytes": random.choice((300, 2_000, 1 << 20)),
    }
    peak_bytes = 0

    def look(_operation: Operation) -> None:
        nonlocal peak_bytes
        peak_bytes = max(peak_bytes, used_bytes(history))

    def change(base: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(base, **changes)

    settings = change(CompactionSettings(spool_directory=DIRECTORY))
    planned = history.tiered.compactor(change=change).plan()
    needs = [scratch_bytes(job, settings) for job in planned.jobs]
    if changes["job_memory_bytes"] == 0:
        assert all(needs), f"seed {seed}"

    if any(needs):
        changes["max_scratch_bytes"] = max(needs) - 1
        store = FaultyObjectStore(history.store, random, before=look)
        reports = history.tiered.compactor(store, change).run_once()
        refused = [report for report in reports if report.failed_attempts]
        assert refused, f"seed {seed}"
        for report in refused:
            assert f"needed_bytes=`{max(needs)}`" in (report.refused or "")
            assert (report.get_requests, report.failed_attempts) == (0, 1)
        assert peak_bytes <= max(needs) - 1, f"seed {seed}"
        # What was small enough has been done.
        assert sum(report.refused is None for report in reports) == sum(need < max(needs) for need in needs)

    changes["max_scratch_bytes"] = max(needs, default=0)
    store = FaultyObjectStore(history.store, random, before=look)
    before = {tip: history.tiered.records(tip) for tip in history.oracles}
    for report in history.tiered.compactor(store, change).run_once():
        assert report.failed_attempts == 0, f"seed {seed}"
    assert peak_bytes <= max(needs, default=0), f"seed {seed}"
    history.require(before)
