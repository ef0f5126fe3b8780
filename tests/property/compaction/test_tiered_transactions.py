"""Transactions in the object store: what a reader of committed records gets from there, whatever lies in
which slice, against a history that was only written down.

The reader leaves out what `aborted_transactions` says by the rule that Kafka's consumer goes by; the history
knows of each record how its transaction ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.log.read.fetch_data import FetchData
from stratalog.log.read.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch import batches, decode
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.tier.remote_reader import RemoteReader
from stratalog.remote.tier.slice_source import RemoteReaderSettings
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_logs import TieredLogs

PRODUCERS = 3
SMALL = RemoteReaderSettings(read_ahead_bytes=128, data_cache_bytes=512, index_cache_bytes=2048)


@dataclasses.dataclass
class Transaction:
    """`marker_offset` is None while it is open."""

    producer_id: int
    first_offset: int
    marker_offset: int | None = None
    is_aborted: bool = False


class Written(NamedTuple):
    offset: int
    value: bytes
    transaction: Transaction | None


class History:
    """A log, and beside it all that was done to it. Guarded by its test."""

    def __init__(self, log: UnifiedLog, epoch: int) -> None:
        self.log = log
        self.records: list[Written] = []
        self.transactions: list[Transaction] = []
        self._epoch = epoch
        self._open: dict[int, Transaction] = {}
        self._sequences: dict[int, int] = {}

    def append(self, producer_id: int, count: int, *, is_transactional: bool, codec: Codec) -> None:
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + count
        producer = BatchProducer(producer_id, 0, sequence, is_transactional)
        values = [b"%d-%d" % (producer_id, sequence + number) for number in range(count)]
        batch = encode_batch([Record(0, 1, b"k", value) for value in values], producer=producer, codec=codec)
        base_offset = self.log.appender.append_as_leader(batch, self._epoch).base_offset
        transaction = None
        if is_transactional:
            if producer_id not in self._open:
                self._open[producer_id] = Transaction(producer_id, base_offset)
                self.transactions.append(self._open[producer_id])
            transaction = self._open[producer_id]
        self.records += [
            Written(base_offset + number, value, transaction) for number, value in enumerate(values)
        ]

    def end(self, producer_id: int, *, is_aborted: bool) -> None:
        """With or without a transaction: a coordinator may send a marker to a partition that has none."""
        info = self.log.appender.append_end_transaction_marker(
            producer_id, 0, 0, committed=not is_aborted, leader_epoch=self._epoch
        )
        transaction = self._open.pop(producer_id, None)
        if transaction is not None:
            transaction.marker_offset, transaction.is_aborted = info.base_offset, is_aborted

    def stable_end(self, end_offset: int) -> int:
        """Where the first transaction begins that is not decided below `end_offset`."""
        return min((one.first_offset for one in self.open_at(end_offset)), default=end_offset)

    def open_at(self, end_offset: int) -> list[Transaction]:
        return [
            one
            for one in self.transactions
            if one.first_offset < end_offset
            and (one.marker_offset is None or one.marker_offset >= end_offset)
        ]

    def readable(self, start_offset: int, end_offset: int, *, is_committed: bool) -> list[tuple[int, bytes]]:
        return [
            (record.offset, record.value)
            for record in self.records
            if start_offset <= record.offset < end_offset
            and not (is_committed and record.transaction is not None and record.transaction.is_aborted)
        ]


steps = st.lists(
    st.tuples(
        st.sampled_from(["plain", "txn", "txn", "commit", "abort", "abort", "roll", "upload"]),
        st.integers(0, PRODUCERS - 1),
        st.integers(1, 3),
    ),
    min_size=20,
    max_size=60,
)


def play(history: History, logs: TieredLogs, script: Sequence[tuple[str, int, int]]) -> None:
    for what, number, count in script:
        if what == "plain":
            history.append(100 + number, count, is_transactional=False, codec=Codec.NONE)
        elif what == "txn":
            history.append(number, count, is_transactional=True, codec=[Codec.NONE, Codec.ZSTD][count % 2])
        elif what in {"commit", "abort"}:
            history.end(number, is_aborted=what == "abort")
        elif what == "roll":
            history.log.roll()
        else:
            logs.seal()
            logs.upload()


def consumed(data: FetchData, offset: int) -> list[tuple[int, bytes]]:
    """What Kafka's consumer hands out of a fetch at `read_committed`."""
    waiting = sorted(data.aborted_transactions, key=lambda one: one.first_offset)
    aborted: set[int] = set()
    found: list[tuple[int, bytes]] = []
    for position, header in batches(data.batches):
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborted.add(waiting.pop(0).producer_id)
        if header.is_control:
            aborted.discard(header.producer_id)
            continue
        if header.is_transactional and header.producer_id in aborted:
            continue
        records = decode(data.batches, position)
        found += [(record.offset, record.value or b"") for record in records if record.offset >= offset]
    return found


