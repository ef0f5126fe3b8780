"""A log with transactions, and beside it what became of each: the oracle of readers of committed records."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import NamedTuple

from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.unstable_uploads import unstable_uploads

PRODUCERS = 3


@dataclasses.dataclass
class Transaction:
    """`marker_offset` lies behind every record while it is open."""

    producer_id: int
    first_offset: int
    marker_offset: int = sys.maxsize
    is_aborted: bool = False


class Written(NamedTuple):
    """A record; its value is its offset."""

    offset: int
    transaction: Transaction | None


Step = tuple[str, int, int]
"""An event, its producer, and a number of records."""
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "txn", "txn", "commit", "abort", "abort", "roll", "upload"]),
        st.integers(0, PRODUCERS - 1),
        st.integers(1, 3),
    ),
    min_size=10,
    max_size=40,
)


class TransactionHistory:
    """One partition of a server. Not thread-safe: one test uses it."""

    def __init__(
        self, logs: TieredLogs, *, is_unstable: bool = False, config: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`is_unstable`: uploads take open transactions along."""
        self.logs = logs
        self._uploads = unstable_uploads if is_unstable else nullcontext
        topic = logs.create_topic("t", 1, config)
        self.tip = TopicIdPartition(topic.topic_id, 0)
        self.log: UnifiedLog = next(iter(logs.logs.values()))
        self.records: list[Written] = []
        self.transactions: list[Transaction] = []
        self._open: dict[int, Transaction] = {}
        self._sequences: dict[int, int] = {}

    def play(self, steps: list[Step]) -> None:
        """`plain` records come from other producers than those of transactions."""
        for what, number, count in steps:
            match what:
                case "plain":
                    self.send(100 + number, count, is_transactional=False)
                case "txn":
                    self.send(number, count)
                case "commit" | "abort":
                    self.end(number, committed=what == "commit")
                case "roll":
                    self.log.roll()
                case _:
                    self.upload()

    def send(self, producer_id: int, count: int = 1, *, is_transactional: bool = True) -> None:
        """A batch of records; it begins a transaction where none is open."""
        offsets = range(self.log.offsets.log_end_offset, self.log.offsets.log_end_offset + count)
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + count
        if is_transactional and producer_id not in self._open:
            self._open[producer_id] = Transaction(producer_id, offsets[0])
            self.transactions.append(self._open[producer_id])
        transaction = self._open[producer_id] if is_transactional else None
        producer = BatchProducer(producer_id, 0, sequence, is_transactional)
        records = [Record(0, self.logs.clock.now_ms(), b"k", b"%d" % offset) for offset in offsets]
        codec = Codec.ZSTD if count == 2 else Codec.NONE
        self.log.appender.append_as_leader(
            encode_batch(records, producer=producer, codec=codec), self.logs.claimed.epoch
        )
        self.records += [Written(offset, transaction) for offset in offsets]

    def end(self, producer_id: int, *, committed: bool) -> None:
        """With or without a transaction: a coordinator may send a marker to a partition that has none."""
        marker = self.log.appender.append_end_transaction_marker(
            producer_id, 0, 0, committed=committed, leader_epoch=self.logs.claimed.epoch
        )
        transaction = self._open.pop(producer_id, None)
        if transaction is not None:
            transaction.marker_offset, transaction.is_aborted = marker.base_offset, not committed

    def upload(self) -> int:
        """Seal and upload everything; returns the tiered end."""
        self.logs.seal()
        with self._uploads():
            assert not self.logs.upload().failed
        return self.log.offsets.tiered_end_offset

    def stable_end(self, end_offset: int) -> int:
        """Where the first transaction begins that is not decided below `end_offset`."""
        return min((one.first_offset for one in self.open_at(end_offset)), default=end_offset)

    def open_at(self, end_offset: int) -> list[Transaction]:
        """The transactions that have begun below `end_offset` and not ended there."""
        return [one for one in self.transactions if one.first_offset < end_offset <= one.marker_offset]

    def readable(self, start_offset: int, end_offset: int, *, is_committed: bool) -> list[int]:
        """The offsets of [start_offset, end_offset) that a reader sees."""
        return [
            offset
            for offset, transaction in self.records
            if start_offset <= offset < end_offset
            and not (is_committed and transaction is not None and transaction.is_aborted)
        ]
