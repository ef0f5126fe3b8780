"""A store with keyed records that a compaction on Spark divides among tasks, and an oracle of its result."""

from __future__ import annotations

from pathlib import Path
from random import Random

from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

NOW_MS = 1_700_000_000_000
SMALL = (
    "--config",
    "remote.compaction.job.max.bytes=1048576",
    "--config",
    "remote.compaction.object.bytes=1048576",
)
"""Options of a compaction that divide the large partition."""


def local_store(directory: Path) -> LocalObjectStore:
    """A store in the folder `store` of the directory."""
    return LocalObjectStore(
        PosixFileSystem(), ManualClock(NOW_MS), SequentialIds(1), str(directory / "store")
    )


class KeyedStore:
    """A compacted topic of three partitions, one of them large. Not thread-safe: one test uses it."""

    def __init__(self, store: ObjectStore, directory: Path, *, seed: int) -> None:
        self._random = Random(seed)
        self.tiered = TieredStore(
            PosixFileSystem(),
            store,
            ManualClock(NOW_MS),
            SequentialIds(2),
            directory=str(directory / "tiered"),
        )
        entry = self.tiered.catalog.create("state", 3, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(entry.topic_id, number) for number in range(3)]
        self.written: dict[int, list[Record]] = {number: [] for number in range(3)}
        """All records that were uploaded, by their partitions."""
        for upload in range(8):
            self.upload(with_key_streams=upload != 3)

    def upload(self, *, with_key_streams: bool = True) -> None:
        """Add an object with records of all partitions."""
        self.tiered.upload({tip: [self._batch(tip)] for tip in self.tips}, with_key_streams=with_key_streams)

    def _batch(self, tip: TopicIdPartition) -> bytes:
        random = self._random
        count = 400 if tip.partition == 0 else 5
        base_offset = self.tiered.partition(tip).tiered_end_offset
        records = [
            Record(
                base_offset + number,
                NOW_MS,
                b"key-%d" % random.randrange(3 * count),
                None if random.random() < 0.1 else random.randbytes(2_000),
            )
            for number in range(count)
        ]
        self.written[tip.partition] += records
        return encode_batch(records, base_offset=base_offset, leader_epoch=1)

    def records(self) -> dict[int, list[Record]]:
        return {tip.partition: self.tiered.records(tip) for tip in self.tips}

    def last_of_each_key(self) -> dict[int, list[Record]]:
        """By an oracle of its own."""
        last: dict[int, dict[bytes | None, Record]] = {}
        for number, records in self.written.items():
            last[number] = {record.key: record for record in records}
        return {
            number: sorted(found.values(), key=lambda record: record.offset) for number, found in last.items()
        }
