"""The cleaner of local logs: its kernels in memory, a clean of a whole log, and what else it costs.

* Both passes over windows of 1 MiB in memory, by the kernels alone, in the time of one core.
* A clean of a log on disk, beside Kafka's own cleaner over a copy of the same directory, one after the other
  in this run: records of the log by the time that both passes take. Kafka comes from its jars, by Maven;
  where there is no Java, no Maven or nothing that Maven reaches, that is said, and ours stand alone.
* Memory: how far the process's own pages (RssAnon) grow while a log is cleaned.
* The engine beside a clean in another thread: the 99th percentile of appends with it and without.

What a clean keeps from other threads is in `cleaner_lock.py`.

Kafka's cleaner runs in one thread, with Java's defaults but for 1 GiB of heap, after no warm-up. What a clean
costs besides the passes, to open the map and to sync and exchange segments, is in both figures. What either
of them finds has been synced before, as sealed segments are on a server that has time.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from kafka_peers import kafka_or_none
from log_engine import LEADER_EPOCH, MIB, open_log, opened
from report import Row, promised, run
from stratalog.base.clock import SystemClock
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.native.cleaned_batches import CleanRule
from stratalog.record.native.offset_map import OffsetMap, OpenTransactions, clean_batches
from stratalog.record.record import Record
from stratalog.testing.manual_clock import DEFAULT_NOW_MS
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.kafka.kafka_distribution import KAFKA_VERSION, KafkaDistribution

KAFKA_PROGRAM = Path(__file__).with_name("KafkaLogCleaner.java")
MAP_BYTES = 128 * MIB
LOAD_FACTOR = 0.9
IO_BUFFER_BYTES = CleanerSettings().io_buffer_bytes
BATCH_BYTES = 16 << 10
END_OFFSET = 2**62
APPENDS = 2000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Records with 16-byte keys, which are drawn from so many."""

    name: str
    value_bytes: int
    key_count: int
    least_per_s: float
    """Records over both passes that the project promises, of a clean."""
    least_in_memory: float
    """The same of the kernels alone."""
    kafka_ratio: float


LOADS = (
    Load(
        name="100 B",
        value_bytes=100,
        key_count=1_000_000,
        least_per_s=5e6,
        least_in_memory=8e6,
        kafka_ratio=3.0,
    ),
    Load(
        name="1 KiB",
        value_bytes=1024,
        key_count=200_000,
        least_per_s=0.0,
        least_in_memory=5e9 / 1080,
        kafka_ratio=2.0,
    ),
)


