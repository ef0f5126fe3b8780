"""A server in a process of its own, and what the process has cost so far.

Processor time and memory are read from `/proc`: the benchmarks that show them run on Linux.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import report

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USER_TICKS_PLACE, _SYSTEM_TICKS_PLACE = 11, 12
"""The places of both behind the name of the program in `/proc/PID/stat`."""


class ServerProcess(NamedTuple):
    """A server that runs."""

    address: str
    pid: int
    further: tuple[str, ...] = ()
    """The words behind the address in its first line."""

    def processor_s(self) -> float:
        """The time that its threads have spent on processors, in the kernel too."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[_USER_TICKS_PLACE]) + int(fields[_SYSTEM_TICKS_PLACE])) / _TICKS_PER_S

    def resident_bytes(self) -> int:
        """The memory that it holds now."""
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


@contextlib.contextmanager
def running(*command: str) -> Generator[ServerProcess]:
    """A server process of this Python; its first line has its address in third place."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        words = process.stdout.readline().split()
        yield ServerProcess(words[2], process.pid, tuple(words[3:]))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def stratalog_command(data_dir: str, *options: str) -> tuple[str, ...]:
    """The arguments of Python that start our server, with further options of its command."""
    arguments = ["server", "start", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--log-level", "error"]
    arguments += options
    program = f"import sys; from stratalog.cli.main import main; sys.argv[1:] = {arguments!r}; main()"
    return ("-c", program)


def processor_row(work: str, size_bytes: int, ours_s: float, reference_s: float, target: float) -> report.Row:
    """The processor time of two servers for the same work on `size_bytes`."""
    gigabytes = size_bytes / 1e9
    return report.Row(
        work=f"{work}: processor time of the server",
        unit="s/GB",
        ours=ours_s / gigabytes,
        reference=reference_s / gigabytes,
        target=target,
        is_cost=True,
    )


def memory_row(work: str, ours: ServerProcess, reference: ServerProcess, target: float) -> report.Row:
    """The memory that two servers hold now."""
    return report.Row(
        work=f"{work}: memory of the server",
        unit="MB",
        ours=ours.resident_bytes() / 1e6,
        reference=reference.resident_bytes() / 1e6,
        target=target,
        is_cost=True,
    )
