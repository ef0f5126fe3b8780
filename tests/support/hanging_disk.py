"""A disk that hangs in some directories, and a server with partitions there and elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

import pytest

from stratalog.base.types import Durability
from stratalog.record.record import Record
from stratalog.server.background import pass_rounds
from stratalog.server.partitions import patient_disk_calls
from stratalog.server.partitions.hosted_partition import HostedPartition
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, until
from tests.support.wait_in_turns import wait_in_turns

RECORD = Record(0, 0, b"k", b"x")


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers give a disk up soon."""
    monkeypatch.setattr(pass_rounds, "PATIENCE_S", 0.2)
    monkeypatch.setattr(patient_disk_calls, "PATIENCE_S", 0.2)
    monkeypatch.setattr(patient_disk_calls, "wait", wait_in_turns)


def hanging_disk(gate: Gate, hanging: Collection[str], *operations: str) -> HookedDisk:
    """A disk on which these operations, or all, wait at the gate below the paths in `hanging`."""

    def before(name: str, path: str) -> None:
        # A file closes without a wait.
        may_hang = name in operations if operations else name != "close"
        if may_hang and f"{path}/".startswith(tuple(hanging)):
            gate.pass_through()

    return HookedDisk(before)


def opens_log(name: str, path: str) -> bool:
    return name == "list_directory" and path[-1].isdigit()


class HangingAtOpening:
    """A disk that answers the first looks of a start, and hangs in log directories once a log opens there, or
    from another operation on. A test arms it; threads come to it."""

    def __init__(self, *log_dirs: str, begins: Callable[[str, str], bool] = opens_log) -> None:
        """`begins` gets the name and the path of each operation there; it hangs from the first on for which
        that returns True."""
        self.gate = Gate()
        self._begins = begins
        self.disk = HookedDisk(self._before)
        self._log_dirs = tuple(f"{path}/" for path in log_dirs)
        self._hanging: set[str] = set()
        self._is_armed = False

    def arm(self) -> None:
        self.gate.close()
        self._is_armed = True

    def mend(self) -> None:
        self._is_armed = False
        self._hanging.clear()
        self.gate.open()

    def _before(self, name: str, path: str) -> None:
        found = [one for one in self._log_dirs if f"{path}/".startswith(one)]
        if self._is_armed and self._begins(name, path):
            self._hanging.update(found)
        if name != "close" and self._hanging.intersection(found):
            self.gate.pass_through()


async def until_answering(bench: ServiceBench) -> None:
    """Wait until the work that was given up has ended."""
    disk_calls, log_dirs = bench.server.engine.local.disk_calls, bench.server.settings.all_log_dirs
    await until(lambda: not any(map(disk_calls.is_silent, log_dirs)))


async def append(bench: ServiceBench, topic: str, durability: Durability) -> int:
    appended = bench.client.append(topic, 0, [RECORD], durability=durability)
    return (await asyncio.wait_for(appended, PATIENCE_S)).base_offset


async def rolled_partitions(
    bench: ServiceBench, config: Mapping[str, str] | None = None
) -> list[HostedPartition]:
    """A partition with a rolled segment in each of two log directories, in the order of these."""
    for topic in ("a", "b"):
        await bench.client.admin.create_topic(topic, config=config)
        await append(bench, topic, Durability.OS)
        await bench.client.admin.roll(topic)
    log_dirs = bench.server.settings.all_log_dirs
    partitions = sorted(map(bench.partition, ("a", "b")), key=lambda one: log_dirs.index(one.log_dir))
    for partition in partitions:
        partition.log.flusher.flush_rolled()
    return partitions
