"""Compaction behind a proxy that breaks its streams: resets amid a body, ends that come too early, silence,
and bodies that arrive in little pieces. The job asks for the rest, which is counted apart, and commits; a
store that breaks every stream costs the job, no record, and not the next one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Generator
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.scheduler import RunBeside
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.compaction.job_execution import REQUESTS_BESIDE
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.beside_threads import running_beside
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.sampling import SEED
from tests.support.tiered.s3_servers import S3Server
from tests.support.tiered.stores.proxied_s3 import WHOLE, Breakage, Exchange, ProxiedS3, proxied_s3
from tests.support.tiered.tiered_store import TieredStore

OBJECTS = 3
PARTITIONS = 5
KINDS = {
    "reset": Breakage(resets=True),
    "ended": Breakage(ends=True),
    "idle": Breakage(idles=True),
    "reset_in_pieces": Breakage(resets=True, piece_bytes=1000),
}


class HurriedClock(SystemClock):
    """The time of the machine, in which no pause is waited for. Thread-safe."""

    def sleep(self, duration_s: float) -> None:
        """Go on at once."""


@pytest.fixture(scope="module")
def wire(seaweedfs_server: S3Server) -> Generator[ProxiedS3]:
    with proxied_s3(seaweedfs_server) as proxy:
        yield proxy


@pytest.fixture
def run_beside() -> Generator[RunBeside]:
    """The threads of a process of jobs."""
    with running_beside(REQUESTS_BESIDE) as run_beside:
        yield run_beside


class World:
    """A compacted topic in a bucket, and its compactor behind the proxy. Not thread-safe."""

    def __init__(self, wire: ProxiedS3, prefix: str, store: S3ObjectStore, run_beside: RunBeside) -> None:
        clock = HurriedClock()
        filesystem, ids = MemoryFileSystem(), SequentialIds(1)
        self.tiered = TieredStore(filesystem, wire.target.open_store(prefix), clock, ids)
        topic = self.tiered.catalog.create("state", PARTITIONS, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(PARTITIONS)]
        noise = Random(SEED).randbytes(1024)
        written: list[Record] = []
        for number in range(OBJECTS):
            keys = [b"same-%d" % key for key in range(10)] + [b"%d-%d" % (number, key) for key in range(10)]
            records = [
                Record(20 * number + index, clock.now_ms(), key, b"%d" % number + noise)
                for index, key in enumerate(keys)
            ]
            batch = encode_batch(records, base_offset=20 * number, leader_epoch=1)
            self.tiered.upload({tip: [batch] for tip in self.tips})
            written += records
        last = {record.key: record.offset for record in written}
        self.expected = [record for record in written if last[record.key] == record.offset]
        self.input_bytes = sum(one.ref.size_bytes for one in self.tiered.metadata.refresh().objects.values())
        self.compactor: Compactor = self.tiered.compactor(store, streamed, run_beside=run_beside)

    def require_compacted(self) -> None:
        for tip in self.tips:
            assert self.tiered.records(tip) == self.expected


def streamed(settings: CompactionSettings) -> CompactionSettings:
    """Data is taken from its connection as the job goes on."""
    return dataclasses.replace(settings, job_memory_bytes=0, read_chunk_bytes=4096)


@pytest.mark.parametrize("kind", KINDS)
def test_broken_streams_are_read_on(
    wire: ProxiedS3, s3_prefix: str, kind: str, run_beside: RunBeside
) -> None:
    random = Random(f"{SEED}{kind}")
    settings = wire.server.settings(s3_prefix, read_timeout_s=1.0 if kind == "idle" else 10.0)
    store = S3ObjectStore(SystemClock(), settings)
    world = World(wire, s3_prefix, store, run_beside)
    seen: Counter[str] = Counter()
    # The first stream of an object once, the second one and the rest of it. Silence takes its time.
    breaks_at = (2,) if kind == "idle" else (1, 3, 4)

    def breaks(exchange: Exchange, size_bytes: int) -> Breakage:
        if not exchange.is_of_data:
            return WHOLE
        seen[exchange.key] += 1
        is_broken = seen[exchange.key] in breaks_at
        return KINDS[kind]._replace(after_bytes=random.randrange(size_bytes)) if is_broken else WHOLE

    wire.clear()
    wire.breaks = breaks
    try:
        (report,) = world.compactor.run()
    finally:
        wire.breaks = lambda _exchange, _size_bytes: WHOLE
        store.close()
    assert report.refused is None
    world.require_compacted()
    reads = wire.of_data("GET")
    assert len(reads) == OBJECTS
    assert report.get_requests == 2 * OBJECTS
    assert report.resumed_get_count == len(breaks_at) * OBJECTS
    assert sum(map(len, reads.values())) == (2 + len(breaks_at)) * OBJECTS
    assert report.bytes_read <= world.input_bytes


def test_a_body_in_little_pieces_is_one_stream(
    wire: ProxiedS3, s3_prefix: str, run_beside: RunBeside
) -> None:
    store = wire.server.open_store(s3_prefix)
    world = World(wire, s3_prefix, store, run_beside)
    wire.breaks = lambda _exchange, _size_bytes: Breakage(piece_bytes=97)
    try:
        (report,) = world.compactor.run()
    finally:
        wire.breaks = lambda _exchange, _size_bytes: WHOLE
        store.close()
    assert (report.refused, report.get_requests, report.resumed_get_count) == (None, 2 * OBJECTS, 0)
    world.require_compacted()


def test_a_store_that_breaks_each_stream_costs_no_record(
    wire: ProxiedS3, s3_prefix: str, caplog: pytest.LogCaptureFixture, run_beside: RunBeside
) -> None:
    store = wire.server.open_store(s3_prefix)
    world = World(wire, s3_prefix, store, run_beside)
    before = {tip: world.tiered.records(tip) for tip in world.tips}
    inputs = world.tiered.metadata.refresh().objects
    wire.breaks = lambda exchange, _: Breakage(resets=True) if exchange.is_of_data else WHOLE
    try:
        for attempt in (1, 2):
            caplog.clear()
            (report,) = world.compactor.run()
            assert report.refused is not None
            assert report.failed_attempts == attempt
            (line,) = [one for one in caplog.messages if "a compaction job" in one]
            assert "state-" in line
            assert ("no progress twice" in line) == (attempt == 2)
            assert world.tiered.metadata.refresh().objects == inputs
            assert {tip: world.tiered.records(tip) for tip in world.tips} == before
    finally:
        wire.breaks = lambda _exchange, _size_bytes: WHOLE
    # The object rests by now, unless the topic is named.
    reports = world.compactor.run(["state"])
    store.close()
    assert reports
    assert all(one.refused is None for one in reports)
    while world.compactor.run():
        pass
    world.require_compacted()
