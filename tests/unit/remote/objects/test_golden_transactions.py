"""Logs of a real broker, uploaded: what is read back from the object store is what Kafka's consumer read, in
both isolation levels, and the slices say of producers and transactions what the broker's own files say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.compaction.job_execution import CompactedShard
from stratalog.log.isolation import Isolation
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.record import Record
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.store_identity import StoreIdentity
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.golden_records import golden_records
from tests.support.logs.log_consumer import committed_records
from tests.support.places import GOLDEN
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

ISOLATIONS = {"read_uncommitted": Isolation.HIGH_WATERMARK, "read_committed": Isolation.TXN_COMMITTED}


TOPICS = ["txn", "compacted", "codecs"]


class Uploaded(NamedTuple):
    """A topic whose batches are in the object store only."""

    logs: TieredLogs
    log: UnifiedLog
    tip: TopicIdPartition

    def indexes(self) -> Iterator[tuple[int, SliceIndex]]:
        """The index of each slice, with the offset at which it ends."""
        for live in self.logs.metadata.state().partition(self.tip).slices:
            found = read_slice_index(self.logs.store, self.logs.metadata.layout, live.object_name, live.entry)
            yield live.end_offset, found


def directory(name: str) -> Path:
    return GOLDEN / "data" / f"g1-{name}-0"


def uploaded(name: str, max_object_bytes: int, *, is_compacted: bool = False) -> Uploaded:
    """The broker's segments, as ours."""
    policy = "compact" if is_compacted or name == "compacted" else "delete"
    logs = TieredSite(max_object_bytes=max_object_bytes).start()
    topic = logs.create_topic("t", 1, {"cleanup.policy": policy})
    log = logs.logs[TopicPartition("t", 0)]
    for path in sorted(directory(name).glob("*.log")):
        log.roll()
        log.appender.append_as_follower(path.read_bytes())
    logs.seal()
    assert not logs.upload().failed
    assert log.offsets.tiered_end_offset == log.offsets.log_end_offset
    log.retention.delete_local_segments(ignore_retention=True)
    assert log.offsets.local_log_start_offset == log.offsets.log_end_offset
    return Uploaded(logs, log, TopicIdPartition(topic.topic_id, 0))


def read_all(found: Uploaded, isolation: Isolation, max_bytes: int) -> list[Record]:
    """The records that a consumer gets from the object store."""
    records: list[Record] = []
    offset = 0
    while offset < found.log.offsets.tiered_end_offset:
        data = found.logs.reader.read(found.tip, offset, max_bytes, isolation)
        records += committed_records(data, offset)
        assert data.next_offset > offset
        offset = data.next_offset
    return records


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("max_object_bytes", [2000, 1 << 20])
@pytest.mark.parametrize("name", TOPICS)
def test_what_kafka_read_is_read_from_the_object_store(
    name: str, max_object_bytes: int, isolation: str
) -> None:
    found = uploaded(name, max_object_bytes)
    for max_bytes in (0, 1 << 20):
        assert read_all(found, ISOLATIONS[isolation], max_bytes) == golden_records(GOLDEN, name, isolation)


@pytest.mark.parametrize("max_object_bytes", [2000, 1 << 20])
@pytest.mark.parametrize("name", ["txn", "compacted"])
def test_compaction_leaves_the_last_committed_records_that_kafka_read(
    name: str, max_object_bytes: int
) -> None:
    found = uploaded(name, max_object_bytes, is_compacted=True)
    logs = found.logs
    identity = StoreIdentity.find(logs.store)
    assert identity is not None
    compactor = Compactor(
        MemoryFileSystem(),
        logs.clock,
        SequentialIds(7),
        CompactedShard(logs.store, identity.store_id, logs.metadata, logs.catalog),
        CompactionSettings(spool_directory="/compaction"),
    )
    reports = compactor.run(("t",))
    assert [report.refused for report in reports] == [None] * len(reports)
    assert reports
    partition = logs.metadata.state().partition(found.tip)
    assert partition.compacted_upto == partition.tiered_end_offset
    committed = golden_records(GOLDEN, name, "read_committed")
    newest = {record.key: record.offset for record in committed if record.key is not None}
    expected = [one for one in committed if one.key is None or newest[one.key] == one.offset]
    for isolation in ISOLATIONS.values():
        assert read_all(found, isolation, 1 << 20) == expected


@pytest.mark.parametrize("max_object_bytes", [2000, 1 << 20])
@pytest.mark.parametrize("name", TOPICS)
def test_the_slices_have_the_aborted_transactions_of_the_broker(name: str, max_object_bytes: int) -> None:
    theirs: list[AbortedTransaction] = []
    for path in sorted(directory(name).glob("*.txnindex")):
        theirs += TransactionIndex(int(path.stem), path.read_bytes())
    ours = [one for _, index in uploaded(name, max_object_bytes).indexes() for one in index.aborted]
    assert ours == theirs


@pytest.mark.parametrize("name", TOPICS)
def test_the_slices_have_the_producers_of_the_broker(name: str) -> None:
    theirs = {
        int(path.stem): sorted(ProducerSnapshot.from_bytes(int(path.stem), path.read_bytes()).entries)
        for path in directory(name).glob("*.snapshot")
    }
    compared = 0
    # So small that each object ends where a segment does, at the latest.
    for end_offset, index in uploaded(name, 2000).indexes():
        ours = ProducerSnapshot.from_bytes(end_offset, index.producer_snapshot)
        if end_offset in theirs:
            assert list(ours.entries) == theirs[end_offset]
            compared += 1
    assert compared > 0
