"""A clean of a local log and compactions of the same log in the object store leave the same records."""

from __future__ import annotations

import dataclasses
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.log.log_config import LogConfig
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.compaction.time_to_horizon import time_to_horizon_ms
from tests.support.compaction.versions import HEADER, STRATEGIES, random_versions
from tests.support.compaction.written_transactions import WrittenTransactions
from tests.support.logs.log_ledger import read_local
from tests.support.logs.sampling import examples_of
from tests.support.tiered.tiered_store import TieredStore

PRODUCERS = (7, 8)


class BothTiers:
    """The same batches in a local log and in the store. Used by one thread."""

    def __init__(self, seed: int, strategy: str) -> None:
        self.random = Random(seed)
        self._has_versions = strategy != "offset"
        overrides = {"compaction.strategy": strategy, "compaction.strategy.header": HEADER}
        rule = LogConfig.from_overrides(overrides)
        self.local = Cleaned(
            dataclasses.replace(
                CONFIG,
                delete_retention_ms=time_to_horizon_ms(CONFIG.delete_retention_ms),
                compaction_strategy=rule.compaction_strategy,
                compaction_strategy_header=rule.compaction_strategy_header,
            )
        )
        clock = self.local.machine.clock
        self.tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(seed))
        config = {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(CONFIG.delete_retention_ms),
            "min.cleanable.dirty.ratio": "0.0",
            **overrides,
        }
        self.tip = TopicIdPartition(self.tiered.catalog.create("t", 1, config).topic_id, 0)
        self.written = WrittenTransactions()

    def write(self) -> None:
        """Some batches, and an upload of them. All transactions end."""
        base_offset = self.written.next_offset
        parts = [self._batch() for _ in range(self.random.randrange(1, 8))]
        parts += [self._end(one) for one in self.written.open_producers]
        for part in parts:
            self.local.log.appender.append_as_follower(part)
        self.tiered.upload({self.tip: parts}, ends={self.tip: self.written.slice_end(base_offset)})

    def compact(self) -> None:
        """Once in both tiers, and compare."""
        self.local.clean()
        if self._has_versions:
            # A due tombstone whose key is dirty goes with the next clean, which comes at once.
            self.local.clean(is_next_due=True)
        self.tiered.compactor().run()
        local = [one for one in read_local(self.local.log) if one.offset in self.written.records]
        assert local == self.tiered.records(self.tip)

    def _batch(self) -> bytes:
        random = self.random
        if random.random() < 0.3:
            return self._end(random.choice(PRODUCERS))
        now_ms = self.local.machine.clock.now_ms()
        records = [
            Record(
                0,
                now_ms - random.choice((0, 0, 1, 2_000)),
                b"%d" % random.randrange(5),
                random.choice((None, b"v", b"w")),
                random_versions(random),
            )
            for _ in range(random.choice((1, 2, 4)))
        ]
        codec = random.choice((Codec.NONE, Codec.ZSTD))
        return self.written.data(records, codec, random.choice((None, *PRODUCERS)))

    def _end(self, producer_id: int) -> bytes:
        now_ms = self.local.machine.clock.now_ms()
        return self.written.end(producer_id, now_ms, is_aborted=self.random.random() < 0.5)


@settings(max_examples=examples_of(5))
@given(st.integers(0, 2**32), st.sampled_from(STRATEGIES))
@example(2939597314, "header")
def test_local_cleans_and_compactions_of_objects_leave_the_same_records(seed: int, strategy: str) -> None:
    both = BothTiers(seed, strategy)
    for _ in range(4):
        both.write()
        both.compact()
        both.local.machine.clock.advance(
            both.random.choice((1, time_to_horizon_ms(CONFIG.delete_retention_ms)))
        )
