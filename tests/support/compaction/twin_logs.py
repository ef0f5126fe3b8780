"""The same log twice: once on a local disk, where the cleaner works, once in the object store, where objects
are compacted. Whatever happens to one happens to the other, at the same time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.log_to_clean import LogToClean, NextClean
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.compaction.job_execution import CompactedShard
from stratalog.compaction.plan.job_time import MAX_JOB_MS
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import TimestampType
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaning_history import limits
from tests.support.compaction.time_to_horizon import time_to_horizon_ms
from tests.support.compaction.versions import random_versions
from tests.support.decoded_records import decode_all
from tests.support.logs.log_consumer import committed_records
from tests.support.logs.log_machine import NEVER_MS, LogMachine
from tests.support.tiered.tiered_site import TieredSite

_PRODUCERS = 3
_EPOCH = 1


@dataclasses.dataclass(slots=True, eq=False)
class Twin:
    """One partition on both sides, and what was ever written to it."""

    local: UnifiedLog
    tiered: UnifiedLog
    tip: TopicIdPartition
    records: list[Record] = dataclasses.field(default_factory=list)
    sequences: dict[int, int] = dataclasses.field(default_factory=dict)
    open: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    """Offsets of each producer's open transaction."""
    aborted: set[int] = dataclasses.field(default_factory=set)
    """Offsets of records that were aborted."""
    has_transactions: bool = False


