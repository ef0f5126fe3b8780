"""`stratalog spark compact` beside Spark's own `groupBy`, and over more keys than memory holds (`local[2]`).

Both topics have one partition, of records of about 45 bytes, in slices of which many tasks make one job.
Spark has 1 GiB, and the store is a directory, so that no network counts.

**Time.** 20 million records of a million keys, each key once in each of 20 rounds. The row is seconds of
processor time, of the JVM, its Python workers and this process together, because other work on the machine
makes wall times useless. Beside it stands the least that a program on Spark does to find the last record of
each key, `groupBy(key).agg(max(offset))` through the source, and one read and one write of all bytes.

**Memory.** 60 million records in 48 slices: each of 50 million keys once, and each fifth of them again later.
The keys are merged by ranges of the hash, from shuffle files on disk. The row is the most memory that the JVM
and its Python workers have had at once, without what they share, beside 2 GiB: the heap, and as much for the
workers. It needs 8 GB of disk, and about ten minutes of a quiet machine.

Both results must be right: as many records as there are keys, and the sum of their offsets is that of the
last ones, by a scan of the compacted topic. A quick run has a twentieth and a hundredth of the keys.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from click.testing import CliRunner

from report import Row, promised_cost, run, seconds
from spark.spark_source import drain, session, tree_seconds
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY_COUNT = 50_000_000
QUICK_KEY_COUNT = 500_000
SLICE_COUNT = 48
BATCH_COUNT = 1_000
MAX_MIB = 2_048
TIMED_KEY_COUNT = 1_000_000
QUICK_TIMED_KEY_COUNT = 50_000
ROUND_COUNT = 20
MAX_TIMES = 1.5
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


def fill(root: Path, firsts: Sequence[int]) -> str:
    """A topic with a batch of consecutive keys from each of these on; the store's URL."""
    clock, ids, filesystem = SystemClock(), SystemIdGenerator(), PosixFileSystem()
    store = LocalObjectStore(filesystem, clock, ids, str(root / "store"))
    tiered = TieredStore(filesystem, store, clock, ids, directory=str(root / "tiered"))
    entry = tiered.catalog.create("state", 1, {"cleanup.policy": "compact"})
    template = BatchTemplate(clock.now_ms() - 1)
    in_slice = -(-len(firsts) // SLICE_COUNT)
    for begin in range(0, len(firsts), in_slice):
        numbers = range(begin, min(begin + in_slice, len(firsts)))
        batches = [template.batch(number * BATCH_COUNT, firsts[number]) for number in numbers]
        tiered.upload({TopicIdPartition(entry.topic_id, 0): batches})
    return store.url


def each_key_and_a_fifth(key_count: int) -> list[int]:
    """Each key once, then each fifth of the batches again."""
    return [*range(0, key_count, BATCH_COUNT), *range(0, key_count, 5 * BATCH_COUNT)]


def rounds(key_count: int) -> list[int]:
    """Each key once in each round."""
    chance = Random(3)
    order = list(range(0, key_count, BATCH_COUNT))
    firsts: list[int] = []
    for _ in range(ROUND_COUNT):
        chance.shuffle(order)
        firsts += order
    return firsts


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
    """All rows; none where Spark cannot run."""
    missing = why_spark_cannot_run()
    if missing is not None:
        sys.stderr.write(f"left out: {missing}\n")
        return
    with tempfile.TemporaryDirectory() as directory:
        # A JVM of its own, which is configured in another way.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
            key_count = QUICK_TIMED_KEY_COUNT if quick else TIMED_KEY_COUNT
            yield other.submit(time_row, Path(directory), key_count).result()
        yield memory_row(Path(directory), QUICK_KEY_COUNT if quick else KEY_COUNT)


def time_row(root: Path, key_count: int) -> Row:
    """The processor time of a compaction beside the reference, with all compilers of the JVM."""
    spark = session(str(root / "spark"), memory="1g")
    try:
        return timed(spark, root, key_count)
    finally:
        spark.stop()


def timed(spark: SparkSession, root: Path, key_count: int) -> Row:
    """The row of `time_row`."""
    warm = fill(root / "warm", rounds(BATCH_COUNT))
    group(spark, warm)
    compact(warm)
    url = fill(root / "time", rounds(key_count))
    record_count = ROUND_COUNT * key_count
    begin_s = tree_seconds()
    group(spark, url)
    grouped_s = tree_seconds()
    copy_bytes(root / "time" / "store", root / "copy")
    copied_s = tree_seconds()
    took_s = seconds(lambda: compact(url))
    ended_s = tree_seconds()
    last_round = range(record_count - key_count, record_count)
    assert found_offsets(spark, url) == (key_count, sum(last_round)), "the last record of each key"
    sys.stderr.write(
        f"{record_count} records took {took_s:.0f} s; groupBy {grouped_s - begin_s:.1f} s of processor time,"
        f" the copy {copied_s - grouped_s:.1f} s\n"
    )
    return Row(
        work=f"compact {record_count:,} records / groupBy and copy",
        unit="cpu-s",
        ours=ended_s - copied_s,
        reference=copied_s - begin_s,
        target=1 / MAX_TIMES,
        is_cost=True,
    )


def memory_row(root: Path, key_count: int) -> Row:
    """The most memory of a compaction."""
    url = fill(root / "memory", each_key_and_a_fifth(key_count))
    # The memory of the driver, which is the executor here, is 1 GiB.
    spark = start_local_session("benchmark", str(root / "spark"))
    peak_mib: list[float] = []
    try:
        with measured_memory(peak_mib):
            took_s = seconds(lambda: compact(url))
        assert found_offsets(spark, url) == expected_offsets(key_count), "the last record of each key"
    finally:
        spark.stop()
    sys.stderr.write(f"{key_count} keys took {took_s:.0f} s\n")
    return promised_cost(f"compact {key_count} keys in 1 GiB", "MiB", max(peak_mib), MAX_MIB)


def group(spark: SparkSession, url: str) -> None:
    """Find the last offset of each key, as Spark does."""
    options = {"store": url, "topic": "state", "columns": "key,offset"}
    rows = spark.read.format("stratalog").options(**options).load()
    drain(rows.groupBy("key").agg({"offset": "max"}))


def found_offsets(spark: SparkSession, url: str) -> tuple[int, int]:
    """The number of the records of the topic, and the sum of their offsets."""
    options = {"store": url, "topic": "state", "columns": "offset"}
    rows = spark.read.format("stratalog").options(**options).load()
    [found] = rows.selectExpr("count(*) as count", "sum(offset) as total").collect()
    return found["count"], found["total"]


def copy_bytes(source: Path, target: Path) -> None:
    """Read and write all bytes of a directory."""
    with open(target, "wb") as copy:
        for path in sorted(source.rglob("*")):
            if path.is_file():
                copy.write(path.read_bytes())


def compact(url: str) -> None:
    size = "67108864"
    limits = ("--config", f"remote.compaction.job.max.bytes={size}")
    done = CliRunner().invoke(stratalog, ["spark", "compact", "state", "--store", url, *limits])
    assert done.exit_code == 0, done.output


if __name__ == "__main__":
    sys.exit(run(measure))
