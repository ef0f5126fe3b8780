"""Checks of the log directories of a start. They make no file, and lock only what is there, shared, for a
moment."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.manager.directories.locked_directory import LOCK_FILE, read_properties
from stratalog.objectstore.open_store import store_directory
from stratalog.server.checks.machine import device_of, may_write
from stratalog.server.checks.start_check import CheckedStart, Finding, Verdict

GOOD_FILE_SYSTEMS = ("ext4", "xfs")
_REASONS: Mapping[str, str] = {
    "btrfs": "may keep a later name without an earlier one after a power loss",
    "exfat": "has no journal of names",
    "ext2": "has no journal of names",
    "overlay": "goes with its container: give it a volume",
    "tmpfs": "is memory: a restart of the machine loses all records",
    "vfat": "has no journal of names",
}
"""Why `disk` is not kept there. Distant file systems are known by the beginnings of their names."""
_DISTANT = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "glusterfs")


def directories(start: CheckedStart) -> Iterator[Finding]:
    """Each log directory, or the place where it will be made: a directory that this process may write."""
    for path in start.settings.all_log_dirs:
        place = existing_place(start.seams.filesystem, path)
        if not start.seams.filesystem.is_directory(place):
            text = f"{place} is not a directory; give another path"
            yield Finding("directory", Verdict.ERROR, text)
        elif not may_write(place):
            text = f"{place} may not be written by this user; change its owner, or give another path"
            yield Finding("directory", Verdict.ERROR, text)
        else:
            yield Finding(
                "directory", Verdict.OK, f"{path} {'is there' if place == path else 'will be made'}"
            )


def locks(start: CheckedStart) -> Iterator[Finding]:
    """Each log directory: no process has it open. A read-only server keeps a directory of its own."""
    for path in () if start.settings.read_only else start.settings.all_log_dirs:
        try:
            lock = start.seams.filesystem.try_lock_shared(f"{path}/{LOCK_FILE}")
        except FileNotFoundError:
            continue
        except OSError as failure:
            yield Finding("lock", Verdict.ERROR, f"{path} cannot be locked: {failure.strerror}")
            continue
        if lock is None:
            text = f"another process has {path} open; stop it, or use another directory"
            yield Finding("lock", Verdict.ERROR, text)
        else:
            lock.release()
            yield Finding("lock", Verdict.OK, f"no process has {path} open")


def identities(start: CheckedStart) -> Iterator[Finding]:
    """The file of each log directory that ties it to a store."""
    for path in start.settings.all_log_dirs:
        try:
            read_properties(start.seams.filesystem, path)
        except (DataDirectoryError, OSError) as failure:
            yield Finding("directory", Verdict.ERROR, str(failure))


def separate_disks(start: CheckedStart) -> Iterator[Finding]:
    """The log directories, and a store in a directory, are on disks of their own."""
    path_of_device: dict[str, str] = {}
    seen: set[str] = set()
    for path in start.settings.all_log_dirs:
        real = start.seams.filesystem.real_path(path)
        device = device_of(existing_place(start.seams.filesystem, path))
        if real in seen:
            yield Finding("disks", Verdict.ERROR, f"{path} is given twice; leave one out")
        elif device in path_of_device:
            text = f"{path} is on the disk of {path_of_device[device]}; one disk needs one log directory"
            yield Finding("disks", Verdict.WARNING, text)
        seen.add(real)
        path_of_device.setdefault(device, path)
    store = store_directory(start.settings.effective_store_url)
    if store is not None and not start.settings.read_only:
        beside = path_of_device.get(device_of(existing_place(start.seams.filesystem, store)))
        if beside is not None:
            text = (
                f"the store {store} is on the disk of {beside}, and is lost with it; use another disk, or S3"
            )
            yield Finding("disks", Verdict.WARNING, text)


def file_systems(start: CheckedStart) -> Iterator[Finding]:
    """The kind of file system of each log directory, as far as the system tells."""
    for path in start.settings.all_log_dirs:
        kind = start.machine.file_system_by_device.get(
            device_of(existing_place(start.seams.filesystem, path))
        )
        if kind is None:
            continue
        reason = _REASONS.get(kind)
        if kind.startswith(_DISTANT):
            reason = "is not on a disk of this machine"
        if reason:
            text = (
                f"{path} is on {kind}, which {reason}; appends at disk need {' or '.join(GOOD_FILE_SYSTEMS)}"
            )
            yield Finding("file-system", Verdict.WARNING, text)
        else:
            yield Finding("file-system", Verdict.OK, f"{path} is on {kind}")


def free_space(start: CheckedStart) -> Iterator[Finding]:
    """The free space of each log directory is above the floor below which appends are refused."""
    floor = start.config.min_free_bytes
    for path in () if start.settings.read_only else start.settings.all_log_dirs:
        free = start.seams.filesystem.free_bytes(existing_place(start.seams.filesystem, path))
        if free < floor:
            text = (
                f"{path} has {free:,} bytes free, less than log.dir.min.free.bytes ({floor:,}): appends are"
                " refused; free space, or lower the key"
            )
            yield Finding("space", Verdict.WARNING, text)
        else:
            yield Finding("space", Verdict.OK, f"{path} has {free:,} bytes free, and needs {floor:,}")


def existing_place(filesystem: FileSystem, path: str) -> str:
    """The path, or its nearest parent that is there."""
    while not filesystem.exists(path):
        path = posixpath.dirname(path)
    return path
