"""A compacted log as its users know it: all that was ever written stands beside it.

Nothing here knows how a clean works. What is expected follows from what was published: which records are
committed, which of them is the last of its key, and what a table holds that applies them in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.cleaner.clean.clean_result import CleanResult
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import BatchHeader, TimestampType
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaning_history import limits
from tests.support.logs.log_consumer import Consumer, table_of
from tests.support.logs.log_machine import NEVER_MS, LogMachine

CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    retention_ms=UNLIMITED,
    segment_bytes=700,
    index_interval_bytes=100,
    remote_storage_enable=False,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=50_000,
)
KILLED = Survival(Kept.ALL, Kept.ALL)
"""All writes survive, because only the process ends."""


class Published(NamedTuple):
    """A record that a user wrote, with the transaction that it is a part of, if any."""

    record: Record
    transaction: tuple[int, int] | None = None
    """Producer, and which of its transactions."""


class CompactedLog:
    """One log, its machine and its history. Used by one thread."""

    def __init__(self, config: LogConfig = CONFIG, *, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.machine = LogMachine(MemoryFileSystem(), config, producer_id_expiration_ms=NEVER_MS)
        self.log = self.machine.start()
        self.published: dict[int, Published] = {}
        self.outcomes: dict[tuple[int, int], bool] = {}
        """Whether the transactions that were ended were committed."""
        self.leader_epoch = 1
        self.last_sent: dict[int, tuple[bytes, int]] = {}
        """The last batch of each producer, as it was sent, and the batch's last offset."""
        self._marker_offsets: dict[tuple[int, int], int] = {}
        self._open: dict[int, int] = {}
        self._transaction_count = 0
        self._sequences: dict[int, int] = {}

    @property
    def now_ms(self) -> int:
        return self.machine.clock.now_ms()

    def put(self, *pairs: str, codec: Codec = Codec.NONE, txn: int | None = None) -> None:
        """One batch of `key=value`, or `key` alone for a tombstone."""
        records: list[Record] = []
        for pair in pairs:
            key, separator, value = pair.partition("=")
            made = Record(0, self.now_ms, key.encode(), value.encode() if separator else None)
            records.append(made)
        self.append(records, codec=codec, producer_id=txn, is_transactional=txn is not None)

    def append(
        self,
        records: Sequence[Record],
        *,
        codec: Codec = Codec.NONE,
        producer_id: int | None = None,
        is_transactional: bool = False,
    ) -> bytes:
        """One batch; returns it as it was sent."""
        producer = BatchProducer()
        transaction = None
        if producer_id is not None:
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + len(records)
            if is_transactional and producer_id not in self._open:
                self._transaction_count += 1
                self._open[producer_id] = self._transaction_count
            if is_transactional:
                transaction = producer_id, self._open[producer_id]
            producer = BatchProducer(producer_id, 0, sequence, is_transactional)
        data = encode_batch(records, codec=codec, producer=producer)
        info = self.log.appender.append_as_leader(data, self.leader_epoch)
        assert not info.is_duplicate
        if producer_id is not None:
            self.last_sent[producer_id] = data, info.last_offset
        is_stamped = self.log.local_log.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        for delta, one in enumerate(records):
            placed = one._replace(offset=info.base_offset + delta)
            if is_stamped:
                placed = placed._replace(timestamp_ms=self.now_ms)
            self.published[placed.offset] = Published(placed, transaction)
        return data

    def end(self, producer_id: int, *, committed: bool) -> None:
        """End the producer's transaction; nothing where none is open."""
        if producer_id in self._open:
            info = self.log.appender.append_end_transaction_marker(
                producer_id, 0, 0, committed=committed, leader_epoch=self.leader_epoch
            )
            transaction = producer_id, self._open.pop(producer_id)
            self.outcomes[transaction], self._marker_offsets[transaction] = committed, info.base_offset

    @property
    def open_producers(self) -> list[int]:
        return sorted(self._open)

    def clean(
        self,
        key_count: int = 1000,
        on_step: Callable[[], None] = lambda: None,
        *,
        io_buffer_bytes: int = 1,
    ) -> CleanResult | None:
        """Clean what the cleaner's manager says is due; None where nothing is. `on_step` is called often."""
        cleanings = self.machine.manager.cleaner
        chosen = cleanings.take_filthiest()
        if chosen is None:
            return None
        log = self.log

        def check_done() -> None:
            on_step()
            cleanings.check_done(log)

        made = limits(key_count, check_done, load_factor=1.0, io_buffer_bytes=io_buffer_bytes)
        result = LogClean(self.machine.clock, SequentialIds()).run(chosen, made)
        cleanings.done(chosen, result.end_offset, result.next_clean_ms)
        log.check()
        return result

    def clean_all(self, key_count: int = 1000) -> None:
        """Roll, and clean until nothing is due."""
        self.log.roll()
        for _ in range(1000):
            if self.clean(key_count) is None:
                return
        raise AssertionError("the cleaner finds something to clean again and again")

    def restart(self, *, is_clean: bool) -> None:
        """End the process, in order or not."""
        if is_clean:
            self.machine.stop()
        else:
            self.machine.kill()
        self._find_log()

    def lose_power(self, disk: MemoryFileSystem) -> None:
        """Go on where only that was left. What lies above the log's end then was never published, and a
        transaction whose marker does is open again."""
        self.restart_from(disk)
        end_offset = self.log.offsets.log_end_offset
        self.published = {offset: one for offset, one in self.published.items() if offset < end_offset}
        lost = [one for one in self.outcomes if self._marker_offsets[one] >= end_offset]
        for transaction in lost:
            del self.outcomes[transaction]
        undecided = {one.transaction for one in self.published.values()} - self.outcomes.keys()
        self._open = dict(one for one in undecided if one is not None)
        for entry in self.log.producers():
            if entry.current_txn_first_offset is not None and entry.producer_id not in self._open:
                # Nothing is left of its records.
                self._transaction_count += 1
                self._open[entry.producer_id] = self._transaction_count
        self._sequences = {entry.producer_id: entry.next_sequence for entry in self.log.producers()}
        self.last_sent = {one: sent for one, sent in self.last_sent.items() if sent[1] < end_offset}

    def disk_now(self, survival: Survival = KILLED) -> MemoryFileSystem:
        """The disk that the next process would find if this one were killed at this moment, or lost power."""
        disk = self.machine.memory
        return disk.after_crash(survival)

    def restart_from(self, disk: MemoryFileSystem) -> None:
        """Go on where only that was left."""
        self.machine.kill()
        self.machine.disk = disk
        self._find_log()

    def _find_log(self) -> None:
        self.log = self.machine.start()
        self.log.check()
        known = {entry.producer_id: entry.next_sequence for entry in self.log.producers()}
        for producer_id, (_, last_offset) in self.last_sent.items():
            if last_offset < self.log.offsets.log_start_offset:
                # Nothing in the log tells of it any more.
                self._sequences[producer_id] = known.get(producer_id, 0)

    def is_committed(self, offset: int) -> bool:
        transaction = self.published[offset].transaction
        return transaction is None or self.outcomes.get(transaction, False)

    def committed(self, start_offset: int = 0, end_offset: int | None = None) -> list[Record]:
        """Records that were published for readers of committed records in [start_offset, end_offset)."""
        return [
            written.record
            for offset, written in self.published.items()
            if offset >= start_offset
            and (end_offset is None or offset < end_offset)
            and self.is_committed(offset)
        ]

    def final_records(self, end_offset: int | None = None) -> list[Record]:
        """The last committed record of each key below there, in the order of offsets."""
        last = {one.key: one for one in self.committed(self.log.offsets.log_start_offset, end_offset)}
        return sorted(last.values(), key=lambda one: one.offset)

    def table(self, end_offset: int | None = None) -> dict[bytes | None, bytes]:
        """A table with all committed records from the log's start up to there applied."""
        return table_of(self.committed(self.log.offsets.log_start_offset, end_offset))

    def read(self, isolation: Isolation = Isolation.TXN_COMMITTED, max_bytes: int = 1 << 20) -> list[Record]:
        return Consumer(self.log, isolation=isolation).catch_up(max_bytes=max_bytes)

    def headers(self) -> list[BatchHeader]:
        """The headers of all batches that are there."""
        found: list[BatchHeader] = []
        offset = self.log.offsets.local_log_start_offset
        while offset < self.log.offsets.log_end_offset:
            data = self.log.reader.read(offset, 1 << 20, Isolation.LOG_END)
            found += [header for _, header in batches(data.batches)]
            offset = data.next_offset
        return found

    def read_table(self) -> dict[bytes | None, bytes]:
        """A table with all records applied that are read."""
        return table_of(self.read())

    def random_batch(self, key_count: int = 6) -> None:
        """A batch of any kind."""
        chance = self.chance
        records: list[Record] = []
        for _ in range(chance.randrange(1, 6)):
            key = b"k%d" % chance.randrange(key_count)
            value = b"v%d" % chance.getrandbits(40) if chance.random() < 0.75 else None
            headers = (("h", b"x"), ("", None)) if chance.random() < 0.2 else ()
            records.append(Record(0, self.now_ms - chance.randrange(3000), key, value, headers))
        codec = chance.choice([Codec.NONE] * 4 + list(Codec))
        kind = chance.random()
        producer_id = chance.randrange(3) if kind < 0.5 else None
        is_transactional = kind < 0.35 or (producer_id in self._open)
        self.append(records, codec=codec, producer_id=producer_id, is_transactional=is_transactional)
