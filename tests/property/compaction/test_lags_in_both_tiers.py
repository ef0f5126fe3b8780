"""The lags of compaction bind the same records in both tiers, also where records have no time.

Such a record is as old as its file on the local disk, and as its upload in the object store. Here both come
into being at once, so the local cleaner and the compaction of objects have to agree, after each step of time.
"""

from __future__ import annotations

import dataclasses
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaning_history import limits
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import LogMachine
from tests.support.logs.sampling import examples_of
from tests.support.tiered.tiered_store import TieredStore

LAG_MS = 1_000
ALWAYS, RARELY = "0", "0.9"


class BothTiers:
    """One partition in a local log and in the store. Used by one thread."""

    def __init__(self, *, merge_fanout: int = 1 << 20, **lags: int) -> None:
        """`lags`: keys of a topic, with underscores. `merge_fanout`: so many small objects become one."""
        overrides = {key.replace("_", "."): str(value) for key, value in lags.items()}
        ratio = ALWAYS if "min_compaction_lag_ms" in lags else RARELY
        overrides |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": ratio}
        disk = MemoryFileSystem()
        config = LogConfig.from_overrides({**overrides, "remote.storage.enable": "false"})
        self.machine = LogMachine(disk, dataclasses.replace(config, retention_ms=UNLIMITED))
        self.clock = self.machine.clock
        disk.now_ms = self.clock.now_ms
        self.log = self.machine.start()
        store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), store, self.clock, SequentialIds(1))
        self.births: list[int] = []
        """When each record was written, by its offset."""
        self._merge_fanout = merge_fanout
        self.cleaned_upto = 0
        """The end of what is clean in the local log."""
        self.tip = TopicIdPartition(self.tiered.catalog.create("t", 1, overrides).topic_id, 0)

    def write(self, *, is_dated: bool, value_bytes: int = 10) -> None:
        """A segment and a slice with the same record."""
        timestamp_ms = self.clock.now_ms() if is_dated else NO_TIMESTAMP
        base_offset = self.log.offsets.log_end_offset
        batch = encode_batch(
            [Record(0, timestamp_ms, b"key", bytes(value_bytes))], base_offset=base_offset, leader_epoch=1
        )
        self.log.appender.append_as_follower(batch)
        self.log.roll()
        self.tiered.upload({self.tip: [batch]})
        self.births.append(self.clock.now_ms())

    def compact(self) -> int:
        """Do what is due in both tiers; returns the end of what is compacted, which is the same."""
        self.compact_each()
        assert self.cleaned_upto == self.compacted_upto
        assert read_local(self.log) == self.tiered.records(self.tip)
        return self.cleaned_upto

    def compact_each(self) -> None:
        """Do what is due in both tiers."""
        cleanings = self.machine.manager.cleaner
        while (chosen := cleanings.take_filthiest()) is not None:
            result = LogClean(self.clock, SequentialIds()).run(chosen, limits())
            cleanings.done(chosen, result.end_offset, result.next_clean_ms)
            self.cleaned_upto = result.end_offset
        compactor = self.tiered.compactor(change=self._merging)
        while compactor.plan().jobs:
            assert all(report.refused is None for report in compactor.run())

    def _merging(self, before: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(before, merge_fanout=self._merge_fanout)

    @property
    def compacted_upto(self) -> int:
        return self.tiered.partition(self.tip).compacted_upto

    def first_later_than(self, time_ms: int) -> int:
        """The offset of the first record that was written later."""
        return next((offset for offset, at in enumerate(self.births) if at > time_ms), len(self.births))

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)


@pytest.mark.parametrize("is_dated", [True, False])
def test_a_young_record_takes_no_part_in_either_tier(is_dated: bool) -> None:
    both = BothTiers(min_compaction_lag_ms=LAG_MS)
    for _ in range(2):
        both.write(is_dated=is_dated)
    assert both.compact() == 0
    both.pass_ms(LAG_MS - 1)
    assert both.compact() == 0
    both.write(is_dated=is_dated)
    both.pass_ms(1)
    assert both.compact() == 2
    both.pass_ms(LAG_MS)
    assert both.compact() == 3


@pytest.mark.parametrize("is_dated", [True, False])
def test_a_record_that_has_waited_too_long_forces_both_tiers(is_dated: bool) -> None:
    both = BothTiers(max_compaction_lag_ms=LAG_MS)
    both.write(is_dated=is_dated, value_bytes=1000)
    assert both.compact() == 1, "all of it is dirty"
    both.pass_ms(10 * LAG_MS)
    both.write(is_dated=is_dated)
    both.pass_ms(LAG_MS - 1)
    both.write(is_dated=is_dated)
    assert both.compact() == 1
    both.pass_ms(2)
    assert both.compact() == 3


LAGS = st.sampled_from(("min_compaction_lag_ms", "max_compaction_lag_ms"))


def write_some(both: BothTiers, random: Random) -> None:
    for _ in range(random.randrange(3)):
        both.write(is_dated=random.random() < 0.5)
        # A lag in the object store ends a millisecond earlier; no time here is as long as a lag.
        both.pass_ms(random.choice((0, 3, 701)))


@settings(max_examples=examples_of(10))
@given(st.integers(0, 2**32), LAGS)
def test_both_tiers_agree_on_the_records_that_lags_bind(seed: int, lag: str) -> None:
    random, both = Random(seed), BothTiers(**{lag: LAG_MS})
    both.write(is_dated=random.random() < 0.5, value_bytes=1000)
    for _ in range(8):
        write_some(both, random)
        both.compact()
        both.pass_ms(random.choice((0, 130, 1_201)))


@settings(max_examples=examples_of(10))
@given(st.integers(0, 2**32), LAGS)
def test_merges_of_objects_free_no_record_of_a_lag(seed: int, lag: str) -> None:
    """Records without a time lie beside others in the merged slices."""
    random, both = Random(seed), BothTiers(merge_fanout=3, **{lag: LAG_MS})
    both.write(is_dated=random.random() < 0.5, value_bytes=1000)
    for _ in range(8):
        write_some(both, random)
        both.compact_each()
        if lag == "min_compaction_lag_ms":
            first_young = both.first_later_than(both.clock.now_ms() - LAG_MS)
            assert both.compacted_upto <= first_young == both.cleaned_upto
        both.pass_ms(random.choice((0, 130, 1_201)))
    both.pass_ms(LAG_MS + 1)
    assert both.compact() == len(both.births)
