"""What is known to be durable of a partition that is set aside while no topic has its id, kept inside it.

The checkpoints of a log directory go by the names of partitions, and the name may be another topic's soon.
But nothing else tells up to where records of this one were deleted, and whoever gets it back must not see
them again. So the partition's own directory gets checkpoints before it is renamed, in the form of those of
the log directory, with this one entry. They are written each time it is set aside, and mean nothing before.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, OffsetCheckpoint
from stratalog.manager.directories.data_directory import STRAY_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.start_checkpoint import LOG_START_COPY_FILE, StartCheckpoint

_FILES = (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, LOG_START_COPY_FILE)


def note_stray_offsets(filesystem: FileSystem, directory: LogDirectory, partition: TopicPartition) -> None:
    """The partition, which the log directory has, is about to be set aside. Durable when it returns; nothing
    where its checkpoints know nothing of it. Raises OSError, DataDirectoryError."""
    checkpoints = directory.checkpoints
    if checkpoints.known_end(partition) is None:
        return
    path = directory.partition_path(partition)
    recovery_point = {partition: checkpoints.recovery_point(partition)}
    start = {partition: checkpoints.log_start_offset(partition)}
    directory.spare.writing(
        lambda: OffsetCheckpoint(filesystem, f"{path}/{RECOVERY_POINT_FILE}").write(recovery_point)
    )
    directory.spare.writing(lambda: StartCheckpoint(filesystem, path).write(start))


def restore_stray_offsets(
    filesystem: FileSystem, directory: LogDirectory, partition: TopicPartition, path: str
) -> None:
    """What was set aside there is about to be the partition's again: let the checkpoints of the log directory
    know what they knew of it; they stay as they are where nothing was noted. Durable when it returns. Raises
    OSError, DataDirectoryError."""
    if not has_stray_offsets(filesystem, [path]):
        return
    recovery_points = OffsetCheckpoint(filesystem, f"{path}/{RECOVERY_POINT_FILE}").read()
    starts = StartCheckpoint(filesystem, path).read()
    directory.checkpoints.put(partition, recovery_points.get(partition, 0), starts.get(partition, 0))


def has_noted(filesystem: FileSystem, directory: LogDirectory, partition: TopicPartition) -> bool:
    """What the checkpoints of the log directory know of the partition is what was noted in one that was set
    aside: the process ended before they could forget it. Raises OSError, DataDirectoryError."""
    entries = directory.checkpoints.entries(partition)
    for path in directory.files.set_aside_of(partition, STRAY_REASON):
        if not has_stray_offsets(filesystem, [path]):
            continue
        noted = (
            OffsetCheckpoint(filesystem, f"{path}/{RECOVERY_POINT_FILE}").read(),
            StartCheckpoint(filesystem, path).read(),
        )
        if all(
            entry is None or entry == offsets.get(partition, 0)
            for entry, offsets in zip(entries, noted, strict=True)
        ):
            return True
    return False


def remove_stray_offsets(filesystem: FileSystem, path: str) -> None:
    """The partition is there again, and its log directory knows of it: the note means nothing any more."""
    for name in _FILES:
        with suppress(OSError):
            filesystem.unlink(f"{path}/{name}")


def has_stray_offsets(filesystem: FileSystem, paths: Iterable[str]) -> bool:
    """All that were set aside there have a note. Raises OSError."""
    return all(any(filesystem.exists(f"{path}/{name}") for name in _FILES) for path in paths)
