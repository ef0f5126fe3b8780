"""Scans of logs with transactions, wherever slices end, beside an oracle that knows what became of each."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import ObjectNotFoundError, UnsupportedOperationError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.objectstore.counting import CountingObjectStore
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.slice_scan import scan
from stratalog.pipeline.topic_snapshot import read_snapshot
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_store import TieredStore
from tests.support.tiered.unstable_uploads import unstable_uploads

T0 = TopicPartition("t", 0)
PLAIN = -1
"""Instead of a producer's id."""
COMMITTED = IsolationLevel.READ_COMMITTED


class Step(NamedTuple):
    """`producer` sends some records, or its transaction ends; then the segment may end, and be uploaded."""

    producer: int
    record_count: int
    ends: bool
    committed: bool
    rolls: bool
    uploads: bool


STEPS = st.lists(
    st.builds(
        Step,
        producer=st.sampled_from([PLAIN, 1, 2, 3]),
        record_count=st.integers(1, 3),
        ends=st.booleans(),
        committed=st.booleans(),
        rolls=st.booleans(),
        uploads=st.booleans(),
    ),
    max_size=30,
)


class Transaction:
    """Its records, and its marker once there is one."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.marker_offset = sys.maxsize
        self.is_committed = False


class TransactionalLog:
    """A partition whose uploads may end inside of transactions, as objects may, and what was done to it."""

    def __init__(self, max_object_bytes: int) -> None:
        clock = ManualClock()
        self.store = CountingObjectStore(MemoryObjectStore(clock))
        self.logs = TieredLogs(
            MemoryFileSystem(), self.store, clock, SequentialIds(1), max_object_bytes=max_object_bytes
        )
        topic = self.logs.create_topic("t", 1)
        self.tip = TopicIdPartition(topic.topic_id, 0)
        self.log = self.logs.logs[T0]
        self.transactions: list[Transaction] = []
        self._open: dict[int, Transaction] = {}
        self._sequences: dict[int, int] = {}
        self.records: list[int] = []

    def take(self, step: Step) -> None:
        if step.ends and step.producer in self._open:
            self.end(step.producer, committed=step.committed)
        else:
            self.send(step.producer, step.record_count)
        if step.rolls:
            self.log.roll()
        if step.uploads:
            self.upload()

    def send(self, producer: int, count: int = 1) -> None:
        offsets = range(self.log.offsets.log_end_offset, self.log.offsets.log_end_offset + count)
        identity = BatchProducer()
        if producer != PLAIN:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + count
            identity = BatchProducer(producer, 0, sequence, is_transactional=True)
            if producer not in self._open:
                self.transactions.append(Transaction())
                self._open[producer] = self.transactions[-1]
            self._open[producer].offsets += offsets
        now_ms = self.logs.clock.now_ms()
        records = [Record(0, now_ms, b"k", b"%d" % offset) for offset in offsets]
        self.log.appender.append_as_leader(encode_batch(records, producer=identity), self.logs.claimed.epoch)
        self.records += offsets

    def end(self, producer: int, *, committed: bool) -> None:
        found = self._open.pop(producer)
        found.is_committed = committed
        marker = self.log.appender.append_end_transaction_marker(
            producer, 0, 0, committed=committed, leader_epoch=self.logs.claimed.epoch
        )
        found.marker_offset = marker.base_offset

    def upload(self) -> int:
        """All that is sealed; returns where the tiered part ends."""
        self.log.flusher.flush()
        with unstable_uploads():
            assert not self.logs.upload().failed
        return self.log.offsets.tiered_end_offset

    def expected(self, isolation: IsolationLevel, log_start_offset: int) -> list[int]:
        """The offsets that a reader of what is tiered sees."""
        end_offset = self.log.offsets.tiered_end_offset
        hidden = set[int]()
        if isolation is COMMITTED:
            undecided = [
                one for one in self.transactions if one.marker_offset >= self.log.offsets.tiered_end_offset
            ]
            end_offset = min((end_offset, *(one.offsets[0] for one in undecided)))
            hidden.update(
                offset for one in self.transactions if not one.is_committed for offset in one.offsets
            )
        return [
            offset
            for offset in self.records
            if log_start_offset <= offset < end_offset and offset not in hidden
        ]


def scanned(store: ObjectStore, isolation: IsolationLevel) -> list[int]:
    """The offsets of the rows, in their order; each has its offset for a value."""
    spans = sorted(read_snapshot(store, "t", isolation), key=lambda span: span.first_offset)
    rows = [row for batch in scan(store, "t", spans, ("offset", "value")) for row in batch.to_pylist()]
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)
    return [row["offset"] for row in rows]


@given(STEPS, st.sampled_from([1, 300, 1 << 20]), st.floats(0, 1))
def test_a_scan_has_what_was_committed_or_all_there_is(
    steps: list[Step], max_object_bytes: int, start_share: float
) -> None:
    found = TransactionalLog(max_object_bytes)
    for step in steps:
        found.take(step)
    end_offset = found.upload()
    for log_start_offset in (0, int(end_offset * start_share)):
        found.logs.metadata.advance_log_start(
            {found.tip: log_start_offset}, epoch=found.logs.claimed.epoch, catalog_seq=None
        )
        for isolation in IsolationLevel:
            expected = found.expected(isolation, log_start_offset)
            assert scanned(found.store, isolation) == expected, (isolation, log_start_offset)


def committed_and_aborted() -> TransactionalLog:
    """Producer 1 aborts the records 0 and 2, whose marker lies in another object, commits 4, aborts 6."""
    found = TransactionalLog(1 << 20)
    found.send(1)
    found.send(PLAIN)
    found.send(1)
    found.log.roll()
    found.upload()
    found.end(1, committed=False)
    found.send(1)
    found.end(1, committed=True)
    found.send(1)
    found.end(1, committed=False)
    found.log.roll()
    assert found.upload() == 8
    return found


def test_a_marker_in_a_later_object_hides_the_records_before_it() -> None:
    found = committed_and_aborted()
    assert scanned(found.store, COMMITTED) == [1, 4]
    assert scanned(found.store, IsolationLevel.READ_UNCOMMITTED) == [0, 1, 2, 4, 6]


def test_a_scan_of_everything_asks_for_no_index() -> None:
    found = committed_and_aborted()
    spans = read_snapshot(found.store, "t")
    found.store.reset()
    for _ in scan(found.store, "t", spans, ("offset",)):
        pass
    assert found.store.total("GET").requests == len(spans) == 2


def test_without_transactions_a_committed_scan_costs_nothing_more() -> None:
    found = TransactionalLog(1)
    for _ in range(3):
        found.send(PLAIN)
        found.log.roll()
    found.upload()
    spans = read_snapshot(found.store, "t", COMMITTED)
    found.store.reset()
    for _ in scan(found.store, "t", spans, ("offset",)):
        pass
    assert found.store.total("GET").requests == len(spans) == 3


def test_an_index_that_compaction_deleted_says_run_it_again() -> None:
    found = committed_and_aborted()
    first, second = sorted(read_snapshot(found.store, "t", COMMITTED), key=lambda span: span.first_offset)
    found.store.delete_many([second.object_key])
    with pytest.raises(ObjectNotFoundError):
        list(scan(found.store, "t", [first], ("offset",)))


def test_what_an_early_version_did_not_tell_is_not_guessed() -> None:
    store = MemoryObjectStore(ManualClock())
    tiered = TieredStore(MemoryFileSystem(), store, ManualClock(), SequentialIds(1))
    tip = TopicIdPartition(tiered.catalog.create("t", 1, {}).topic_id, 0)
    producer = BatchProducer(7, 0, 0, is_transactional=True)
    tiered.upload({tip: [encode_batch([Record(0, 1, b"k", b"0")], producer=producer)]})
    tiered.upload({tip: [EndTransactionMarker(ControlType.ABORT, 0).to_batch(7, 0, 1, base_offset=1)]})
    assert scanned(store, IsolationLevel.READ_UNCOMMITTED) == [0]
    with pytest.raises(UnsupportedOperationError):
        scanned(store, COMMITTED)
