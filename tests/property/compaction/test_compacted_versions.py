"""Random lives of a partition whose strategy changes, with transactions and deletions: after each compaction
the records that are left are compared with all that was written, by an oracle of its own."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.proofs import Scratch, proved, small_means
from tests.support.compaction.time_to_horizon import time_to_horizon_ms
from tests.support.compaction.versions import HEADER, STRATEGIES, place_of, random_versions
from tests.support.compaction.written_transactions import WrittenTransactions
from tests.support.logs.sampling import examples_of
from tests.support.tiered.tiered_store import TieredStore

DELETE_RETENTION_MS = 1_000
PRODUCERS = (7, 8)
STEPS = 14


class VersionedHistory:
    """A partition and its oracle. Not thread-safe: one test uses it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(seed))
        self.strategy = self.random.choice(STRATEGIES)
        self.topic_id = self.tiered.catalog.create("t", 1, self._config()).topic_id
        self.tip = TopicIdPartition(self.topic_id, 0)
        self.written = WrittenTransactions()
        self._keys = [b"key-%d" % number for number in range(self.random.randrange(1, 5))]

    def _config(self) -> dict[str, str]:
        return {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(DELETE_RETENTION_MS),
            "min.cleanable.dirty.ratio": "0.0",
            "compaction.strategy": self.strategy,
            "compaction.strategy.header": HEADER,
        }

    def step(self) -> None:
        match self.random.choices(("upload", "trim", "alter", "wait", "compact"), (6, 1, 1, 1, 4))[0]:
            case "upload":
                self.upload()
            case "trim":
                partition = self.tiered.partition(self.tip)
                offset = self.random.randint(partition.log_start_offset, partition.tiered_end_offset)
                if offset > partition.log_start_offset:
                    self.tiered.advance_log_start(self.tip, offset)
            case "alter":
                self.alter(self.random.choice(STRATEGIES))
            case "wait":
                self.clock.advance(self.random.choice((1, time_to_horizon_ms(DELETE_RETENTION_MS))))
            case _:
                self.compact()

    def alter(self, strategy: str) -> None:
        self.strategy = strategy
        self.tiered.catalog.alter(self.topic_id, config=self._config())

    def upload(self) -> None:
        base_offset = self.written.next_offset
        batches = [self._batch() for _ in range(self.random.randrange(1, 5))]
        self.tiered.upload({self.tip: batches}, ends={self.tip: self.written.slice_end(base_offset)})

    def _batch(self) -> bytes:
        random, now_ms = self.random, self.clock.now_ms()
        if random.random() < 0.2:
            return self.written.end(random.choice(PRODUCERS), now_ms, is_aborted=random.random() < 0.5)
        records = [
            Record(
                0,
                now_ms - random.choice((0, 0, 1, 5_000)),
                random.choice(self._keys),
                random.choice((None, b"v", b"w")),
                random_versions(random),
            )
            for _ in range(random.choice((1, 2, 4)))
        ]
        producer_id = random.choice(PRODUCERS) if random.random() < 0.3 else None
        return self.written.data(records, random.choice((Codec.NONE, Codec.ZSTD)), producer_id)

    def compact(self) -> None:
        """Once, and compare."""
        before = self.tiered.records(self.tip)
        reports = self._compactor().run()
        assert all(report.refused is None and report.refused_partitions == () for report in reports)
        self._require(before, self.tiered.records(self.tip))

    def _compactor(self) -> Compactor:
        random = self.random

        def change(base: CompactionSettings) -> CompactionSettings:
            return dataclasses.replace(
                base,
                max_inputs_per_job=random.choice((2, 3, 64)),
                merge_fanout=3,
                hash_part_entries=random.choice((1, 1 << 20)),
            )

        return self.tiered.compactor(change=change)

    def _require(self, before: list[Record], after: list[Record]) -> None:
        written, partition = self.written, self.tiered.partition(self.tip)
        start_offset, upto = partition.log_start_offset, partition.compacted_upto
        assert [one for one in before if one in after] == after, "a record came, or changed"
        rivals = [one for one in before if written.is_committed(one.offset)]
        for record in before:
            if record in after or written.is_aborted(record.offset):
                continue
            mine = place_of(record, self.strategy)
            best = max(place_of(one, self.strategy) for one in rivals if one.key == record.key)
            is_over = record.is_tombstone and record.offset < upto
            assert best > mine or is_over, f"a record went for nothing: {record}"
        below = [one.key for one in after if one.offset < upto and one.offset >= start_offset]
        assert len(below) == len(set(below)), "a key has two records below compacted_upto"
        written.note_compaction(self.clock.now_ms(), upto)

    def require_proof(self) -> None:
        """The proof of the objects has nothing to say."""
        scratch = Scratch()
        means = small_means(self.store, self.clock, self.tiered.layout, self.random, scratch)
        self.tiered.metadata.refresh()
        assert not proved(means, self.tiered.metadata, self.tiered.catalog).findings
        scratch.require_given_back()


def by_header() -> VersionedHistory:
    """A partition whose versions are in a header; its seed does not matter."""
    history = VersionedHistory(1)
    history.alter("header")
    return history


def versioned(key: bytes, number: int) -> Record:
    return Record(0, 0, key, b"v", ((HEADER, number.to_bytes(8, "big", signed=True)),))


def upload(history: VersionedHistory, *batches: list[Record]) -> None:
    base_offset = history.tiered.partition(history.tip).tiered_end_offset
    encoded = [history.written.data(batch, Codec.NONE) for batch in batches]
    history.tiered.upload({history.tip: encoded}, ends={history.tip: history.written.slice_end(base_offset)})


def left(history: VersionedHistory) -> list[int]:
    return [record.offset for record in history.tiered.records(history.tip)]


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_deleted_record_beats_no_other(is_one_batch: bool) -> None:
    """Its slice has it still, and the key stream, too."""
    history = by_header()
    best, good = [versioned(b"a", 9)], [versioned(b"a", 3)]
    upload(history, *([best + good] if is_one_batch else [best, good]))
    history.tiered.advance_log_start(history.tip, 1)
    upload(history, [versioned(b"a", 2)])
    history.compact()
    assert left(history) == [1]
    history.require_proof()


def test_a_record_below_its_slice_beats_no_other() -> None:
    """The log start was moved into a batch before its upload."""
    history = by_header()
    history.tiered.advance_log_start(history.tip, 1)
    upload(history, [versioned(b"a", 9), versioned(b"a", 3), versioned(b"b", 1)])
    (live,) = history.tiered.partition(history.tip).slices
    assert (live.entry.base_offset, live.entry.key_stream) == (1, None)
    upload(history, [versioned(b"a", 2)])
    history.compact()
    assert left(history) == [1, 2]
    history.require_proof()


@settings(max_examples=examples_of(2))
@given(st.integers(0, 2**32))
def test_only_a_record_with_a_lower_version_goes(seed: int) -> None:
    history = VersionedHistory(seed)
    for _ in range(STEPS):
        history.step()
    for _ in range(4):
        history.compact()
    history.require_proof()
