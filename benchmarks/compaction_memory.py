"""Resident memory of a compaction of one partition with many keys, beside a tenth of the keys.

Each compaction has a process of its own, and the files were written by another one. `job_memory_bytes` is
small, so that the row shows what grows with keys: one bit a record. The reference is the same compaction with
a tenth of the keys; a second row compares with the 256 MiB that are promised.
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
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.objectstore.local import LocalObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from tests.support.tiered.tiered_store import TieredStore

OBJECTS = 4
BATCH_RECORDS = 2000
MIB = 1 << 20


def open_store(root: str) -> TieredStore:
    filesystem, clock, ids = PosixFileSystem(), SystemClock(), SystemIdGenerator()
    store = LocalObjectStore(filesystem, clock, ids, f"{root}/store")
    return TieredStore(filesystem, store, clock, ids, directory=f"{root}/work")


def fill(root: str, key_count: int) -> None:
    """Write a partition with so many different keys."""
    tiered = open_store(root)
    topic = tiered.catalog.create("bench", 1, {"cleanup.policy": "compact"})
    tip = TopicIdPartition(topic.topic_id, 0)
    offset = 0
    for _ in range(OBJECTS):
        batches: list[bytes] = []
        for _ in range(key_count // OBJECTS // BATCH_RECORDS):
            offsets = range(offset, offset + BATCH_RECORDS)
            records = [Record(number, 1000, b"key-%012d" % number, b"value") for number in offsets]
            batches.append(encode_batch(records, base_offset=offset, leader_epoch=1))
            offset += BATCH_RECORDS
        tiered.upload({tip: batches})


def compact(root: str) -> None:
    """Compact the partition, and print the largest resident memory in MiB."""

    def change(settings: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(settings, job_memory_bytes=16 * MIB)

    (report,) = open_store(root).compactor(change=change).run_once()
    assert report.refused is None, report
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB)


def resident_mib(key_count: int) -> float:
    """The largest resident memory of a process that compacts so many keys."""
    with tempfile.TemporaryDirectory() as root:
        subprocess.run([sys.executable, __file__, "fill", root, str(key_count)], check=True)
        command = [sys.executable, __file__, "compact", root]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(quick: bool) -> Iterator[Row]:
    """Resident memory of compaction, beside that with a tenth of the keys."""
    key_count = 2_000_000 if quick else 10_000_000
    few, many = resident_mib(key_count // 10), resident_mib(key_count)
    work = f"compact {key_count:,} keys of one partition"
    yield Row(work=work, unit="MiB", ours=many, reference=few, target=0.8, is_cost=True)
    yield promised_cost(work, "MiB", many, 256)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fill", directory, count]:
            fill(directory, int(count))
        case ["compact", directory]:
            compact(directory)
        case _:
            sys.exit(run(measure))
