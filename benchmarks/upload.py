"""Uploads of rolled segments, beside a bare multipart PUT of the same bytes with as many connections.

The reference is boto3's own `upload_fileobj` of one object from memory. The uploader reads segments from a
file system in memory, so that no disk is measured, proves every header and every checksum, writes indexes,
and commits. Both talk to one S3 server (SeaweedFS) that runs on the same machine, and takes its share of the
processors. Without that server there is nothing to compare with.

A whole run first counts the objects and the requests of 1 GiB in 1,000 partitions, with the object size of a
server and a store in a local directory.
"""

from __future__ import annotations

import io
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from typing import Final, NamedTuple

from boto3.s3.transfer import TransferConfig

from report import Row, pair_of_median_ratio, promised_cost, run, seconds
from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.counted import CountedObjectStore
from stratalog.objectstore.local import LocalObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.store_layout import kind_of_key
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.s3_servers import (
    BENCHMARK_MEMORY_MIB,
    S3Server,
    ServerMissingError,
    seaweedfs_server,
)
from tests.support.tiered.tiered_logs import TieredLogs

TARGET: Final = 0.8
CONNECTION_COUNT: Final = 4
OBJECT_BYTES: Final = 60 << 20
PART_BYTES: Final = 16 << 20
BATCH_BYTES: Final = 256 << 10
REPEATS: Final = 5
MIB: Final = 1 << 20
MANY_PARTITIONS: Final = 1_000
MANY_BYTES: Final = 1 << 30
WHOLE_OBJECT_BYTES: Final = 64 << 20
"""The size of an object by which requests are promised: with its directory and indexes."""
OBJECTS_PER_FULL_OBJECT: Final = 1.2
"""Promised: at most so many data PUTs, or parts of them, for each object that the data would fill."""


class Load(NamedTuple):
    """The data of one upload."""

    name: str
    partition_count: int
    config: dict[str, str]


LOADS: Final = (
    Load("1 partition", 1, {}),
    Load("100 partitions", 100, {}),
    Load("100 compacted partitions", 100, {"cleanup.policy": "compact"}),
)


