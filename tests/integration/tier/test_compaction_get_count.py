"""Two GETs an input on the wire, whatever the number of partitions, on real S3 servers; one GET where nothing
of its data survives."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.compaction_oracle import final_values
from tests.support.tiered.s3_servers import S3Server
from tests.support.tiered.tiered_store import TieredStore

OBJECTS = 3
RECORDS = 4


def upload_all(tiered: TieredStore, tips: list[TopicIdPartition], *, with_key_streams: bool) -> None:
    """Objects in which every partition writes the same keys again."""
    now_ms = SystemClock().now_ms()
    for number in range(OBJECTS):
        base_offset = number * RECORDS
        records = [
            Record(base_offset + index, now_ms, b"key-%d" % index, b"value-%d" % number)
            for index in range(RECORDS)
        ]
        batch = encode_batch(records, base_offset=base_offset, leader_epoch=1)
        tiered.upload({tip: [batch] for tip in tips}, with_key_streams=with_key_streams)


@pytest.mark.parametrize(
    ("partition_count", "with_key_streams", "buffered", "has_plain"),
    [(1, True, True, True), (20, False, False, True), (20, True, False, False)],
    ids=["1", "20_hashed_and_streamed", "20_with_survivors_in_one_object"],
)
def test_a_job_makes_two_gets_an_input(
    s3_server: S3Server,
    s3_prefix: str,
    partition_count: int,
    with_key_streams: bool,
    buffered: bool,
    has_plain: bool,
) -> None:
    seen: Counter[tuple[str, str]] = Counter()

    def count(method: str, key: str) -> None:
        seen[method, key] += 1

    ids = SequentialIds(partition_count)
    tiered = TieredStore(MemoryFileSystem(), s3_server.open_store(s3_prefix), SystemClock(), ids)
    compacted = tiered.catalog.create("compacted", partition_count, {"cleanup.policy": "compact"})
    plain = tiered.catalog.create("plain", 1)
    tips = [TopicIdPartition(compacted.topic_id, partition) for partition in range(partition_count)]
    others = [TopicIdPartition(plain.topic_id, 0)] if has_plain else []
    upload_all(tiered, [*tips, *others], with_key_streams=with_key_streams)
    names = {name for name, live in tiered.metadata.refresh().objects.items() if live.live_slices}

    def change(settings: CompactionSettings) -> CompactionSettings:
        return settings if buffered else dataclasses.replace(settings, job_memory_bytes=0)

    compactor = tiered.compactor(s3_server.open_store(s3_prefix, on_request=count), change)
    seen.clear()
    (report,) = compactor.run_once()

    # Requests on the wire, retries included, by object; the metadata's own keys are not objects.
    gets = {
        key.rpartition("/")[2]: count
        for (method, key), count in seen.items()
        if method == "GET" and "/data/" in f"/{key}"
    }
    # Without the plain topic only the newest object has survivors.
    assert gets == dict.fromkeys(names, 2 if has_plain else 1) | {max(names): 2}
    assert (report.inputs, report.get_requests) == (OBJECTS, sum(gets.values()))
    assert report.resumed_get_count == 0
    assert report.partitions == partition_count + len(others)
    assert report.records_out == partition_count * RECORDS + len(others) * OBJECTS * RECORDS
    for tip in (tips[0], tips[-1]):
        assert len(tiered.records(tip)) == RECORDS
        assert set(final_values(tiered.records(tip)).values()) == {b"value-%d" % (OBJECTS - 1)}
