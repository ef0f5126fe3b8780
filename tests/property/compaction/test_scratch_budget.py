"""A job needs no more scratch than was computed from its plan, and does not begin where there is less."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from stratalog.base.errors import OverloadedError
from stratalog.base.stop_signal import StopSignal
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor, CompactorConfig, CompactorScratch
from stratalog.compaction.job_execution import JobExecution, JobOrder
from stratalog.compaction.plan.compaction_job import CompactionJob, RunMode
from stratalog.compaction.scratch_budget import promised_scratch, scratch_bytes
from stratalog.remote.objects.scratch_disk import ScratchDisk
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.scratch_peak import ScratchPeak
from tests.support.logs.sampling import Sampling
from tests.support.tiered.compaction_history import CompactionHistory

DIRECTORY = "/compaction"


def past(seed: int) -> CompactionHistory:
    history = CompactionHistory(seed)
    for _ in range(4):
        history.upload()
    history.filesystem.make_directories("/tiered/compaction")
    history.clock.advance(10_000)
    return history


def settings_of(random: Random) -> CompactionSettings:
    """A little memory or none, so that some spools take files and some do not."""
    return CompactionSettings(
        spool_directory=DIRECTORY,
        merge_fanout=3,
        job_memory_bytes=random.choice((0, 0, 2_000, 20_000, 1 << 20)),
        hash_part_entries=random.choice((1, 3, 1 << 20)),
        output_part_bytes=random.choice((20, 300, 1 << 20)),
    )


def compactor_of(history: CompactionHistory, disk: ScratchPeak, settings: CompactionSettings) -> Compactor:
    shard = history.tiered.shard(history.store)
    return Compactor(disk, history.clock, SequentialIds(disk.peak_bytes), shard, settings)


def jobs_of(history: CompactionHistory, settings: CompactionSettings) -> list[CompactionJob]:
    return list(compactor_of(history, ScratchPeak(DIRECTORY), settings).plan().jobs)


def test_jobs_stay_within_their_need_and_do_not_begin_with_less() -> None:
    for seed in Sampling().at_most(range(100), 12):
        try:
            require_need(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def require_need(seed: int) -> None:
    """Run the jobs of a shard with one byte less than the largest needs, and with enough."""
    history = past(seed)
    settings = settings_of(Random(seed))
    needs = [scratch_bytes(job, settings) for job in jobs_of(history, settings)]
    before = {tip: history.tiered.records(tip) for tip in history.oracles}

    if any(needs):
        disk = ScratchPeak(DIRECTORY)
        too_little = dataclasses.replace(settings, max_scratch_bytes=max(needs) - 1)
        reports = compactor_of(history, disk, too_little).run()
        refused = [report for report in reports if "scratch" in (report.refused or "") and report.inputs]
        assert any(f"needed_bytes=`{max(needs)}`" in (report.refused or "") for report in refused)
        assert all(report.get_requests == 0 for report in refused)
        assert disk.peak_bytes < max(needs)
        # Smaller jobs have been run.
        history.require(before)
        before = {tip: history.tiered.records(tip) for tip in history.oracles}

    disk = ScratchPeak(DIRECTORY)
    needs = [scratch_bytes(job, settings) for job in jobs_of(history, settings)]
    enough = dataclasses.replace(settings, max_scratch_bytes=max(needs, default=0))
    for report in compactor_of(history, disk, enough).run():
        assert report.failed_attempts == 0
    assert disk.peak_bytes <= max(needs, default=0)
    history.require(before)


def test_a_job_does_not_begin_with_the_space_that_other_work_was_promised() -> None:
    """Both would find the disk free, and the later one would fail in the middle."""
    history = past(3)
    settings = dataclasses.replace(settings_of(Random(3)), job_memory_bytes=0)
    [job, *_] = jobs_of(history, settings)
    needed_bytes = scratch_bytes(job, settings)
    filesystem = MemoryFileSystem(free_bytes=2 * needed_bytes - 1)
    filesystem.make_directories(DIRECTORY)
    disk = ScratchDisk(filesystem)
    with promised_scratch(disk, job, settings):
        assert disk.promised_bytes == needed_bytes
        with pytest.raises(OverloadedError) as refused, promised_scratch(disk, job, settings):
            raise AssertionError("a job without room begins")
        found = {
            name: refused.value.fields[name] for name in ("needed_bytes", "free_bytes", "promised_bytes")
        }
        assert found == {
            "needed_bytes": needed_bytes,
            "free_bytes": needed_bytes - 1,
            "promised_bytes": needed_bytes,
        }
        assert f"were promised {needed_bytes}" in refused.value.message
    assert disk.promised_bytes == 0
    with promised_scratch(disk, job, settings):
        pass


def test_a_job_is_refused_as_without_room_if_other_work_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The refusal looks at the disk again, which has room by then; it was an error of an index."""
    promise = ScratchDisk.promise

    def promise_late(disk: ScratchDisk, directory: str, size_bytes: int) -> bool:
        assert not promise(disk, directory, size_bytes)
        disk.end(other_bytes)
        return False

    history = past(3)
    settings = dataclasses.replace(settings_of(Random(3)), job_memory_bytes=0)
    [job, *_] = jobs_of(history, settings)
    needed_bytes = scratch_bytes(job, settings)
    other_bytes, longer_bytes = needed_bytes, 1
    filesystem = MemoryFileSystem(free_bytes=2 * needed_bytes)
    filesystem.make_directories(DIRECTORY)
    disk = ScratchDisk(filesystem)
    for size_bytes in (other_bytes, longer_bytes):
        assert disk.promise(DIRECTORY, size_bytes)
    monkeypatch.setattr(ScratchDisk, "promise", promise_late)
    with pytest.raises(OverloadedError) as refused, promised_scratch(disk, job, settings):
        raise AssertionError("a job without room begins")
    assert refused.value.fields["free_bytes"] == 2 * needed_bytes - longer_bytes
    assert refused.value.fields["promised_bytes"] == longer_bytes


