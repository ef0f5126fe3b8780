"""The descriptors, threads and memory of a process on Linux."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

IS_SHOWN = Path("/proc/self/status").exists()
"""Whether this machine shows the use of processes."""


class ProcessUse(NamedTuple):
    """The use of a process at one moment."""

    descriptor_count: int
    thread_count: int
    resident_bytes: int

    @classmethod
    def of(cls, pid: int) -> ProcessUse:
        """Read `/proc`."""
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        values = {
            line.split(":")[0]: line.split()[1] for line in status if line.startswith(("VmRSS", "Threads"))
        }
        count = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(count, int(values["Threads"]), int(values["VmRSS"]) << 10)

    def __str__(self) -> str:
        resident_mib = self.resident_bytes / (1 << 20)
        return f"{self.descriptor_count} descriptors, {self.thread_count} threads, {resident_mib:.0f} MiB"