class Threads(SystemClock):
    """The threads that send, and the time. Thread-safe: the executor is."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run_beside(self, task: Callable[[], None]) -> object:
        return self._executor.submit(task)


def batch_of(size_bytes: int) -> bytes:
    """A batch of about this size, of records of 1 KiB."""
    value = bytes(range(256)) * 4
    return encode_batch(
        [Record(0, 1_000 + number, b"k%08d" % number, value) for number in range(size_bytes // 1060)]
    )


class Bench:
    """Logs with rolled segments, a topic for each upload. Belongs to one thread."""

    def __init__(self, server: S3Server, executor: Executor, load: Load, total_bytes: int, name: str) -> None:
        self._load = load
        self._total_bytes = total_bytes
        self._numbers = itertools.count()
        self._client = server.client()
        self._bucket = server.bucket
        self._name = name
        self._logs = TieredLogs(
            MemoryFileSystem(),
            server.open_store(f"upload-{name}"),
            ManualClock(),
            SequentialIds(1),
            max_object_bytes=OBJECT_BYTES,
            read_bytes=8 << 20,
            sends=Threads(executor),
            uploader_settings={"put_count": CONNECTION_COUNT},
        )
        random = Random(1)
        # One call makes less than 256 MiB.
        self._body = b"".join(random.randbytes(MIB) for _ in range(total_bytes // MIB))
        self._batch = batch_of(BATCH_BYTES)
        self._config = {"segment.bytes": str(1 << 30), "max.message.bytes": str(1 << 20), **load.config}

    def fill(self) -> None:
        """Append what the next upload takes."""
        self._logs.create_topic(f"t{next(self._numbers)}", self._load.partition_count, self._config)
        logs = list(self._logs.logs.values())[-self._load.partition_count :]
        for log in itertools.islice(itertools.cycle(logs), self._total_bytes // len(self._batch)):
            log.appender.append_as_leader(self._batch, self._logs.claimed.epoch)
        self._logs.seal()

    def upload(self) -> None:
        """Upload what waits. What was filled is uploaded to the last byte."""
        report = self._logs.upload()
        assert not report.failed
        assert report.data_bytes == self._total_bytes // len(self._batch) * len(self._batch)

    def put(self) -> None:
        """The reference."""
        self._client.upload_fileobj(
            io.BytesIO(self._body),
            self._bucket,
            f"reference/{self._name}/{next(self._numbers)}",
            Config=TransferConfig(
                multipart_threshold=PART_BYTES,
                multipart_chunksize=PART_BYTES,
                max_concurrency=CONNECTION_COUNT,
            ),
        )

    def pair(self) -> tuple[float, float]:
        """The durations of the reference and of an upload, a moment apart."""
        self.fill()
        pair = seconds(self.put), seconds(self.upload)
        for log in self._logs.logs.values():
            log.retention.delete_local_segments(ignore_retention=True)
        return pair


def count_requests(partition_count: int, total_bytes: int) -> Iterator[Row]:
    """The data PUTs and the commits of one pass over so many bytes in so many partitions, beside the objects
    that they would fill. A commit is a PUT of the head, and every other PUT of metadata counts as one."""
    batch = batch_of(BATCH_BYTES // 4)
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(CONNECTION_COUNT) as executor:
        local = LocalObjectStore(PosixFileSystem(), SystemClock(), SequentialIds(2), directory)
        store = CountedObjectStore(local, kind_of_key)
        logs = TieredLogs(
            MemoryFileSystem(),
            store,
            ManualClock(),
            SequentialIds(1),
            max_object_bytes=OBJECT_BYTES,
            read_bytes=8 << 20,
            sends=Threads(executor),
            uploader_settings={"put_count": CONNECTION_COUNT},
        )
        logs.create_topic("t", partition_count, {})
        for log in itertools.islice(itertools.cycle(logs.logs.values()), total_bytes // len(batch)):
            log.appender.append_as_leader(batch, logs.claimed.epoch)
        logs.seal()
        store.reset()
        report = logs.upload()
        assert not report.failed
        assert report.data_bytes == total_bytes // len(batch) * len(batch)
        puts = {kind: count.requests for (verb, kind), count in store.counts().items() if verb == "PUT"}
        logs.close()
    name = f"{total_bytes >> 20} MiB in {partition_count:,} partitions"
    at_most = OBJECTS_PER_FULL_OBJECT * total_bytes / WHOLE_OBJECT_BYTES
    yield promised_cost(f"{name}: data PUTs and parts", "requests", puts["data"], at_most)
    yield promised_cost(f"{name}: PUTs of commits", "requests", puts["metadata"], puts["data"])


def measure(quick: bool) -> Iterator[Row]:
    """Uploads of rolled segments, beside a bare multipart PUT of the same bytes."""
    total_bytes = (64 if quick else 256) << 20
    if not quick:
        yield from count_requests(MANY_PARTITIONS, MANY_BYTES)
    with ExitStack() as closing:
        try:
            server = closing.enter_context(seaweedfs_server(BENCHMARK_MEMORY_MIB))
        except ServerMissingError:
            return
        executor = closing.enter_context(ThreadPoolExecutor(CONNECTION_COUNT))
        for number, load in enumerate(LOADS):
            bench = Bench(server, executor, load, total_bytes, f"{number}")
            reference_s, ours_s = pair_of_median_ratio(bench.pair() for _ in range(REPEATS))
            yield Row(
                work=f"SeaweedFS: {load.name}",
                unit="MB/s",
                ours=total_bytes / ours_s / 1e6,
                reference=total_bytes / reference_s / 1e6,
                target=TARGET,
            )


if __name__ == "__main__":
    sys.exit(run(measure))
