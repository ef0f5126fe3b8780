"""The needs of a job are those of its slices, counted one by one."""

from __future__ import annotations

from stratalog.compaction.plan.compaction_job import CompactionJob, RunMode
from stratalog.compaction.plan.input_need import ByteRange, InputNeed
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from tests.support.tiered.compaction_history import CompactionHistory


def test_the_needs_of_a_job_are_those_of_its_slices() -> None:
    modes: set[RunMode] = set()
    has_hashed = False
    for seed in range(12):
        history = CompactionHistory(seed)
        for _ in range(6):
            history.step()
        for job in history.compactor().plan().jobs:
            try:
                require_needs(job)
            except AssertionError as error:
                error.add_note(f"seed {seed}")
                raise
            modes |= {run.mode for run in job.runs}
            has_hashed = has_hashed or bool(job.needs.hashed)
    assert modes == set(RunMode)
    assert has_hashed


def require_needs(job: CompactionJob) -> None:
    for name in job.input_names:
        taken = [(run, live) for run in job.runs for live in run.slices if live.object_name == name]
        assert job.needs.inputs[name] == InputNeed(
            slice_count=len(taken),
            index_end=max(live.entry.index.position + live.entry.index.size_bytes for _, live in taken),
            data=data_range([live for _, live in taken]),
            carried=data_range([live for run, live in taken if run.mode is RunMode.CARRY]),
        )
    compacted = [run for run in job.runs if run.mode is RunMode.COMPACT]
    hashed = [[live for live in run.slices if not run.has_keys(live)] for run in compacted]
    assert [list(run.record_counts) for run in job.needs.hashed] == [
        [live.entry.record_count for live in slices] for slices in hashed if slices
    ]
    assert [list(run.data_bytes) for run in job.needs.hashed] == [
        [live.entry.data_bytes for live in slices] for slices in hashed if slices
    ]
    outputs = {(run.topic.kind, place) for run in job.runs for place in range(run.part_count)}
    assert set(job.needs.output_bytes) == outputs


def data_range(slices: list[LiveSlice]) -> ByteRange:
    with_data = [live.entry for live in slices if live.entry.data_bytes]
    if not with_data:
        return ByteRange(0, 0)
    return ByteRange(with_data[0].data_position, with_data[-1].data_end_position)
