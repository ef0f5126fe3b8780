"""The facts about a machine and its interpreter that checks of a start judge."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import NamedTuple

from stratalog.record.native.kernels import NATIVE

_CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"
_MOUNTS = "/proc/self/mountinfo"


class Machine(NamedTuple):
    """Facts of one moment. Immutable."""

    memory_bytes: int
    """Memory of the machine, or of the container if that has less; 0: unknown."""
    max_open_file_count: int
    """Files that the process may open, once it has raised its limit."""
    has_assertions: bool
    """Whether Python runs without -O."""
    has_kernels: bool
    """Whether the compiled kernels are there."""
    file_system_by_device: dict[str, str]
    """Kind of the file system (ext4, xfs, nfs4) by device, as MAJOR:MINOR; empty where the system does not
    tell."""


def this_machine() -> Machine:
    """The facts about this process and its machine. Reads files of the system only."""
    return Machine(
        memory_bytes=_memory_bytes(),
        max_open_file_count=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        has_assertions=__debug__,
        has_kernels=NATIVE,
        file_system_by_device=_file_systems(),
    )


def device_of(path: str) -> str:
    """The device of a directory, as MAJOR:MINOR. Raises OSError."""
    device = os.stat(path).st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def may_write(path: str) -> bool:
    """Whether this process may make files in the directory, by its permissions."""
    return os.access(path, os.W_OK | os.X_OK)


def _memory_bytes() -> int:
    sizes: list[int] = []
    with suppress(OSError, ValueError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError), open(_CGROUP_LIMIT, encoding="ascii") as file:
        sizes.append(int(file.read()))
    return min(sizes, default=0)


def _file_systems() -> dict[str, str]:
    """By device. A line is `ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS ... - KIND SOURCE OPTIONS`."""
    found: dict[str, str] = {}
    with suppress(OSError, UnicodeDecodeError), open(_MOUNTS, encoding="utf-8") as file:
        for line in file:
            before, separator, after = line.partition(" - ")
            if separator:
                found[before.split()[2]] = after.split()[0]
    return found
