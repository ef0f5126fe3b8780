"""`stratalog spark compact` over more keys than memory holds: 50 million, with 1 GiB for Spark (`local[2]`).

A topic of one partition has 60 million records in 48 slices, of about 45 bytes each: every key once, and each
fifth of them again later. Its keys are merged by ranges of the hash, from shuffle files on disk. The result
must be right: as many records as there are keys, and the sum of their offsets is that of the last ones, by a
scan of the compacted topic.

The row is the most memory that the JVM and its Python workers have had at once, without what they share,
beside 2 GiB: the heap, and as much for the workers. It needs 8 GB of disk, and about ten minutes of a quiet
machine; a quick run has 500,000 keys.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from report import Row, promised_cost, run, seconds
from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.cli.main import stratalog
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.local_session import start_local_session, why_spark_cannot_run
from stratalog.record.builder import encode_batch
from stratalog.record.header import ATTRIBUTES_POSITION, BASE_OFFSET_POSITION, CRC_POSITION
from stratalog.record.native.kernels import crc32c
from stratalog.record.record import Record
from tests.support.tiered.tiered_store import TieredStore

KEY_COUNT = 50_000_000
QUICK_KEY_COUNT = 500_000
SLICE_COUNT = 48
BATCH_COUNT = 1_000
MAX_MIB = 2_048
_KEY = 8


class BatchTemplate:
    """Batches of `BATCH_COUNT` records that differ in their offsets and keys. Not thread-safe."""

    def __init__(self, now_ms: int) -> None:
        keys = [b"\xff\xfe" + number.to_bytes(4, "big") + b"\xfd\xfc" for number in range(BATCH_COUNT)]
        batch = encode_batch([Record(0, now_ms, key, b"0123456789") for key in keys], leader_epoch=1)
        self._data = np.frombuffer(bytearray(batch), dtype=np.uint8)
        starts = np.array([batch.index(key) for key in keys])
        self._places = starts[:, None] + np.arange(_KEY)

    def batch(self, base_offset: int, first_key: int) -> bytes:
        """A batch with consecutive keys."""
        data = self._data
        keys = np.arange(first_key, first_key + BATCH_COUNT, dtype=">u8")
        data[self._places] = keys.view(np.uint8).reshape(-1, _KEY)
        data[BASE_OFFSET_POSITION : BASE_OFFSET_POSITION + 8] = list(base_offset.to_bytes(8, "big"))
        crc = crc32c(data[ATTRIBUTES_POSITION:].tobytes())
        data[CRC_POSITION : CRC_POSITION + 4] = list(crc.to_bytes(4, "big"))
        return data.tobytes()


def fill(root: Path, key_count: int) -> str:
    """A topic with each key once, then each fifth of the batches again; the store's URL."""
    clock, ids, filesystem = SystemClock(), SystemIdGenerator(), PosixFileSystem()
    store = LocalObjectStore(filesystem, clock, ids, str(root / "store"))
    tiered = TieredStore(filesystem, store, clock, ids, directory=str(root / "tiered"))
    entry = tiered.catalog.create("state", 1, {"cleanup.policy": "compact"})
    template = BatchTemplate(clock.now_ms() - 1)
    firsts = [*range(0, key_count, BATCH_COUNT), *range(0, key_count, 5 * BATCH_COUNT)]
    in_slice = -(-len(firsts) // SLICE_COUNT)
    for begin in range(0, len(firsts), in_slice):
        numbers = range(begin, min(begin + in_slice, len(firsts)))
        batches = [template.batch(number * BATCH_COUNT, firsts[number]) for number in numbers]
        tiered.upload({TopicIdPartition(entry.topic_id, 0): batches})
    return store.url


def expected_offsets(key_count: int) -> tuple[int, int]:
    """The number of the records that stay, and the sum of their offsets."""
    kept = [number for number in range(0, key_count, BATCH_COUNT) if number % (5 * BATCH_COUNT)]
    kept += range(key_count, key_count + key_count // 5, BATCH_COUNT)
    return len(kept) * BATCH_COUNT, sum(
        first * BATCH_COUNT + BATCH_COUNT * (BATCH_COUNT - 1) // 2 for first in kept
    )


@contextmanager
def measured_memory(peak_mib: list[float]) -> Generator[None]:
    """Note the most memory of the processes that this one has started, every half a second."""
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.5):
            peak_mib.append(children_mib())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def children_mib() -> float:
    """The proportional memory of all descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    tree = {os.getpid()}
    while found := {number for number, parent in parents.items() if parent in tree} - tree:
        tree |= found
    kib = 0
    for number in tree - {os.getpid()}:
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kib += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return kib / 1024


def measure(quick: bool) -> Iterator[Row]:
    """The row; none where Spark cannot run."""
    missing = why_spark_cannot_run()
    if missing is not None:
        sys.stderr.write(f"left out: {missing}\n")
        return
    key_count = QUICK_KEY_COUNT if quick else KEY_COUNT
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        url = fill(root, key_count)
        # The memory of the driver, which is the executor here, is 1 GiB.
        spark = start_local_session("benchmark", str(root / "spark"))
        options = {"store": url, "topic": "state", "columns": "offset"}
        peak_mib: list[float] = []
        try:
            with measured_memory(peak_mib):
                took_s = seconds(lambda: compact(url))
            rows = spark.read.format("stratalog").options(**options).load()
            [found] = rows.selectExpr("count(*) as count", "sum(offset) as total").collect()
        finally:
            spark.stop()
        assert (found["count"], found["total"]) == expected_offsets(key_count), "the last record of each key"
        sys.stderr.write(f"{key_count} keys took {took_s:.0f} s\n")
    yield promised_cost(f"compact {key_count} keys in 1 GiB", "MiB", max(peak_mib), MAX_MIB)


def compact(url: str) -> None:
    size = "67108864"
    limits = ("--config", f"remote.compaction.job.max.bytes={size}")
    done = CliRunner().invoke(stratalog, ["spark", "compact", "state", "--store", url, *limits])
    assert done.exit_code == 0, done.output


if __name__ == "__main__":
    sys.exit(run(measure))
