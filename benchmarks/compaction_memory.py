"""Resident memory of a compaction: a process of its own compacts inputs of 8 GiB that another one wrote.

The promise is a bound that holds whatever the inputs are, with the default settings: many partitions or one,
many keys or few. One case has a partition whose full slices are more than the inputs of a job, so that its
jobs are longer: its objects have as many bytes as a job may write into one. Values are zeros, so that the
files, which are packed, take little of the disk. The process that compacts has one view of the metadata as a
server has, and allocator and threads as its process of jobs.

A quick run takes a sixty-fourth of the bytes and the keys.
"""

from __future__ import annotations

import dataclasses
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from report import Row, promised_cost, run
from stratalog.base.clock import SystemClock
from stratalog.base.process_tuning import keep_freed_memory, share_one_heap
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.job_execution import REQUESTS_BESIDE
from stratalog.objectstore.local import LocalObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.beside_threads import running_beside
from tests.support.packed_files import PackedFileSystem
from tests.support.tiered.tiered_store import TieredStore

MIB = 1 << 20
GIB = 1 << 30
PROMISED_MIB = 256
OBJECTS = 64
QUICK_PART = 64
BATCH_RECORDS = 2000
RECORD_BYTES = 30
"""The bytes of a record beside its value, about."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of a compaction. Immutable."""

    partition_count: int
    key_count: int
    total_bytes: int = 8 * GIB
    object_count: int = OBJECTS

    @property
    def name(self) -> str:
        name = f"{self.partition_count:,} partitions, {self.key_count:,} keys"
        return f"{name}, {self.object_count} full objects" if self.is_long else name

    @property
    def is_long(self) -> bool:
        """Whether the objects are full, and more than a job usually reads."""
        return self.object_count > OBJECTS

    @property
    def max_job_bytes(self) -> int:
        return self.total_bytes // self.object_count if self.is_long else 2 * self.total_bytes

    @property
    def value_bytes(self) -> int:
        """At least 1 KiB; less if there would be fewer records than keys."""
        return max(0, min(1024, self.total_bytes // self.key_count) - RECORD_BYTES)

    def part(self, denominator: int) -> Inputs:
        """The same with fewer bytes and keys, and as many partitions."""
        return Inputs(
            partition_count=self.partition_count,
            key_count=self.key_count // denominator,
            total_bytes=self.total_bytes // denominator,
            object_count=self.object_count,
        )


CASES = (
    Inputs(partition_count=2000, key_count=1_000_000),
    Inputs(partition_count=2000, key_count=50_000_000),
    Inputs(partition_count=1, key_count=50_000_000),
    Inputs(partition_count=1, key_count=12_500_000, total_bytes=2 * GIB, object_count=200),
)


def open_store(root: str) -> TieredStore:
    filesystem, clock, ids = PackedFileSystem(), SystemClock(), SystemIdGenerator()
    store = LocalObjectStore(filesystem, clock, ids, f"{root}/store")
    return TieredStore(filesystem, store, clock, ids, directory=f"{root}/work")


def fill(root: str, inputs: Inputs) -> None:
    """Write the objects. All partitions have the same records."""
    tiered = open_store(root)
    topic = tiered.catalog.create("bench", inputs.partition_count, {"cleanup.policy": "compact"})
    tips = [TopicIdPartition(topic.topic_id, number) for number in range(inputs.partition_count)]
    keys_here = max(1, inputs.key_count // inputs.partition_count)
    record_bytes = RECORD_BYTES + inputs.value_bytes
    slice_records = max(
        1, inputs.total_bytes // inputs.object_count // inputs.partition_count // record_bytes
    )
    value = bytes(inputs.value_bytes)
    for number in range(inputs.object_count):
        first, end = number * slice_records, (number + 1) * slice_records
        batches: list[bytes] = []
        for base_offset in range(first, end, BATCH_RECORDS):
            records = [
                Record(offset, 1000, b"key-%012d" % (offset % keys_here), value)
                for offset in range(base_offset, min(end, base_offset + BATCH_RECORDS))
            ]
            batches.append(encode_batch(records, base_offset=base_offset, leader_epoch=1))
        tiered.upload(dict.fromkeys(tips, batches))
        # As the upkeep of a server does.
        tiered.metadata.fold_if_needed()


def compact(root: str, inputs: Inputs) -> None:
    """Compact all partitions with one job, or with as many as it takes where they are long, and print the
    largest resident memory in MiB."""

    def change(settings: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(settings, max_job_bytes=inputs.max_job_bytes)

    keep_freed_memory()
    share_one_heap()
    tiered = open_store(root)
    with running_beside(REQUESTS_BESIDE) as run_beside:
        compactor = tiered.compactor(change=change, run_beside=run_beside)
        del tiered
        reports = compactor.run()
        while inputs.is_long and (more := compactor.run()):
            reports += more
    assert all(report.refused is None for report in reports), reports
    most = max(report.inputs for report in reports)
    assert most > OBJECTS if inputs.is_long else (len(reports), most) == (1, OBJECTS), reports
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB)


def resident_mib(inputs: Inputs) -> float:
    """The largest resident memory of a process that compacts such inputs."""
    with tempfile.TemporaryDirectory() as root:
        numbers = inputs.partition_count, inputs.key_count, inputs.total_bytes, inputs.object_count
        arguments = [root, *map(str, numbers)]
        subprocess.run([sys.executable, __file__, "fill", *arguments], check=True)
        command = [sys.executable, __file__, "compact", *arguments]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(quick: bool) -> Iterator[Row]:
    """Resident memory of compactions, beside what is promised."""
    for inputs in CASES:
        measured = inputs.part(QUICK_PART) if quick else inputs
        yield promised_cost(f"compact {measured.name}", "MiB", resident_mib(measured), PROMISED_MIB)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fill" | "compact" as step, directory, *numbers]:
            partitions, keys, size, objects = map(int, numbers)
            asked = Inputs(partition_count=partitions, key_count=keys, total_bytes=size, object_count=objects)
            (fill if step == "fill" else compact)(directory, asked)
        case _:
            sys.exit(run(measure))
