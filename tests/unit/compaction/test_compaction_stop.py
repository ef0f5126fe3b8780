"""A compaction that is stopped, at each place where it looks: it ends there, and nothing is half done."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from stratalog.base.errors import StoppingError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor, CompactorConfig
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.hasty_clock import HastyClock
from tests.support.cleaner.stop_at_look import StopAtLook
from tests.support.tiered.stores.open_streams_store import OpenStreamsStore
from tests.support.tiered.tiered_store import TieredStore

PARTITION_COUNT = 4
ROUND_COUNT = 2
SCRATCH = "/tiered/compaction"


class Shard:
    """Many partitions with values to compact, in few objects; jobs are small, and so are reads."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.filesystem = MemoryFileSystem()
        self.store = OpenStreamsStore(MemoryObjectStore(self.clock))
        self.tiered = TieredStore(self.filesystem, self.store, self.clock, SequentialIds(1))
        topic = self.tiered.catalog.create("state", PARTITION_COUNT, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(PARTITION_COUNT)]
        for number in range(ROUND_COUNT):
            self.tiered.upload({tip: [self._batch(tip, number)] for tip in self.tips})

    def _batch(self, tip: TopicIdPartition, number: int) -> bytes:
        base_offset = self.tiered.partition(tip).tiered_end_offset
        records = [Record(0, self.clock.now_ms(), key, b"%d" % number) for key in (b"a", b"b")]
        return encode_batch(records, base_offset=base_offset, leader_epoch=1)

    def compact(self, stop: StopSignal) -> tuple[CompactionReport, ...]:
        """Compact as a server does: only the compactor's own requests look at the signal."""
        settings = CompactionSettings(spool_directory=SCRATCH)
        return Compactor(
            self.filesystem,
            self.clock,
            SequentialIds(2),
            self.tiered.shard(self.store)._replace(store=StoppableObjectStore(self.store, stop)),
            dataclasses.replace(settings, read_chunk_bytes=100),
        ).run(["state"])

    def values(self) -> list[list[tuple[int, bytes | None]]]:
        return [[(r.offset, r.value) for r in self.tiered.records(tip)] for tip in self.tips]


class _CountingStop(StopAtLook):
    """Notes the requests that were sent when it is set."""

    __slots__ = ("_store", "asked_at_stop")

    def __init__(self, at: int, store: OpenStreamsStore) -> None:
        super().__init__(at)
        self._store = store
        self.asked_at_stop = -1

    @property
    def asked(self) -> int:
        return sum(count.requests for count in self._store.counts().values())

    def set(self) -> None:
        super().set()
        self.asked_at_stop = self.asked


ALL = [[(offset, b"%d" % (offset // 2)) for offset in range(2 * ROUND_COUNT)]] * PARTITION_COUNT
COMPACTED = [[(2, b"1"), (3, b"1")]] * PARTITION_COUNT


def test_a_compaction_ends_where_it_looks_and_leaves_what_was() -> None:
    watched = StopAtLook(0)
    Shard().compact(watched)
    assert watched.look_count > 2 * ROUND_COUNT + PARTITION_COUNT, "between requests, and within them"
    for at in range(1, watched.look_count + 1):
        shard = Shard()
        names = set(shard.tiered.metadata.refresh().objects)
        shard.store.reset()
        stop = _CountingStop(at, shard.store)
        with pytest.raises(StoppingError):
            shard.compact(stop)
        assert stop.asked == stop.asked_at_stop, "and asks for nothing any more"
        assert shard.filesystem.list_directory(SCRATCH) == []
        assert shard.store.open_count == 0, "no connection is left"
        assert list(shard.store.list_uploads("")) == []
        assert set(shard.tiered.metadata.refresh().objects) == names
        assert shard.values() == ALL
        assert all(report.refused is None for report in shard.compact(StopSignal()))
        assert shard.values() == COMPACTED


def test_a_stop_ends_a_long_wait_for_a_limit() -> None:
    class StoppingClock(HastyClock):
        """The server stops while the compaction waits for its second request."""

        def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
            stop.set()
            return super().wait(condition, timeout_s)

    shard, stop, clock = Shard(), StopSignal(), StoppingClock()
    compactor = Compactor(
        shard.filesystem,
        clock,
        SequentialIds(2),
        shard.tiered.shard(StoppableObjectStore(shard.store, stop)),
        CompactionSettings(spool_directory=SCRATCH, max_requests_per_s=0.001),
        CompactorConfig(stop=stop),
    )
    with pytest.raises(StoppingError):
        compactor.run(["state"])
    assert clock.elapsed_ms < 2_000
    assert shard.values() == ALL
