"""Gaps, as readers of committed records, producers and retention see them: records that the disk has lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from stratalog.base.errors import OutOfOrderSequenceError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.reading.readable_batches import readable_batches
from stratalog.remote.metadata.head.committed_log import MAX_CLOCK_SKEW_MS
from stratalog.remote.metadata.shard.shard_judge import CLOCK
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.tier.upload_report import UploadReport
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.plain_batches import batch
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite
from tests.support.tiered.unstable_uploads import unstable_uploads

T0 = TopicPartition("t", 0)
PRODUCER = 7
CONFIG = {"remote.copy.backlog.policy": "drop", "retention.ms": "-1"}


class LossySite(TieredSite):
    """A site with one partition, whose disk loses segments before they are uploaded."""

    def __init__(self, *, skew_ms: int = 0) -> None:
        super().__init__(skew_ms=skew_ms)
        self.logs: TieredLogs = self.start()
        topic = self.logs.create_topic("t", 1, CONFIG)
        self.tip = TopicIdPartition(topic.topic_id, 0)

    @property
    def log(self) -> UnifiedLog:
        return self.logs.logs[T0]

    @property
    def partition(self) -> TieredPartition:
        return self.logs.metadata.state().partition(self.tip)

    def append(self, sequence: int, *, producer_id: int = PRODUCER, is_transactional: bool = False) -> int:
        """One record in a segment of its own; returns its offset."""
        producer = BatchProducer(producer_id, 0, sequence, is_transactional)
        data = batch(1, timestamp_ms=self.clock.now_ms(), producer=producer)
        info = self.log.appender.append_as_leader(data, self.logs.claimed.epoch)
        self.logs.seal()
        return info.base_offset

    def end_transaction(self, *, committed: bool) -> None:
        """A marker in a segment of its own."""
        self.log.appender.append_end_transaction_marker(
            PRODUCER, 0, 0, committed=committed, leader_epoch=self.logs.claimed.epoch
        )
        self.logs.seal()

    def upload(self) -> UploadReport:
        """One pass, which takes open transactions along: an object may end inside of one that is decided."""
        with unstable_uploads():
            return self.logs.upload()

    def lose(self) -> None:
        """Lose all that the disk has, except for the active segment."""
        self.log.retention.drop_for_space(1 << 40, may_lose=True)

    def read(self, offset: int = 0) -> FetchData:
        return self.logs.reader.read(self.tip, offset, 1 << 20, Isolation.TXN_COMMITTED)

    def readable(self, logs: TieredLogs | None = None) -> list[int]:
        """The offsets that a reader of committed records gets from the first one on."""
        reader, offset, found = (logs or self.logs).reader, 0, list[int]()
        while (data := reader.read(self.tip, offset, 1 << 20, Isolation.TXN_COMMITTED)).next_offset > offset:
            offset = data.next_offset
            found += offsets_in(data)
        return found


def offsets_in(found: FetchData) -> list[int]:
    """Those of the records that a reader of committed records gets."""
    is_readable = readable_batches(found.aborted_transactions)
    return [header.base_offset for _, header in batches(found.batches) if is_readable(header)]


@pytest.mark.parametrize("committed", [False, True])
def test_a_transaction_whose_marker_is_lost_is_aborted(*, committed: bool) -> None:
    site = LossySite()
    site.append(0, is_transactional=True)
    site.upload()
    site.end_transaction(committed=committed)
    site.lose()
    site.append(0, producer_id=8)
    site.append(1, is_transactional=True)
    site.end_transaction(committed=True)
    site.upload()
    partition = site.partition
    assert [(live.base_offset, live.gap is not None) for live in partition.slices] == [
        (0, False),
        (1, True),
        (2, False),
    ]
    assert partition.stable_end_offset == partition.tiered_end_offset == 5
    assert site.readable() == [2, 3], "the producer's later transaction is committed"
    site.logs.metadata.fold()
    reopened = site.start(MemoryFileSystem())
    assert reopened.metadata.state().partition(site.tip) == partition
    assert site.readable(reopened) == [2, 3]


@pytest.mark.parametrize("committed", [False, True])
def test_a_transaction_that_goes_on_behind_a_gap_is_aborted_before_it(*, committed: bool) -> None:
    site = LossySite()
    site.append(0, is_transactional=True)
    site.upload()
    site.append(1, is_transactional=True)
    site.lose()
    site.append(2, is_transactional=True)
    site.upload()
    assert site.readable() == [], "the rest is still open"
    site.end_transaction(committed=committed)
    site.upload()
    assert site.readable() == ([2] if committed else [])


def test_a_loss_without_a_record_in_the_store_decides_nothing() -> None:
    site = LossySite()
    site.append(0, is_transactional=True)
    site.upload()
    site.end_transaction(committed=False)
    site.append(0, producer_id=8)
    site.lose()
    hosted = SimpleNamespace(
        log=site.log,
        tiered_end_offset=site.partition.tiered_end_offset,
        topic_id_partition=site.tip,
        _reader=site.logs.reader,
    )
    found = HostedPartition.read_tiered(cast(HostedPartition, hosted), 0, 1 << 20, Isolation.TXN_COMMITTED)
    assert offsets_in(found) == []


def test_behind_a_trailing_gap_a_producer_is_known_as_before_it() -> None:
    site = LossySite()
    site.append(0, producer_id=8)
    site.append(0, is_transactional=True)
    site.upload()
    site.append(1, producer_id=8)
    site.lose()
    site.upload()
    assert site.partition.slices[-1].gap is not None
    site.disk = MemoryFileSystem()
    site.logs = site.start()
    assert site.log.offsets.log_end_offset == 3
    assert site.append(0, producer_id=8) == 0, "it repeats a batch that is in the store"
    with pytest.raises(OutOfOrderSequenceError):
        site.append(2, producer_id=8)
    assert site.append(1, producer_id=8) == 3, "it repeats a batch that is lost"
    assert site.log.offsets.last_stable_offset == 4, "the gap has ended the transaction"


def test_a_gap_is_as_old_as_the_store_says() -> None:
    site = LossySite(skew_ms=MAX_CLOCK_SKEW_MS - 1000)
    site.append(0)
    site.lose()
    site.upload()
    gap = site.partition.slices[-1].gap
    assert gap is not None
    assert site.clock.now_ms() - gap.time_ms == MAX_CLOCK_SKEW_MS - 1000


def test_no_gap_is_recorded_by_a_wrong_clock() -> None:
    site = LossySite(skew_ms=2 * MAX_CLOCK_SKEW_MS)
    site.append(0)
    site.lose()
    site.append(1)
    report = site.upload()
    assert [(one.topic_partition, one.reason) for one in report.refused] == [(T0, CLOCK)]
    assert (report.failed, list(site.partition.slices)) == ([], [])
