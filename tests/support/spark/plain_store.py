"""A store with topics of plain records: a record's value names it, and its time follows from its offset."""

from __future__ import annotations

from collections import defaultdict

from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.shard_judge import LostRange
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.tiered_store import TieredStore

START_MS = 1_700_000_000_000
STEP_MS = 1_000
"""Between two records of a partition."""


class PlainStore:
    """Topics whose records are known. Not thread-safe: one test uses it."""

    def __init__(self, inner: ObjectStore | None = None) -> None:
        self.clock = ManualClock(START_MS)
        self.store = CountingObjectStore(inner or MemoryObjectStore(self.clock))
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(5))
        self.tips: dict[str, list[TopicIdPartition]] = {}
        self._next: dict[TopicIdPartition, int] = defaultdict(int)

    def create(self, topic: str, partition_count: int = 1, **config: str) -> None:
        """Create a topic; its former namesake is gone."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        entry = self.tiered.catalog.create(topic, partition_count, named)
        self.tips[topic] = [TopicIdPartition(entry.topic_id, number) for number in range(partition_count)]

    def upload(
        self, counts: dict[tuple[str, int], int], *, value_bytes: int = 1, batch_count: int = 10
    ) -> str:
        """One object with so many new records of each (topic, partition); returns its name. A partition has
        `batch_count` records in a batch, with values of at least `value_bytes`."""
        slices: dict[TopicIdPartition, list[bytes]] = {}
        for (topic, number), count in counts.items():
            tip = self.tips[topic][number]
            offsets = range(self._next[tip], self._next[tip] + count)
            self._next[tip] += count
            slices[tip] = [
                encode_batch(
                    [
                        self.record(topic, number, offset, value_bytes)
                        for offset in offsets[first:][:batch_count]
                    ],
                    base_offset=offsets[first],
                )
                for first in range(0, count, batch_count)
            ]
        return self.tiered.upload(slices)

    def lose(
        self,
        topic: str,
        number: int,
        count: int,
        reason: GapReason = GapReason.MISSING_ON_LOCAL_DISK,
    ) -> None:
        """So many records are written and never reach the store."""
        tip = self.tips[topic][number]
        begin = self._next[tip]
        self._next[tip] += count
        self.tiered.lose(LostRange(tip, begin, self._next[tip], reason))

    @staticmethod
    def record(topic: str, partition: int, offset: int, value_bytes: int = 1) -> Record:
        """The record that lies at this place."""
        value = f"{topic}/{partition}/{offset}".encode().ljust(value_bytes, b".")
        return Record(offset, START_MS + STEP_MS * offset, b"k%d" % (offset % 7), value)