class TwinLogs:
    """Several partitions with one history on two sides. Not thread-safe: one test uses it."""

    def __init__(
        self, seed: int, *, with_transactions: bool, strategies: Sequence[str] = ("offset",)
    ) -> None:
        self.random = Random(seed)
        self._strategies = strategies
        self._has_versions = "offset" not in strategies
        self._with_transactions = with_transactions
        self._site = TieredSite(max_object_bytes=self.random.choice((700, 3_000, 1 << 20)))
        self.logs = self._site.start()
        self._machine = LogMachine(producer_id_expiration_ms=NEVER_MS)
        self._machine.open()
        self._keys = [b"key-%d" % number for number in range(self.random.randrange(1, 9))]
        self.twins = [
            twin
            for number in range(self.random.randrange(1, 3))
            for twin in self._create(f"topic-{number}", self.random.randrange(1, 4))
        ]

    def _create(self, name: str, partition_count: int) -> list[Twin]:
        config = {
            "cleanup.policy": "compact",
            # With versions a second clean follows at once, which would drop what the first one has stamped.
            "delete.retention.ms": str(self.random.choice((0, 1_000, 5_000)[self._has_versions :])),
            **self._strategy(),
            "message.timestamp.type": self.random.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        }
        topic = self.logs.create_topic(name, partition_count, config)
        return [self._twin(topic, number) for number in range(partition_count)]

    def _strategy(self) -> dict[str, str]:
        strategy = self.random.choice(self._strategies)
        return {"compaction.strategy": strategy, "compaction.strategy.header": "version"}

    def _twin(self, topic: TopicEntry, number: int) -> Twin:
        name = TopicPartition(topic.name, number)
        config = LogConfig.from_overrides({**topic.config, "remote.storage.enable": "false"})
        # A clean needs no time, and a job may.
        retention_ms = time_to_horizon_ms(config.delete_retention_ms)
        config = dataclasses.replace(config, delete_retention_ms=retention_ms)
        local = self._machine.manager.open_log(name, topic.topic_id, config)
        return Twin(local, self.logs.logs[name], TopicIdPartition(topic.topic_id, number))

    def step(self) -> None:
        """Something happens to one partition, or time passes."""
        twin = self.random.choice(self.twins)
        kinds = ("append", "append_as", "end", "trim", "roll", "wait")
        weights = (6, 3, 2 if self._with_transactions else 0, 0.3, 1, 1)
        match self.random.choices(kinds, weights)[0]:
            case "append":
                self._append(twin, BatchProducer())
            case "append_as":
                self._append_as(twin, self.random.randrange(_PRODUCERS))
            case "end":
                self._end(twin, self.random.randrange(_PRODUCERS))
            case "trim":
                self._trim(twin)
            case "roll":
                twin.local.roll()
                twin.tiered.roll()
            case _:
                self.advance(self.random.choice((1, 999, 1_000, 4_000, MAX_JOB_MS)))

    def advance(self, duration_ms: int) -> None:
        """Time passes for both."""
        self._site.clock.advance(duration_ms)
        self._machine.clock.advance(duration_ms)
        assert self._site.clock.now_ms() == self._machine.clock.now_ms()

    def end_all(self) -> None:
        """End all transactions."""
        for twin in self.twins:
            for producer_id in sorted(twin.open):
                self._end(twin, producer_id)

    def _append_as(self, twin: Twin, producer_id: int) -> None:
        is_transactional = producer_id in twin.open or (
            self._with_transactions and self.random.random() < 0.7
        )
        # A producer of its own for each kind: one that is transactional stays so.
        sent_as = producer_id if is_transactional else producer_id + _PRODUCERS
        sequence = twin.sequences.get(sent_as, 0)
        records = self._append(twin, BatchProducer(sent_as, 0, sequence, is_transactional))
        twin.sequences[sent_as] = sequence + len(records)
        if is_transactional:
            twin.has_transactions = True
            twin.open.setdefault(producer_id, []).extend(record.offset for record in records)

    def _end(self, twin: Twin, producer_id: int) -> None:
        """Nothing where none is open."""
        if producer_id not in twin.open:
            return
        is_committed = self.random.random() < 0.6
        offsets = twin.open.pop(producer_id)
        if not is_committed:
            twin.aborted.update(offsets)
        for log in (twin.local, twin.tiered):
            log.appender.append_end_transaction_marker(
                producer_id, 0, 0, committed=is_committed, leader_epoch=_EPOCH
            )

    def _append(self, twin: Twin, producer: BatchProducer) -> list[Record]:
        random, now_ms = self.random, self._site.clock.now_ms()
        records = [self._record(now_ms) for _ in range(random.choice((1, 1, 2, 5)))]
        data = encode_batch(records, codec=random.choice((Codec.NONE, *Codec)), producer=producer)
        info = twin.local.appender.append_as_leader(data, _EPOCH)
        assert twin.tiered.appender.append_as_leader(data, _EPOCH).base_offset == info.base_offset
        is_stamped = twin.local.local_log.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        placed = [
            record._replace(
                offset=info.base_offset + delta, timestamp_ms=now_ms if is_stamped else record.timestamp_ms
            )
            for delta, record in enumerate(records)
        ]
        twin.records += placed
        return placed

    def _record(self, now_ms: int) -> Record:
        random = self.random
        value = None if random.random() < 0.3 else b"%d" % random.randrange(10**6) * random.choice((1, 1, 30))
        headers: tuple[tuple[str, bytes | None], ...] = (
            (("source", random.choice((None, b"", b"test"))),) if random.random() < 0.3 else ()
        )
        headers += random_versions(random)
        return Record(0, now_ms - random.randrange(3_000), random.choice(self._keys), value, headers)

    def _trim(self, twin: Twin) -> None:
        """DeleteRecords, below what both sides have."""
        offset = self.random.randint(twin.local.offsets.log_start_offset, self.end_offset(twin))
        if offset > twin.local.offsets.log_start_offset:
            twin.local.increment_log_start_offset(offset)
            epoch = self.logs.claimed.epoch
            self.logs.metadata.advance_log_start({twin.tip: offset}, epoch=epoch, catalog_seq=None)

    def compact(self) -> tuple[CompactionReport, ...]:
        """Upload what is decided, and compact it on the one side; clean the same range on the other."""
        self.logs.seal()
        assert not self.logs.upload().failed
        for twin in self.twins:
            twin.local.roll()
            end_offset = self.end_offset(twin, Isolation.TXN_COMMITTED)
            self._clean(twin.local, twin.local.offsets.log_start_offset, end_offset)
            if self._has_versions:
                # A due tombstone whose key is dirty goes with the next clean, which comes at once.
                self._clean(twin.local, end_offset, end_offset)
        return self._compactor().run(list(self.logs.catalog.topics()))

    def _clean(self, log: UnifiedLog, first_dirty_offset: int, end_offset: int) -> None:
        to_clean = LogToClean(
            log=log,
            first_dirty_offset=first_dirty_offset,
            first_uncleanable_offset=end_offset,
            clean_bytes=0,
            cleanable_bytes=1,
            compaction_delay_ms=0,
            next_clean=NextClean(self._machine.clock.now_ms(), is_due=first_dirty_offset == end_offset),
        )
        LogClean(self._machine.clock, SequentialIds(self.random.randrange(1 << 20))).run(to_clean, limits())
        log.check()

    def _compactor(self) -> Compactor:
        logs, random = self.logs, self.random
        identity = StoreIdentity.find(logs.store)
        assert identity is not None
        settings = CompactionSettings(
            spool_directory="/compaction",
            read_chunk_bytes=random.choice((1, 100, 1 << 20)),
            job_memory_bytes=random.choice((0, 1 << 20)),
            hash_part_entries=random.choice((1, 1 << 20)),
        )
        shard = CompactedShard(logs.store, identity.store_id, logs.metadata, logs.catalog)
        return Compactor(self._site.disk, self._site.clock, self._site.ids, shard, settings)

    def end_offset(self, twin: Twin, isolation: Isolation = Isolation.HIGH_WATERMARK) -> int:
        """The end of what both sides have compacted, at most; for readers of committed records, where the
        objects alone leave a transaction open."""
        partition = self.logs.metadata.refresh().partition(twin.tip)
        is_committed = isolation is Isolation.TXN_COMMITTED
        return partition.stable_end_offset if is_committed else partition.tiered_end_offset

    def local_records(self, twin: Twin, isolation: Isolation = Isolation.HIGH_WATERMARK) -> list[Record]:
        """The records that a reader gets of the cleaned log, without markers."""
        return self._read(twin, isolation, twin.local.reader.read)

    def tiered_records(self, twin: Twin, isolation: Isolation = Isolation.HIGH_WATERMARK) -> list[Record]:
        """The records that a reader gets of the compacted objects alone, without markers."""
        return self._read(twin, isolation, partial(self.logs.reader.read, twin.tip))

    def _read(
        self, twin: Twin, isolation: Isolation, read: Callable[[int, int, Isolation], FetchData]
    ) -> list[Record]:
        found: list[Record] = []
        offset, end_offset = twin.local.offsets.log_start_offset, self.end_offset(twin, isolation)
        while offset < end_offset:
            data = read(offset, 1 << 20, isolation)
            is_committed = isolation is Isolation.TXN_COMMITTED
            records = committed_records(data, offset) if is_committed else decode_all(data.batches)
            found += [record for record in records if offset <= record.offset < end_offset]
            assert data.next_offset > offset, "a reader would stand still"
            offset = data.next_offset
        return found
