"""Compaction of object files, beside bare GET and PUT of the same bytes.

The reference takes the inputs from the store with two requests each, as a job does, and stores as many bytes
as the job writes, through the same `ObjectStore`: whatever is missing to a ratio of 1 is what compaction
itself costs. Rates are those of the bytes that are moved, read and written.

Stores: a local directory, and a real S3 server (SeaweedFS) where it is installed. A directory has no HTTP:
its GET copies from the page cache, and its rows show what compaction costs in CPU where transport is almost
free. One row has the store in memory, where a number of records a second is promised. Allocator, garbage
collector and threads are those of a server's process of jobs. With 5,000 partitions on a server the floor is
measured, too: the least that a job in Python can do (`floors/least_compaction.py`).

A full run has 8 inputs with as much data as the uploader puts into an object by default, 480 MiB together,
and a quick one has 16 MiB. Partitions share the bytes of a load, so their slices are small in a quick run (4
KiB with 500 partitions, 120 KiB in a full one; a record with 5,000, and 12 KiB); what a slice costs then
counts for more than what a byte does.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random

from floors.least_compaction import least_job
from report import Row, promised, run, seconds
from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.process_tuning import (
    COLLECTOR_THRESHOLDS_OF_JOBS,
    exempt_loaded_objects,
    keep_freed_memory,
    share_interpreter_lock,
    share_one_heap,
)
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.job_execution import REQUESTS_BESIDE
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.remote.tier.uploader_settings import UploaderSettings
from tests.support.tiered.s3_servers import BENCHMARK_MEMORY_MIB, ServerMissingError, seaweedfs_server
from tests.support.tiered.tiered_store import TieredStore

PROMISED_RECORDS_PER_S = 6e6
"""Records of 100 bytes, with the store in memory."""
OBJECTS = 8
CHUNK_BYTES = 4 << 20
_THREADS = ThreadPoolExecutor(REQUESTS_BESIDE)
"""For what runs beside the work of jobs, as the process of jobs has them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The contents of the inputs."""

    name: str
    total_bytes: int
    value_bytes: int
    key_count: int
    codec: Codec = Codec.NONE
    partition_count: int = 1
    batch_bytes: int = 256 << 10
    target: float
    """The least ratio on an S3 server."""
    directory_target: float
    """The least ratio on a local directory."""
    least_target: float | None = None
    """The least ratio to the floor (`floors/least_compaction.py`), where it is measured."""


def loads(*, quick: bool) -> list[Load]:
    size = (16 << 20) if quick else OBJECTS * UploaderSettings().max_object_bytes
    large = Load(
        name="1 KiB values, 89 % dropped",
        total_bytes=size,
        value_bytes=1024,
        key_count=size // 9400,
        target=0.7,
        directory_target=0.5,
    )
    small = dataclasses.replace(
        large,
        name="100 B values, 93 % dropped",
        value_bytes=100,
        key_count=size // 1900,
        target=0.6,
    )
    return [
        large,
        dataclasses.replace(large, name="1 KiB values, nothing dropped", key_count=0),
        small,
        dataclasses.replace(small, name="100 B values, half dropped", key_count=size // 270),
        dataclasses.replace(large, name="1 KiB values, zstd, 89 % dropped", codec=Codec.ZSTD),
        dataclasses.replace(
            large, name="1 KiB values, 500 partitions", partition_count=500, target=0.6, directory_target=0.6
        ),
        dataclasses.replace(
            large,
            name="1 KiB values, 5,000 partitions",
            partition_count=5000,
            target=0.5,
            least_target=0.5,
        ),
    ]


class Bench:
    """A store of its own with the inputs of one load in it."""

    def __init__(self, store: ObjectStore, directory: str, load: Load) -> None:
        self.tiered = TieredStore(
            PosixFileSystem(), store, SystemClock(), SystemIdGenerator(), directory=directory
        )
        self._store = store
        self._load = load
        self._random = Random(1)
        # Half of every value is cut from here, half is zeros: codecs find something to do, but not much.
        self._noise = self._random.randbytes(1 << 20)
        topic = self.tiered.catalog.create("bench", load.partition_count, {"cleanup.policy": "compact"})
        self._tips = [TopicIdPartition(topic.topic_id, number) for number in range(load.partition_count)]
        self._sequence = 0
        self._upload()
        self._refs = [live.ref for live in self.tiered.metadata.refresh().objects.values()]
        self.report: CompactionReport | None = None
        self._compactor = self.tiered.compactor(run_beside=_THREADS.submit)
        # A store may have written past the page cache: then the first to read would wait for the disk.
        self._read_inputs()
        # As a process of jobs does when it has started. The garbage of the set-up is not the work's, either.
        exempt_loaded_objects(COLLECTOR_THRESHOLDS_OF_JOBS)

    def compact(self) -> None:
        """The job, commit included. Its inputs stay in the store: nothing is collected here."""
        (self.report,) = self._compactor.run()
        assert self.report.refused is None, self.report

    def move(self) -> None:
        """The reference: two GETs an input, and a PUT of as many bytes as the job wrote."""
        report = self.report
        assert report is not None
        last = self._read_inputs()
        whole, rest = divmod(report.output_bytes, len(last))
        parts = [last] * whole + [last[:rest]]
        self._store.put_parts(f"reference/{self._sequence}", parts)

    def least(self) -> None:
        """The floor: the requests of the job and its directories, and nothing else."""
        report = self.report
        assert report is not None
        inputs = [(self.tiered.layout.data_key(ref.name), ref) for ref in self._refs]
        part_bytes = self._compactor.settings.output_part_bytes
        key = f"reference/least-{self._sequence}"
        least_job(self._store, inputs, key, report.output_bytes, part_bytes, _THREADS)

    def _read_inputs(self) -> bytes:
        """Two GETs an input; returns the last bytes."""
        last = b""
        for ref in self._refs:
            key = self.tiered.layout.data_key(ref.name)
            for begin, end in (
                (ref.directory_position, ref.key_streams_end),
                (ref.data_position, ref.directory_position),
            ):
                stream = self._store.open_range(key, begin, end - begin)
                while data := stream.read(CHUNK_BYTES):
                    last = data
                stream.close()
        return last

    def _upload(self) -> None:
        load = self._load
        ends = dict.fromkeys(self._tips, 0)
        for _ in range(OBJECTS):
            slices: dict[TopicIdPartition, list[bytes]] = {}
            for tip in self._tips:
                slices[tip] = []
                left_bytes = load.total_bytes // OBJECTS // load.partition_count
                while left_bytes > 0:
                    batch, count = self._batch(ends[tip], min(left_bytes, load.batch_bytes))
                    slices[tip].append(batch)
                    ends[tip] += count
                    left_bytes -= min(left_bytes, load.batch_bytes)
            self.tiered.upload(slices)

    def _batch(self, base_offset: int, size_bytes: int) -> tuple[bytes, int]:
        load, random = self._load, self._random
        count = max(1, size_bytes // (load.value_bytes + 30))
        keys_here = max(1, load.key_count // load.partition_count)
        records: list[Record] = []
        for index in range(count):
            self._sequence += 1
            number = random.randrange(keys_here) if load.key_count else self._sequence
            half = load.value_bytes // 2
            begin = random.randrange(len(self._noise) - half)
            value = self._noise[begin : begin + half] + bytes(load.value_bytes - half)
            records.append(Record(base_offset + index, 1_000_000 + index, b"key-%012d" % number, value))
        return encode_batch(records, codec=load.codec, base_offset=base_offset, leader_epoch=1), count


def rows_of(
    store_name: str, open_store: Callable[[str], ObjectStore], *, is_directory: bool, quick: bool
) -> Iterator[Row]:
    """Each load gets a new store for every repetition, because a job changes what is in it."""
    for number, load in enumerate(loads(quick=quick)):
        ours_s = reference_s = least_s = float("inf")
        moved_mb = 0.0
        for repeat in range(3):
            with tempfile.TemporaryDirectory() as directory:
                bench = Bench(open_store(f"{number}/{repeat}"), directory, load)
                ours_s = min(ours_s, seconds(bench.compact))
                reference_s = min(reference_s, seconds(bench.move))
                if load.least_target is not None and not is_directory:
                    least_s = min(least_s, seconds(bench.least))
                report = bench.report
                assert report is not None
                moved_mb = (report.bytes_read + report.output_bytes) / 1e6
        yield Row(
            work=f"{store_name}: {load.name}",
            unit="MB/s",
            ours=moved_mb / ours_s,
            reference=moved_mb / reference_s,
            target=load.directory_target if is_directory else load.target,
        )
        if load.least_target is not None and not is_directory:
            yield Row(
                work=f"{store_name}: {load.name}, least job",
                unit="MB/s",
                ours=moved_mb / ours_s,
                reference=moved_mb / least_s,
                target=load.least_target,
            )


def row_in_memory(load: Load) -> Row:
    """The records that a job takes in a second, with a store in memory."""
    ours = 0.0
    for _ in range(3):
        with tempfile.TemporaryDirectory() as directory:
            bench = Bench(MemoryObjectStore(SystemClock()), directory, load)
            ours_s = seconds(bench.compact)
            report = bench.report
            assert report is not None
            ours = max(ours, report.records_in / ours_s)
    return promised(f"memory: {load.name}", "records/s", ours, PROMISED_RECORDS_PER_S)


def measure(quick: bool) -> Iterator[Row]:
    """Compaction of object files, beside bare GET and PUT of the same bytes."""
    keep_freed_memory()
    share_one_heap()
    share_interpreter_lock()
    yield row_in_memory(loads(quick=quick)[2])
    with tempfile.TemporaryDirectory() as root:
        yield from rows_of(
            "directory",
            lambda name: LocalObjectStore(
                PosixFileSystem(), SystemClock(), SystemIdGenerator(), f"{root}/{name}"
            ),
            is_directory=True,
            quick=quick,
        )
    with ExitStack() as closing:
        try:
            server = closing.enter_context(seaweedfs_server(BENCHMARK_MEMORY_MIB))
        except ServerMissingError:
            return
        yield from rows_of("SeaweedFS", server.open_store, is_directory=False, quick=quick)


if __name__ == "__main__":
    sys.exit(run(measure))