def windows(load: Load, total_bytes: int, batch_bytes: int = BATCH_BYTES) -> Iterator[bytes]:
    """Batches of about that size, or of one record, about 1 MiB at a time."""
    random = Random(1)
    value = random.randbytes(load.value_bytes)
    batch_count, offset = max(1, batch_bytes // (load.value_bytes + 28)), 0
    for _ in range(0, total_bytes, MIB):
        parts: list[bytes] = []
        for _ in range(MIB // batch_bytes):
            records = [
                Record(
                    offset + index,
                    DEFAULT_NOW_MS + index,
                    b"%016d" % random.randrange(load.key_count),
                    value,
                )
                for index in range(batch_count)
            ]
            parts.append(encode_batch(records, base_offset=offset))
            offset += batch_count
        yield b"".join(parts)


def fill(log: UnifiedLog, load: Load, total_bytes: int, batch_bytes: int = BATCH_BYTES) -> None:
    """Everything that is appended lies below the active segment then, and is on the disk."""
    for window in windows(load, total_bytes, batch_bytes):
        log.appender.append_as_leader(window, LEADER_EPOCH)
    log.roll()
    log.flusher.flush()


def in_memory(load: Load, total_bytes: int) -> Row:
    """Both passes by the kernels, as they are where nothing is read or written."""
    data = list(windows(load, total_bytes))
    best_s, records_count = float("inf"), 0
    for _ in range(3):
        offset_map = OffsetMap(bytes(16), OffsetMap.slots_for(MAP_BYTES), LOAD_FACTOR)
        records_count = 0
        rule, transactions = CleanRule(0, 0), OpenTransactions()
        begin = time.thread_time()
        for window in data:
            offset_map.put_batches(window, 0, 0, END_OFFSET)
        for window in data:
            cleaned = clean_batches(window, 0, offset_map, rule, transactions)
            records_count += cleaned.records_in
            assert cleaned.end_position == len(window)
        best_s = min(best_s, time.thread_time() - begin)
    return promised(
        f"both passes in memory, {load.name} values",
        "records/s",
        records_count / best_s,
        load.least_in_memory,
    )


def limits() -> CleanLimits:
    def throttle(size_bytes: int) -> None:
        assert size_bytes > 0

    return CleanLimits(MAP_BYTES, LOAD_FACTOR, IO_BUFFER_BYTES, lambda: None, throttle)


def clean(log: UnifiedLog) -> CleanResult:
    """All that can be."""
    to_clean = LogToClean(
        log=log,
        first_dirty_offset=0,
        first_uncleanable_offset=log.local_log.segments.active.base_offset,
        clean_bytes=0,
        cleanable_bytes=0,
        compaction_delay_ms=0,
    )
    result = LogClean(SystemClock(), SequentialIds()).run(to_clean, limits())
    assert result.end_offset == to_clean.first_uncleanable_offset
    return result


def cleaned_s(log: UnifiedLog) -> tuple[float, int]:
    """A clean of all that can be: how long it took, and how many records it found."""
    begin = time.perf_counter()
    result = clean(log)
    elapsed_s = time.perf_counter() - begin
    assert result.end_offset == result.stats.cleaned_record_count, "each offset has a record"
    return elapsed_s, result.stats.cleaned_record_count


def kafka_per_s(directory: Path, end_offset: int, kafka: KafkaDistribution) -> float:
    """Records that Kafka's cleaner does in a second, over both passes."""
    ended = subprocess.run(
        ["java", "-Xmx1g", "-cp", kafka.class_path, str(KAFKA_PROGRAM), str(directory), str(end_offset)],
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    lines = [line.split() for line in ended.stdout.splitlines() if line.startswith("cleaned ")]
    if ended.returncode != 0 or not lines:
        raise RuntimeError(f"Kafka's cleaner failed: {ended.stderr[-1000:]}")
    return end_offset / float(lines[0][1])


def give_memory_back() -> None:
    """Give freed memory back, so that a clean cannot grow into it unseen."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def anonymous_bytes() -> int:
    """Memory of this process that no file stands behind."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:"))


class Watcher:
    """Calls something in a thread until it is stopped. Not thread-safe: guarded by its user."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._look()


def whole_clean(load: Load, total_bytes: int, kafka: KafkaDistribution | None) -> Iterator[Row]:
    """A clean of a log on disk, beside Kafka's, and the memory that ours took."""
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        opened(Path(folder, "data")) as manager,
    ):
        log = open_log(manager)
        fill(log, load, total_bytes)
        end_offset = log.local_log.segments.active.base_offset
        theirs = None
        if kafka is not None:
            copy = Path(folder, "kafka", "bench-0")
            copy.mkdir(parents=True)
            for suffix in ("log", "index", "timeindex"):
                for path in Path(log.local_log.directory).glob(f"*.{suffix}"):
                    shutil.copy(path, copy)
            os.sync()
            theirs = kafka_per_s(copy, end_offset, kafka)
            shutil.rmtree(copy)
        give_memory_back()
        idle_bytes = peak_bytes = anonymous_bytes()

        def look() -> None:
            nonlocal peak_bytes
            peak_bytes = max(peak_bytes, anonymous_bytes())
            time.sleep(0.005)

        with Watcher(look):
            elapsed_s, records_count = cleaned_s(log)
        ours = records_count / elapsed_s
    if load.least_per_s > 0:
        yield promised(f"clean, {load.name} values", "records/s", ours, load.least_per_s)
    if theirs is not None:
        yield Row(
            work=f"clean, {load.name} values, beside Kafka {KAFKA_VERSION}",
            unit="records/s",
            ours=ours,
            reference=theirs,
            target=load.kafka_ratio,
        )
    elif load.least_per_s == 0:
        # Beside Kafka it is all that is promised.
        yield promised(f"clean, {load.name} values (no Kafka here)", "records/s", ours, 1.0)
    map_bytes = min(MAP_BYTES, 24 * (int(end_offset / LOAD_FACTOR) + 2))
    grown_bytes = max(1, peak_bytes - idle_bytes)
    yield promised(
        f"clean, {load.name} values: memory over the map",
        "64MiB/grown",
        64 * MIB / max(1, grown_bytes - map_bytes),
        1.0,
    )


def percentile_s(values: list[float], part: float) -> float:
    return sorted(values)[int(part * (len(values) - 1))]


def beside_a_clean(load: Load, total_bytes: int) -> Iterator[Row]:
    """Appends to one log while another is cleaned in a thread."""
    batch = encode_batch([Record(0, DEFAULT_NOW_MS, b"%016d" % index, bytes(1000)) for index in range(15)])
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder, opened(Path(folder)) as manager:
        dirty, busy = open_log(manager, 0), open_log(manager, 1)
        fill(dirty, load, total_bytes)

        def append_until(is_done: Callable[[int], bool]) -> list[float]:
            took: list[float] = []
            while not is_done(len(took)):
                begin = time.perf_counter()
                busy.appender.append_as_leader(batch, LEADER_EPOCH)
                took.append(time.perf_counter() - begin)
                time.sleep(0.0005)
            return took

        alone = append_until(lambda count: count == APPENDS)
        thread = threading.Thread(target=cleaned_s, args=(dirty,))
        thread.start()
        # Those that come after the clean are like those before it.
        beside = append_until(lambda count: count > 0 and not thread.is_alive())
        thread.join()
    yield Row(
        work="append p99 beside a clean (1/s)",
        unit="1/s",
        ours=1 / percentile_s(beside, 0.99),
        reference=1 / percentile_s(alone, 0.99),
        target=0.5,
    )


def measure(quick: bool) -> Iterator[Row]:
    """Measure the cleaner of local logs: in memory, whole, beside Kafka's, and what it costs the rest."""
    memory_bytes, log_bytes = (64 * MIB, 96 * MIB) if quick else (1 << 30, 2 << 30)
    for load in LOADS:
        yield in_memory(load, memory_bytes)
    kafka = kafka_or_none()
    for load in LOADS:
        yield from whole_clean(load, log_bytes, kafka)
    yield from beside_a_clean(LOADS[0], log_bytes // 2)


if __name__ == "__main__":
    sys.exit(run(measure))
