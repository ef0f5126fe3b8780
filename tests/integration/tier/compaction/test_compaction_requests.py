"""The requests of a compaction, as a proxy before real S3 servers counts them.

Two GETs an input whatever the number of partitions, one where nothing of its data survives, and none that
resumes; at most a tenth more bytes than the inputs have; the outputs in the fewest parts, each sent once; no
HEAD and no listing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence
from random import Random
from typing import Any

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.job_execution import REQUESTS_BESIDE
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.beside_threads import running_beside
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.sampling import IS_WHOLE
from tests.support.tiered.s3_servers import S3Server
from tests.support.tiered.stores.proxied_s3 import ProxiedS3, proxied_s3
from tests.support.tiered.tiered_store import TieredStore

OBJECTS = 3
RECORDS = 4
VALUE_BYTES = 1024
PART_BYTES = 16 << 20
LEAST_PART_BYTES = 5 << 20
"""S3 takes no smaller parts, but for the last one."""


IN_SIMULATE = pytest.mark.skipif(not IS_WHOLE, reason="takes long: `make simulate`")


@pytest.fixture(scope="module", params=["seaweedfs", "minio"])
def wire(request: pytest.FixtureRequest) -> Generator[ProxiedS3]:
    server: S3Server = request.getfixturevalue(f"{request.param}_server")
    with proxied_s3(server) as proxy:
        yield proxy


class World:
    """A shard in a bucket, with a compacted topic and a plain one. Its own requests do not pass the proxy,
    those of its compactors do. Not thread-safe: one test uses it."""

    def __init__(self, wire: ProxiedS3, prefix: str, partition_count: int) -> None:
        self.wire = wire
        self._prefix = prefix
        ids = SequentialIds(partition_count)
        store = wire.target.open_store(prefix)
        self.tiered = TieredStore(MemoryFileSystem(), store, SystemClock(), ids)
        compacted = self.tiered.catalog.create("compacted", partition_count, {"cleanup.policy": "compact"})
        plain = self.tiered.catalog.create("plain", 1)
        self.tips = [TopicIdPartition(compacted.topic_id, partition) for partition in range(partition_count)]
        self.plain = TopicIdPartition(plain.topic_id, 0)
        self._part_bytes = 0
        self._now_ms = SystemClock().now_ms()

    def upload(
        self,
        tips: Sequence[TopicIdPartition],
        keys: Sequence[bytes],
        *,
        value_bytes: int = VALUE_BYTES,
        with_key_streams: bool = True,
    ) -> None:
        """An object in which each partition has a record of each key."""
        noise = Random(len(keys)).randbytes(value_bytes)
        slices: dict[TopicIdPartition, list[bytes]] = {}
        batches: dict[int, bytes] = {}
        state = self.tiered.metadata.refresh()
        for tip in tips:
            base_offset = state.partition(tip).tiered_end_offset
            if base_offset not in batches:
                records = [
                    Record(base_offset + index, self._now_ms, key, b"%8d" % (base_offset + index) + noise)
                    for index, key in enumerate(keys)
                ]
                batches[base_offset] = encode_batch(records, base_offset=base_offset, leader_epoch=1)
            slices[tip] = [batches[base_offset]]
        self.tiered.upload(slices, with_key_streams=with_key_streams)

    def input_names(self) -> list[str]:
        """The live objects, oldest first."""
        live = self.tiered.metadata.refresh().objects
        return sorted(name for name, one in live.items() if one.live_slices)

    def compact(self, **changes: Any) -> CompactionReport:
        """Run the one job that there is, and only that, over the wire, with threads as a process of jobs."""

        def change(settings: CompactionSettings) -> CompactionSettings:
            return dataclasses.replace(settings, **changes)

        store = self.wire.server.open_store(self._prefix)
        with running_beside(REQUESTS_BESIDE) as run_beside:
            compactor = self.tiered.compactor(store, change, run_beside=run_beside)
            self._part_bytes = compactor.settings.output_part_bytes
            self.wire.clear()
            (report,) = compactor.run()
        store.close()
        assert report.refused is None
        return report

    def require_wire(self, report: CompactionReport, gets: Sequence[int], names: Sequence[str]) -> None:
        """Check what the proxy saw: so many GETs of each input, and the rest of the promises."""
        seen = self.wire.seen()
        assert not any(one.method == "HEAD" or one.is_listing for one in seen)
        reads = self.wire.of_data("GET")
        assert {name: len(found) for name, found in reads.items()} == dict(zip(names, gets, strict=True))
        assert (report.inputs, report.get_requests) == (len(names), sum(gets))
        assert report.resumed_get_count == 0
        arrived_bytes = sum(one.answer_bytes for found in reads.values() for one in found)
        assert report.bytes_read == arrived_bytes
        assert arrived_bytes <= 1.10 * report.input_bytes
        self._require_outputs(report)

    def _require_outputs(self, report: CompactionReport) -> None:
        """Each output is there as a whole, and no byte of it was sent twice."""
        live = self.tiered.metadata.refresh().objects
        outputs = {name: live[name].ref.size_bytes for name in self.input_names()}
        sent = self.wire.of_data("PUT")
        assert {name: sum(one.request_bytes for one in found) for name, found in sent.items()} == outputs
        assert {name: len(found) for name, found in sent.items()} == {
            name: math.ceil(size / self._part_bytes) for name, size in outputs.items()
        }
        assert (report.outputs, report.output_bytes) == (len(outputs), sum(outputs.values()))


def keys(*numbers: int) -> list[bytes]:
    return [b"key-%d" % number for number in numbers]


@pytest.mark.parametrize(
    ("partition_count", "object_count", "value_bytes"),
    [(1, 3, VALUE_BYTES), (100, 3, VALUE_BYTES), (5_000, 2, 90)],
)
def test_a_job_makes_two_gets_an_input_in_which_slices_survive_in_part(
    wire: ProxiedS3, s3_prefix: str, partition_count: int, object_count: int, value_bytes: int
) -> None:
    world = World(wire, s3_prefix, partition_count)
    for number in range(object_count):
        own_keys = (10 + number, 20 + number)
        world.upload(world.tips, keys(*range(RECORDS), *own_keys), value_bytes=value_bytes)
    names = world.input_names()
    report = world.compact(output_part_bytes=LEAST_PART_BYTES)
    world.require_wire(report, [2] * object_count, names)
    assert (report.output_bytes > LEAST_PART_BYTES) == (partition_count == 5_000), "it is sent in parts"
    assert report.partitions == partition_count
    assert report.records_in == partition_count * object_count * (RECORDS + 2)
    assert report.records_out == partition_count * (RECORDS + 2 * object_count)
    size = RECORDS + 2
    left = [
        (number * size + RECORDS + place, b"key-%d" % (10 * (place + 1) + number))
        for number in range(object_count)
        for place in (0, 1)
    ]
    last = [((object_count - 1) * size + number, b"key-%d" % number) for number in range(RECORDS)]
    for tip in (world.tips[0], world.tips[-1]):
        assert [(one.offset, one.key) for one in world.tiered.records(tip)] == sorted(left + last)


@pytest.mark.parametrize(
    ("with_key_streams", "job_memory_bytes"),
    [(False, 0), (True, 256 << 20)],
    ids=["hashed_and_streamed", "buffered"],
)
def test_an_input_without_survivors_costs_one_get_where_its_keys_are_known(
    wire: ProxiedS3, s3_prefix: str, with_key_streams: bool, job_memory_bytes: int
) -> None:
    world = World(wire, s3_prefix, 20)
    for _ in range(OBJECTS):
        world.upload(world.tips, keys(*range(RECORDS)), with_key_streams=with_key_streams)
    names = world.input_names()
    report = world.compact(job_memory_bytes=job_memory_bytes)
    world.require_wire(report, [1 if with_key_streams else 2] * (OBJECTS - 1) + [2], names)
    assert report.records_out == 20 * RECORDS


def test_a_plain_topic_beside_compacted_ones_costs_no_get_more(wire: ProxiedS3, s3_prefix: str) -> None:
    world = World(wire, s3_prefix, 20)
    for _ in range(OBJECTS):
        world.upload([*world.tips, world.plain], keys(*range(RECORDS)))
    names = world.input_names()
    report = world.compact()
    world.require_wire(report, [2] * OBJECTS, names)
    assert report.outputs == 2, "compacted and plain topics part ways"
    assert report.records_out == 20 * RECORDS + OBJECTS * RECORDS


@IN_SIMULATE
def test_a_large_output_is_sent_in_the_fewest_parts(wire: ProxiedS3, s3_prefix: str) -> None:
    world = World(wire, s3_prefix, 1)
    for number in range(OBJECTS):
        world.upload(world.tips, keys(*range(100 * number, 100 * number + 100)), value_bytes=256 << 10)
    names = world.input_names()
    report = world.compact(read_chunk_bytes=1 << 20, output_part_bytes=PART_BYTES)
    world.require_wire(report, [2] * OBJECTS, names)
    (sent,) = wire.of_data("PUT", "POST").values()
    part_count = -(-report.output_bytes // PART_BYTES)
    assert part_count > 2
    assert [one.method for one in sent] == ["POST", *["PUT"] * part_count, "POST"]