def test_a_compactor_promises_each_job_its_scratch() -> None:
    history = past(3)
    settings = dataclasses.replace(settings_of(Random(3)), job_memory_bytes=0)
    filesystem = ScratchPeak(DIRECTORY)
    filesystem.make_directories(DIRECTORY)
    disk = ScratchDisk(filesystem)
    assert disk.promise(DIRECTORY, disk.free_bytes(DIRECTORY))
    config = CompactorConfig(scratch=CompactorScratch(lambda: DIRECTORY, disk))

    def compactor() -> Compactor:
        shard = history.tiered.shard(history.store)
        return Compactor(filesystem, history.clock, SequentialIds(9), shard, settings, config)

    reports = compactor().run()
    assert any("scratch" in (report.refused or "") for report in reports)
    assert filesystem.peak_bytes == 0, "no job began"
    disk.end(disk.promised_bytes)
    assert any(report.refused is None for report in compactor().run())
    assert disk.promised_bytes == 0


def test_a_shortage_that_other_work_causes_makes_no_job_smaller_and_excludes_nothing() -> None:
    """The first run of a busy moment shrank each job for as long as its objects lived."""
    history = past(3)
    settings = dataclasses.replace(settings_of(Random(3)), job_memory_bytes=0)
    filesystem = ScratchPeak(DIRECTORY)
    filesystem.make_directories(DIRECTORY)
    disk = ScratchDisk(filesystem)
    config = CompactorConfig(scratch=CompactorScratch(lambda: DIRECTORY, disk))
    shard = history.tiered.shard(history.store)
    compactor = Compactor(filesystem, history.clock, SequentialIds(9), shard, settings, config)
    planned = [job.input_names for job in compactor.plan().jobs if scratch_bytes(job, settings)]
    assert planned
    assert disk.promise(DIRECTORY, disk.free_bytes(DIRECTORY))
    assert any("scratch" in (report.refused or "") for report in compactor.run())
    assert not compactor.excluded()
    disk.end(disk.promised_bytes)
    assert [job.input_names for job in compactor.plan().jobs if scratch_bytes(job, settings)] == planned


