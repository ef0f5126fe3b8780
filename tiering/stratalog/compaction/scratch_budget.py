"""The scratch files that a job may need, at most, computed from its plan; a job for which there is no room
does not begin.

    directory and key streams of each input     GET 1 is drained, and kept until the job ends
    slices without usable key streams           a copy, and their sorted keys, until their run is rewritten
    key streams of the outputs                  until their object is stored
    the part that is being gathered             of each of several objects, if memory is too small

A server promises a job its scratch for as long as it runs, out of what uploads and other jobs were not
promised.

What fits the memory of its owner takes no file. The survivors of phase 1 are not known yet, so all count.
"""

from __future__ import annotations

import dataclasses
import posixpath
from bisect import bisect_left
from collections.abc import Generator
from contextlib import contextmanager

from stratalog.base.errors import OverloadedError
from stratalog.base.filesystem import FileSystem
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.compaction.plan.job_needs import HashedRun
from stratalog.objectstore.protocol import MAX_PART_COUNT
from stratalog.record.key_block import key_stream_bytes
from stratalog.remote.objects.scratch_disk import ScratchDisk


def output_memory_bytes(job: CompactionJob, settings: CompactionSettings) -> int:
    """The memory of the key streams of each output object, an eighth of the job's: they are written and read
    once, in order, so that a file costs little."""
    return settings.job_memory_bytes // (8 * job.output_count)


def window_bytes(job: CompactionJob, settings: CompactionSettings) -> int:
    """The memory of the part that is being gathered of each output object. A part is in memory while it is
    sent, so that of a single output always is. Several share a quarter of the job's memory."""
    size_bytes = part_bytes(job, settings)
    return size_bytes if job.output_count == 1 else settings.job_memory_bytes // (4 * job.output_count)


def input_memory_bytes(job: CompactionJob, settings: CompactionSettings) -> int:
    """The memory of an input, three times: for its key streams, for the blocks of its data, and for a slice
    that is hashed."""
    return settings.job_memory_bytes // (6 * len(job.inputs))


