"""The scratch files that a job may need, at most, computed from its plan; a job for which there is no room
does not begin.

    directory and key streams of each input     GET 1 is drained, and kept until the job ends
    slices without usable key streams           a copy, and their sorted keys, until their run is rewritten
    key streams of the outputs                  until their object is stored
    the part that is being gathered             of each of several objects, if memory is too small

What fits the memory of its owner takes no file. The survivors of phase 1 are not known yet, so all count.
"""

from __future__ import annotations

import posixpath

from stratalog.base.errors import OverloadedError
from stratalog.base.filesystem import FileSystem
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.compaction_job import CompactionJob, PartitionRun, RunMode
from stratalog.objectstore.protocol import MAX_PART_COUNT
from stratalog.record.key_block import MAX_BLOCK_ENTRY_COUNT, block_size_bytes
from stratalog.remote.metadata.shard.live_slice import LiveSlice


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
    """The memory of each spool of an input: for its key streams, its data, and a slice that is hashed."""
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
    hashed = keys = 0
    for run in map(PartitionRun.unpacked, job.runs):
        if run.mode is RunMode.COMPACT:
            hashed = max(hashed, _hashed_bytes(run, inputs, settings.hash_part_entries))
        if run.topic.is_compacted:
            keys += sum(_key_bytes(run, live) for live in run.slices)
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
    remedies = (
        f"raise remote.compaction.scratch.max.bytes to at least {needed_bytes}"
        if needed_bytes > settings.max_scratch_bytes
        else "",
        f"free at least {needed_bytes - free_bytes} bytes on the disk" if needed_bytes > free_bytes else "",
    )
    if any(remedies):
        raise OverloadedError(
            "a compaction job may need more scratch space than there is, so it does not begin; "
            + " and ".join(filter(None, remedies)),
            needed_bytes=needed_bytes,
            free_bytes=free_bytes,
            max_scratch_bytes=settings.max_scratch_bytes,
            directory=settings.spool_directory,
        )


def _hashed_bytes(run: PartitionRun, memory_bytes: int, part_entries: int) -> int:
    """Copies and sorted keys of the slices without usable key streams."""
    total_bytes = 0
    for live in run.slices:
        if run.has_keys(live):
            continue
        part_count, last_entries = divmod(live.entry.record_count, part_entries)
        parts = ((part_count, _stream_bytes(run, part_entries)), (1, _stream_bytes(run, last_entries)))
        spools = ((1, live.entry.data_bytes), *parts)
        total_bytes += sum(count * size_bytes for count, size_bytes in spools if size_bytes > memory_bytes)
    return total_bytes


def _key_bytes(run: PartitionRun, live: LiveSlice) -> int:
    stream = live.entry.key_stream
    if stream is None:
        return _stream_bytes(run, live.entry.record_count)
    is_made_anew = not run.topic.hashing.made(stream)
    return _stream_bytes(run, stream.entry_count) if is_made_anew else stream.size_bytes


def _stream_bytes(run: PartitionRun, entry_count: int) -> int:
    """The size of a key stream."""
    has_versions = run.topic.hashing.has_versions
    full_count, last_entries = divmod(entry_count, MAX_BLOCK_ENTRY_COUNT)
    full_bytes = full_count * block_size_bytes(MAX_BLOCK_ENTRY_COUNT, has_versions=has_versions)
    return full_bytes + block_size_bytes(last_entries, has_versions=has_versions)
