"""The log engine alone, on the local disk: append, read, recover, look up and open, each beside a bare loop.

The engine is used as the server uses it, through `LogManager`, with what is the default of everything but the
size of segments; the bare loops are `crc32c` with `os.write` or `os.pread` over the same bytes in the same
directory. All of it is in the page cache, nothing waits for the disk: what counts is the work of one core.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from random import Random
from uuid import UUID

from crc32c import crc32c

from report import Row, median_pair, pin_to_one_core, promised, run, seconds
from stratalog.base.posix_filesystem import PosixFileSystem, open_file_limit
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.config_key import LONG_MAX
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.record.builder import encode_batch
from stratalog.record.header import ATTRIBUTES_POSITION, HEADER_SIZE, parse_header
from stratalog.record.record import Record
from stratalog.segment.indexes.index_page_cache import DEFAULT_MAX_BYTES
from stratalog.segment.open_files import max_open_below
from stratalog.testing.manual_clock import DEFAULT_NOW_MS, ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.sequential_ids import SequentialIds

TOPIC_ID = UUID(int=1)
MIB = 1 << 20
GIB = 1 << 30
SMALL_BATCH_BYTES = 16 << 10
LEADER_EPOCH = 1
READ_STRETCH = 8
COMMITTED_STRETCH = 100
OPEN_OPTION = "--open-logs"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    repeats: int
    append_bytes: int
    read_bytes: int
    read_pairs: int
    recovery_bytes: int
    lookup_segment_counts: tuple[int, ...]
    lookup_segment_bytes: int
    lookups: int
    large_index_entries: int
    partitions: int


QUICK = Scale(
    repeats=5,
    append_bytes=48 * MIB,
    read_bytes=64 * MIB,
    read_pairs=101,
    recovery_bytes=128 * MIB,
    lookup_segment_counts=(10, 100, 1000),
    lookup_segment_bytes=128 << 10,
    lookups=2000,
    large_index_entries=64 << 10,
    partitions=200,
)
FULL = Scale(
    repeats=7,
    append_bytes=256 * MIB,
    read_bytes=256 * MIB,
    read_pairs=401,
    recovery_bytes=2 * GIB,
    lookup_segment_counts=(10, 100, 1000),
    lookup_segment_bytes=MIB,
    lookups=20_000,
    large_index_entries=256 << 10,
    partitions=2000,
)


@contextlib.contextmanager
def opened(directory: Path, *, index_cache_bytes: int = DEFAULT_MAX_BYTES) -> Generator[LogManager]:
    """The engine over a data directory. It is closed cleanly afterwards."""
    clock = ManualClock()
    manager = LogManager.open(
        PosixFileSystem(),
        clock,
        ManualScheduler(clock),
        SequentialIds(),
        LogManagerSettings(
            data_dirs=(str(directory),),
            max_open_files=max_open_below(open_file_limit()),
            index_cache_bytes=index_cache_bytes,
        ),
    )
    try:
        yield manager
    finally:
        manager.close()


def open_log(
    manager: LogManager, partition: int = 0, segment_bytes: int = GIB, index_interval_bytes: int = 4096
) -> UnifiedLog:
    config = LogConfig(
        segment_bytes=segment_bytes,
        index_interval_bytes=index_interval_bytes,
        message_timestamp_after_max_ms=LONG_MAX,
    )
    return manager.open_log(TopicPartition("bench", partition), TOPIC_ID, config)


def batch_of(random: Random, size_bytes: int, value_bytes: int = 1024) -> bytes:
    """A batch of records with 16-byte keys that is about, and at most, so large."""
    count = size_bytes // (value_bytes + 30)
    records = [
        Record(0, DEFAULT_NOW_MS + index, b"%016d" % random.randrange(10**9), random.randbytes(value_bytes))
        for index in range(count)
    ]
    return encode_batch(records)


def fill(log: UnifiedLog, batch: bytes, total_bytes: int) -> None:
    """Append the batch again and again, each time a second later, many to a request."""
    batch_count = max(1, min(MIB, log.local_log.config.segment_bytes) // len(batch))
    elapsed_s = 0
    for _ in range(total_bytes // (batch_count * len(batch))):
        request = b"".join(later(batch, 1000 * (elapsed_s + number)) for number in range(batch_count))
        elapsed_s += batch_count
        log.appender.append_as_leader(request, LEADER_EPOCH)


def later(batch: bytes, elapsed_ms: int) -> bytes:
    """The batch as it would have been made after so long."""
    header, records = parse_header(batch), batch[HEADER_SIZE:]
    moved = header._replace(
        base_timestamp=header.base_timestamp + elapsed_ms, max_timestamp=header.max_timestamp + elapsed_ms
    )
    return moved._replace(crc=crc32c(records, crc32c(moved.pack()[ATTRIBUTES_POSITION:]))).pack() + records


def segment_paths(log: UnifiedLog) -> list[Path]:
    return sorted(Path(log.local_log.directory).glob("*.log"))


def measure_append(root: Path, scale: Scale) -> Row:
    random = Random(1)
    requests = [batch_of(random, MIB) for _ in range(8)] * (scale.append_bytes // MIB // 8)
    total_bytes = sum(map(len, requests))
    bare_path = root / "bare"

    def write_bare() -> None:
        descriptor = os.open(bare_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for request in requests:
            crc32c(request)
            os.write(descriptor, request)
        os.close(descriptor)

    ours_s = bare_s = math.inf
    with opened(root / "append") as manager:
        for number in range(scale.repeats):
            bare_s = min(bare_s, seconds(write_bare))
            bare_path.unlink()
            log = open_log(manager, number)

            def append(log: UnifiedLog = log) -> None:
                for request in requests:
                    log.appender.append_as_leader(request, LEADER_EPOCH)

            ours_s = min(ours_s, seconds(append))
            manager.delete_log(log.topic_partition)
            for path in (root / "append").glob("*-delete"):
                shutil.rmtree(path)
    return Row(
        work="append 1 MiB batches / crc32c + write",
        unit="MB/s",
        ours=total_bytes / ours_s / 1e6,
        reference=total_bytes / bare_s / 1e6,
        target=0.6,
    )


def measure_read(root: Path, scale: Scale, batch_bytes: int, name: str) -> Row:
    """The bare loop reads the ranges that the engine's reads returned, and sums each as a whole.

    Both go through the log a stretch at a time, in turns and half a log apart: so neither finds what the
    other has just brought into the processor's cache, and what else the machine does hits both.
    """
    with opened(root / f"read-{batch_bytes}") as manager:
        log = open_log(manager)
        fill(log, batch_of(Random(1), batch_bytes), scale.read_bytes)
        ranges: list[tuple[int, int, int]] = []
        offset = position = 0
        while offset < log.offsets.log_end_offset:
            data = log.reader.read(offset, MIB)
            ranges.append((offset, position, len(data.batches)))
            offset, position = data.next_offset, position + len(data.batches)
        count = len(ranges) // READ_STRETCH
        stretches = [ranges[number * READ_STRETCH :][:READ_STRETCH] for number in range(count)]
        ours, bare = itertools.cycle(stretches), itertools.cycle(stretches)
        for _ in range(count // 2):
            next(bare)
        (path,) = segment_paths(log)
        descriptor = os.open(path, os.O_RDONLY)

        def read() -> None:
            for offset, _, _ in next(ours):
                log.reader.read(offset, MIB)

        def read_bare() -> None:
            for _, position, size in next(bare):
                crc32c(os.pread(descriptor, size, position))

        ours_s, bare_s = median_pair(read, read_bare, scale.read_pairs)
        os.close(descriptor)
        mean_bytes = sum(size for stretch in stretches for _, _, size in stretch) / count
        return Row(
            work=f"read 1 MiB ranges, {name} / pread + crc32c",
            unit="MB/s",
            ours=mean_bytes / ours_s / 1e6,
            reference=mean_bytes / bare_s / 1e6,
            target=0.8,
        )


def measure_recovery(root: Path, scale: Scale) -> Row:
    """The log was closed, but nothing says so: all of it is suspect."""
    directory = root / "recovery"
    with opened(directory) as manager:
        log = open_log(manager)
        fill(log, batch_of(Random(1), SMALL_BATCH_BYTES), scale.recovery_bytes)
        paths = segment_paths(log)
    total_bytes = sum(path.stat().st_size for path in paths)

    def read_bare() -> None:
        for path in paths:
            crc = 0
            with path.open("rb", buffering=0) as file:
                while data := file.read(MIB):
                    crc = crc32c(data, crc)

    ours_s = bare_s = math.inf
    for _ in range(max(2, scale.repeats // 2)):
        (directory / CLEAN_SHUTDOWN_FILE).unlink()
        (directory / RECOVERY_POINT_FILE).unlink()
        bare_s = min(bare_s, seconds(read_bare))
        with opened(directory) as manager:
            begin = time.perf_counter()
            report = open_log(manager).recovery_report
            ours_s = min(ours_s, time.perf_counter() - begin)
            assert report.recovered_bytes == total_bytes, report
    return Row(
        work=f"recover {total_bytes >> 20} MiB of 16 KiB batches / read + crc",
        unit="MB/s",
        ours=total_bytes / ours_s / 1e6,
        reference=total_bytes / bare_s / 1e6,
        target=0.5,
    )


def measure_lookups(root: Path, scale: Scale) -> Iterator[Row]:
    """A read of one byte: the first batch comes whole, whatever its size. Those by time decode one."""
    medians: dict[int, float] = {}
    for count in scale.lookup_segment_counts:
        with opened(root / f"lookup-{count}") as manager:
            log = open_log(manager, segment_bytes=scale.lookup_segment_bytes)
            fill(log, batch_of(Random(1), 4096), count * scale.lookup_segment_bytes)
            medians[count] = median_lookup_s(log, scale.lookups)
            time_s = median_time_lookup_s(log, scale.lookups)
            newest_s = median_s(log.reader.max_timestamp, scale.lookups // 10)
        yield promised(f"look up and read, {count} segments", "reads/s", 1 / medians[count], 1 / 60e-6)
        for work, taken_s, target in (("look up a time", time_s, 0.4), ("find the newest", newest_s, 0.1)):
            yield Row(
                work=f"{work} / read, {count} segments",
                unit="calls/s",
                ours=1 / taken_s,
                reference=1 / medians[count],
                target=target,
            )
    few, many = min(medians), max(medians)
    yield Row(
        work=f"look up in {many} / in {few} segments",
        unit="reads/s",
        ours=1 / medians[many],
        reference=1 / medians[few],
        target=math.log(few) / math.log(many),
    )


def measure_large_indexes(root: Path, scale: Scale) -> Iterator[Row]:
    """Look-ups in indexes as large as those of full segments, over small data: every batch has an entry.

    Cold is a cache of one page, so that each page of the search is read again; the operating system has it.
    """
    directory = root / "large"
    with opened(directory) as manager:
        log = open_log(manager, segment_bytes=GIB, index_interval_bytes=0)
        batch = batch_of(Random(1), 128, value_bytes=32)
        for _ in range(2):
            fill(log, batch, scale.large_index_entries * len(batch))
            log.roll()
    for name, cache_bytes, least in (("warm", 64 * MIB, 1 / 60e-6), ("cold", 1, 1 / 120e-6)):
        with opened(directory, index_cache_bytes=cache_bytes) as manager:
            median_s = median_lookup_s(open_log(manager), scale.lookups)
        yield promised(
            f"look up in {scale.large_index_entries} entries, {name}", "reads/s", 1 / median_s, least
        )


def median_lookup_s(log: UnifiedLog, count: int) -> float:
    random = Random(2)

    def look_up() -> None:
        offset = random.randrange(log.offsets.log_end_offset)
        assert log.reader.read(offset, 1).next_offset > offset

    return median_s(look_up, count)


def median_time_lookup_s(log: UnifiedLog, count: int) -> float:
    random, newest = Random(2), log.reader.max_timestamp()
    assert newest is not None

    def look_up() -> None:
        found = log.reader.offset_for_timestamp(random.randrange(DEFAULT_NOW_MS, newest.timestamp_ms))
        assert found is not None

    return median_s(look_up, count)


def median_s(look_up: Callable[[], object], count: int) -> float:
    """Twice as many as count: the first half finds the indexes on disk."""
    return statistics.median([seconds(look_up) for _ in range(2 * count)][count:])


def measure_committed(root: Path, scale: Scale) -> Row:
    """Reads of one batch at the start of a log of many segments, in which nothing was ever aborted."""
    count, batch = max(scale.lookup_segment_counts), batch_of(Random(1), 4096)
    with opened(root / "committed") as manager:
        log = open_log(manager, segment_bytes=len(batch))
        fill(log, batch, count * len(batch))
        assert len(log.local_log.segments) == count

        def read(isolation: Isolation) -> None:
            for _ in range(COMMITTED_STRETCH):
                log.reader.read(0, 1, isolation)

        committed_s, plain_s = median_pair(
            lambda: read(Isolation.TXN_COMMITTED), lambda: read(Isolation.HIGH_WATERMARK), scale.read_pairs
        )
    return Row(
        work=f"read committed / uncommitted, {count} segments",
        unit="reads/s",
        ours=COMMITTED_STRETCH / committed_s,
        reference=COMMITTED_STRETCH / plain_s,
        target=0.8,
    )


def measure_open(root: Path, scale: Scale) -> Iterator[Row]:
    """Opening is measured in a process of its own, whose memory has not been used for anything before."""
    directory = root / "open"
    with opened(directory) as manager:
        log = open_log(manager)
        request = batch_of(Random(1), 8 * SMALL_BATCH_BYTES)
        for _ in range(4):
            log.appender.append_as_leader(request, LEADER_EPOCH)
            log.roll()
        log.appender.append_as_leader(request, LEADER_EPOCH)
        first = Path(log.local_log.directory)
    for partition in range(1, scale.partitions):
        shutil.copytree(first, first.with_name(f"bench-{partition}"))
    (directory / "manifest").write_text("rebuild")
    with opened(directory):
        pass  # The manifest lists the copies from now on.
    command = [sys.executable, __file__, OPEN_OPTION, str(directory), str(scale.partitions)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    taken = json.loads(told.stdout)
    count = 5 * scale.partitions
    yield promised(
        f"open {scale.partitions} partitions of 5 segments",
        "logs/s",
        scale.partitions / taken["seconds"],
        2000 / 10,
    )
    yield promised(f"hold {count} segments in memory", "per MiB", MIB * count / taken["bytes"], MIB / 4096)


def open_logs(directory: Path, partitions: int) -> None:
    """Open the logs in the other process, which prints the times."""
    pin_to_one_core()
    before_bytes = resident_bytes()
    with opened(directory) as manager:

        def open_all() -> None:
            for partition in range(partitions):
                log = open_log(manager, partition)
                assert log.recovery_report.was_clean, log.local_log.directory

        taken_s = seconds(open_all)
        grown_bytes = resident_bytes() - before_bytes
    print(json.dumps({"seconds": taken_s, "bytes": max(1, grown_bytes)}))


def resident_bytes() -> int:
    """Memory of this process; 0 where the operating system has no such file."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0
    return pages * os.sysconf("SC_PAGESIZE")


def measure(quick: bool) -> Iterator[Row]:
    """Measure the log engine against bare loops over the same bytes, on one core."""
    scale = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        works: list[Callable[[], Iterator[Row]]] = [
            lambda: iter((measure_append(root, scale),)),
            lambda: iter((measure_read(root, scale, MIB, "1 MiB batches"),)),
            lambda: iter((measure_read(root, scale, SMALL_BATCH_BYTES, "16 KiB batches"),)),
            lambda: iter((measure_recovery(root, scale),)),
            lambda: measure_lookups(root, scale),
            lambda: measure_large_indexes(root, scale),
            lambda: iter((measure_committed(root, scale),)),
            lambda: measure_open(root, scale),
        ]
        for work in works:
            yield from work()
            for path in root.iterdir():
                shutil.rmtree(path)


if __name__ == "__main__":
    if OPEN_OPTION in sys.argv:
        open_logs(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(run(measure, on_one_core=True))