def test_the_promise_goes_by_the_settings_in_force() -> None:
    """A refusal says to raise the memory of jobs; the next run goes by that."""
    history = past(3)
    settings = dataclasses.replace(settings_of(Random(3)), job_memory_bytes=0)
    filesystem = ScratchPeak(DIRECTORY)
    filesystem.make_directories(DIRECTORY)
    disk = ScratchDisk(filesystem)
    assert disk.promise(DIRECTORY, disk.free_bytes(DIRECTORY))
    memory_bytes = 0

    def renewed(before: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(before, job_memory_bytes=memory_bytes)

    config = CompactorConfig(
        renewed=renewed,
        scratch=CompactorScratch(lambda: DIRECTORY, disk),
    )
    shard = history.tiered.shard(history.store)
    compactor = Compactor(filesystem, history.clock, SequentialIds(9), shard, settings, config)
    assert any("scratch" in (report.refused or "") for report in compactor.run())
    memory_bytes = 1 << 30
    history.clock.advance(settings.retry_backoff_ms)
    assert any(report.refused is None for report in compactor.run())
    assert filesystem.peak_bytes == 0


def test_a_job_is_promised_scratch_by_the_settings_that_it_runs_by() -> None:
    """Those of its beginning: another job may be at work for an hour before its turn comes."""
    history = past(3)
    settings = dataclasses.replace(settings_of(Random(3)), job_memory_bytes=0)
    filesystem = ScratchPeak(DIRECTORY)
    filesystem.make_directories(DIRECTORY)
    disk = ScratchDisk(filesystem)
    assert disk.promise(DIRECTORY, disk.free_bytes(DIRECTORY))
    memory_bytes = 0

    def begin(order: JobOrder, _stop: StopSignal, _on_transfer: object) -> JobExecution:
        nonlocal memory_bytes
        memory_bytes = 1 << 30
        return JobExecution(filesystem, history.clock, SequentialIds(9), history.store, order)

    def renewed(before: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(before, job_memory_bytes=memory_bytes)

    config = CompactorConfig(
        renewed=renewed,
        scratch=CompactorScratch(lambda: DIRECTORY, disk),
        execution_elsewhere=begin,
    )
    shard = history.tiered.shard(history.store)
    compactor = Compactor(filesystem, history.clock, SequentialIds(8), shard, settings, config)
    assert "scratch" in (compactor.run()[0].refused or "")
    assert filesystem.peak_bytes == 0, "no job began"


def test_each_kind_of_file_counts() -> None:
    """Nothing fits memory here. Spools gather small pieces, so that the files of these jobs are smaller."""
    kinds: set[str] = set()
    for seed in range(8):
        history = past(seed)
        settings = dataclasses.replace(settings_of(Random(seed)), job_memory_bytes=0)
        for job in jobs_of(history, settings):
            read = sum(live.ref.size_bytes - live.ref.directory_position for live in job.inputs)
            streams = [live.entry.key_stream for run in job.runs for live in run.slices]
            keys = sum(stream.size_bytes for stream in streams if stream is not None)
            copies = [
                sum(live.entry.data_bytes for live in run.slices if not run.has_keys(live))
                for run in job.runs
                if run.mode is RunMode.COMPACT
            ]
            hashed = max(copies, default=0)
            # The part that is gathered of a single output stays in memory.
            windows = int(job.output_count > 1)
            assert scratch_bytes(job, settings) >= read + keys + hashed + windows
            sizes = ("keys", keys), ("hashed", hashed), ("windows", windows)
            kinds |= {name for name, size in sizes if size}
    assert kinds == {"keys", "hashed", "windows"}


def test_the_need_is_not_much_more_than_the_use() -> None:
    """Jobs that need files for all, a few of which need much."""
    used_bytes = needed_bytes = 0
    for seed in range(8):
        history, disk = past(seed), ScratchPeak(DIRECTORY)
        settings = dataclasses.replace(settings_of(Random(seed)), job_memory_bytes=0)
        needed_bytes += max((scratch_bytes(job, settings) for job in jobs_of(history, settings)), default=0)
        compactor_of(history, disk, settings).run()
        used_bytes += disk.peak_bytes
    assert 0 < used_bytes <= needed_bytes <= 4 * used_bytes