def check_reads(reader: RemoteReader, tip: TopicIdPartition, history: History, max_bytes: int) -> None:
    end_offset = history.log.offsets.tiered_end_offset
    for isolation, end in (
        (Isolation.HIGH_WATERMARK, end_offset),
        (Isolation.TXN_COMMITTED, history.stable_end(end_offset)),
    ):
        is_committed = isolation is Isolation.TXN_COMMITTED
        for offset in range(end_offset + 1):
            data = reader.read(tip, offset, max_bytes, isolation)
            assert data.next_offset <= max(end, offset)
            assert data.next_offset > offset or offset >= end
            assert consumed(data, offset) == history.readable(
                offset, data.next_offset, is_committed=is_committed
            )


def check_slices(logs: TieredLogs, history: History, partition: TieredPartition) -> None:
    """Every slice says what the history says of its range, and of its end."""
    for live in partition.slices:
        entry = live.entry
        opened = {(one.producer_id, one.first_offset) for one in history.open_at(live.end_offset)}
        assert set(entry.open_transactions) == opened
        assert entry.stable_end_offset == history.stable_end(live.end_offset)
        aborted = [
            (one.producer_id, one.first_offset, one.marker_offset, history.stable_end(one.marker_offset + 1))
            for one in sorted(history.transactions, key=lambda one: one.marker_offset or 0)
            if one.is_aborted
            and one.marker_offset is not None
            and live.base_offset <= one.marker_offset < live.end_offset
        ]
        index = read_slice_index(logs.store, logs.metadata.layout, live.object_name, entry)
        assert list(index.aborted) == aborted
        assert entry.has_aborted == bool(aborted)


@given(steps, st.integers(150, 1000), st.sampled_from([0, 200, 1 << 20]), st.booleans(), st.integers(0, 1))
def test_committed_records_are_read_from_the_store_as_they_were_written(
    script: list[tuple[str, int, int]],
    max_object_bytes: int,
    max_bytes: int,
    loses_transaction_index: bool,
    stays_open: int,
) -> None:
    clock = ManualClock()
    store = MemoryObjectStore(clock)
    disk = MemoryFileSystem()
    logs = TieredLogs(disk, store, clock, SequentialIds(1), max_object_bytes=max_object_bytes)
    topic = logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    history = History(log, logs.claimed.epoch)
    play(history, logs, script)
    for producer_id in range(PRODUCERS - stays_open):
        history.end(producer_id, is_aborted=producer_id != 1)
    logs.seal()
    if loses_transaction_index:
        # What is tiered outlives the disk: its damage must not become the truth.
        for name in disk.list_directory(log.local_log.directory):
            if name.endswith(".txnindex"):
                disk.unlink(f"{log.local_log.directory}/{name}")
    report = logs.upload()
    assert not report.failed
    tip = TopicIdPartition(topic.topic_id, 0)
    partition = logs.metadata.state().partition(tip)
    assert partition.stable_end_offset == history.stable_end(partition.tiered_end_offset)
    check_slices(logs, history, partition)
    log.retention.delete_local_segments(ignore_retention=True)
    for reader_settings in (SMALL, RemoteReaderSettings()):
        check_reads(RemoteReader(store, logs.metadata, reader_settings), tip, history, max_bytes)