def part_bytes(job: CompactionJob, settings: CompactionSettings) -> int:
    """The size of the parts of outputs: the setting, or more if a single slice of the inputs is so large that
    its object would have too many parts."""
    all_bytes = sum(live.ref.size_bytes for live in job.inputs)
    return max(settings.output_part_bytes, 2 * all_bytes // MAX_PART_COUNT)


def scratch_bytes(job: CompactionJob, settings: CompactionSettings) -> int:
    """The most bytes that the job has in scratch files at a time."""
    outputs, inputs = output_memory_bytes(job, settings), input_memory_bytes(job, settings)
    read = (live.ref.size_bytes - live.ref.directory_position for live in job.inputs)
    hashed = max((_hashed_bytes(run, inputs, settings) for run in job.needs.hashed), default=0)
    keys = job.needs.key_bytes
    windows = 0
    if part_bytes(job, settings) > window_bytes(job, settings):
        all_bytes = sum(live.ref.size_bytes for live in job.inputs)
        windows = min(job.output_count * part_bytes(job, settings), all_bytes)
    return (
        sum(size_bytes for size_bytes in read if size_bytes > inputs)
        + hashed
        + (keys if keys > outputs else 0)
        + windows
    )


def require_scratch(filesystem: FileSystem, job: CompactionJob, settings: CompactionSettings) -> None:
    """Raise OverloadedError if the job may need more scratch than it may have or the disk has free, OSError
    if the disk cannot be asked."""
    needed_bytes = scratch_bytes(job, settings)
    if needed_bytes == 0:
        return
    directory = settings.spool_directory
    while not filesystem.exists(directory):
        directory = posixpath.dirname(directory)
    free_bytes = filesystem.free_bytes(directory)
    if needed_bytes > min(settings.max_scratch_bytes, free_bytes):
        raise _refusal(job, settings, needed_bytes, free_bytes)


@contextmanager
def promised_scratch(disk: ScratchDisk, job: CompactionJob, settings: CompactionSettings) -> Generator[None]:
    """Hold the scratch that the job may need at most, so that no other work on the disk takes it. Raises
    OverloadedError if that is not free, or promised to others."""
    needed_bytes = scratch_bytes(job, settings)
    if not disk.promise(settings.spool_directory, needed_bytes):
        free_bytes = disk.free_bytes(settings.spool_directory)
        raise _refusal(job, settings, needed_bytes, free_bytes, promised_bytes=disk.promised_bytes)
    try:
        yield
    finally:
        disk.end(needed_bytes)


def waits_for_others(error: OverloadedError) -> bool:
    """Whether a job has no room only because uploads or other jobs were promised it: it fits once they end.
    What they have written of it by now is counted as used and as promised."""
    needed_bytes, free_bytes, promised_bytes, most_bytes = (
        int(str(error.fields.get(name, 0)))
        for name in ("needed_bytes", "free_bytes", "promised_bytes", "max_scratch_bytes")
    )
    return promised_bytes > 0 and needed_bytes <= min(most_bytes, free_bytes + 2 * promised_bytes)


def _refusal(
    job: CompactionJob,
    settings: CompactionSettings,
    needed_bytes: int,
    free_bytes: int,
    promised_bytes: int = 0,
) -> OverloadedError:
    """The error of a job that needs more scratch than it may have, or than is free. `promised_bytes` are
    those of other work."""
    remedies: list[str] = []
    if needed_bytes > settings.max_scratch_bytes:
        remedies.append(
            f"raise remote.compaction.scratch.max.bytes from {settings.max_scratch_bytes} to at least"
            f" {needed_bytes}"
        )
    if needed_bytes > free_bytes:
        remedies.append(f"free at least {needed_bytes - free_bytes} bytes on the disk")
    if not remedies:
        # What was promised ended between the promise that failed and this look.
        remedies.append("try again once uploads and other jobs that run have ended")
    if promised_bytes:
        remedies[-1] += f" (uploads and other jobs that run were promised {promised_bytes})"
    memory_bytes = _enough_memory(job, settings, min(settings.max_scratch_bytes, free_bytes))
    return OverloadedError(
        "a compaction job may need more scratch space than there is, so it does not begin; "
        + " and ".join(remedies)
        + f", or raise remote.compaction.job.memory.bytes from {settings.job_memory_bytes} to at least"
        f" {memory_bytes}, which needs less scratch",
        needed_bytes=needed_bytes,
        free_bytes=free_bytes,
        promised_bytes=promised_bytes,
        max_scratch_bytes=settings.max_scratch_bytes,
        directory=settings.spool_directory,
    )


def _enough_memory(job: CompactionJob, settings: CompactionSettings, room_bytes: int) -> int:
    """The least memory with which the job needs no more scratch than this."""

    def is_enough(memory_bytes: int) -> bool:
        return scratch_bytes(job, dataclasses.replace(settings, job_memory_bytes=memory_bytes)) <= room_bytes

    # More memory never needs more scratch, and with enough of it there is none.
    enough = max(1, settings.job_memory_bytes)
    while not is_enough(enough):
        enough *= 2
    return bisect_left(range(enough), True, key=is_enough)


def _hashed_bytes(run: HashedRun, memory_bytes: int, settings: CompactionSettings) -> int:
    """Copies and sorted keys of the slices without usable key streams."""
    part_entries = settings.hash_part_entries
    part_size_bytes = key_stream_bytes(part_entries, has_versions=run.has_versions)
    total_bytes = 0
    for record_count, data_bytes in zip(run.record_counts, run.data_bytes, strict=True):
        part_count, last_entries = divmod(record_count, part_entries)
        last_bytes = key_stream_bytes(last_entries, has_versions=run.has_versions)
        spools = ((1, data_bytes), (part_count, part_size_bytes), (1, last_bytes))
        total_bytes += sum(count * size_bytes for count, size_bytes in spools if size_bytes > memory_bytes)
    return total_bytes
