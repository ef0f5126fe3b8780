"""A random life of a shard: uploads, trims, time and compaction in any order, with the oracle after every
run.

The same seed gives the same life, byte for byte, whichever kernels are in use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random
from typing import Any

from stratalog.base.scheduler import RunBeside, run_here
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.key_streams import require_key_streams
from tests.support.compaction.time_to_horizon import time_to_horizon_ms
from tests.support.tiered.compaction_oracle import PartitionOracle
from tests.support.tiered.object_audit import audit_object
from tests.support.tiered.tiered_store import TieredStore

_CODECS = (Codec.NONE, *Codec)


class CompactionHistory:
    """Random histories of a tiered log and its compactions. Not thread-safe: one test uses it."""

    def __init__(self, seed: int, *, max_keys: int = 12, codecs: Sequence[Codec] = _CODECS) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.filesystem = MemoryFileSystem()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(self.filesystem, self.store, self.clock, SequentialIds(seed))
        self._codecs = codecs
        self.oracles: dict[TopicIdPartition, PartitionOracle] = {}
        self.bounds: dict[str, Any] = {}
        """Settings of all compactors, in place of those by chance."""
        self._keys = [b"key-%d" % number for number in range(self.random.randrange(1, max_keys + 1))]
        for number in range(self.random.randrange(1, 4)):
            self._create_topic(f"topic-{number}")

    def compactor(
        self, store: ObjectStore | None = None, run_beside: RunBeside = run_here, **changes: Any
    ) -> Compactor:
        """A compactor whose bounds are so small that every way through the code is taken; `changes` are
        settings."""
        random = self.random
        settings: dict[str, Any] = {
            "max_inputs_per_job": random.choice((2, 3, 64)),
            "max_job_bytes": random.choice((1_000, 1 << 30)),
            "merge_fanout": 3,
            "read_chunk_bytes": random.choice((1, 100, 1_000, 1 << 20)),
            "job_memory_bytes": random.choice((0, 20_000, 1 << 20)),
            "hash_part_entries": random.choice((1, 3, 1 << 20)),
            "output_part_bytes": random.choice((300, 2_000, 1 << 20)),
        }

        def change(base: CompactionSettings) -> CompactionSettings:
            return dataclasses.replace(base, **(settings | self.bounds | changes))

        return self.tiered.compactor(store, change, run_beside=run_beside)

    def step(self) -> None:
        """Something happens, most often an upload."""
        kind = self.random.choices(("upload", "trim", "wait", "compact"), (6, 1, 2, 3))[0]
        if kind == "upload":
            self.upload()
        elif kind == "trim":
            self.trim()
        elif kind == "wait":
            self.clock.advance(self.random.choice((1, 999, 5_000, time_to_horizon_ms(1_000))))
        else:
            self.compact()

    def upload(self) -> None:
        """One object with records of some partitions."""
        tips = self.random.sample(sorted(self.oracles), self.random.randrange(1, len(self.oracles) + 1))
        # Without key streams an object is as old as the time when its topics were plain: keys may be missing,
        # as they may be in what had not been uploaded when the topic was changed.
        with_key_streams = self.random.random() < 0.7
        was_plain = not with_key_streams or self.random.random() < 0.2
        slices: dict[TopicIdPartition, list[bytes]] = {}
        for tip in tips:
            base_offset = self.tiered.partition(tip).tiered_end_offset
            slices[tip] = []
            for _ in range(self.random.randrange(1, 4)):
                may_lack_key = was_plain or not self.oracles[tip].is_compacted
                batch, records = self._batch(base_offset, may_lack_key=may_lack_key)
                slices[tip].append(batch)
                self.oracles[tip].append(records)
                base_offset += len(records)
        self.tiered.upload(slices, with_key_streams=with_key_streams)

    def trim(self) -> None:
        """Log start moves, mostly into the middle of something."""
        tip = self.random.choice(sorted(self.oracles))
        partition = self.tiered.partition(tip)
        offset = self.random.randint(partition.log_start_offset, partition.tiered_end_offset)
        if offset > partition.log_start_offset:
            self.tiered.advance_log_start(tip, offset)

    def compact(self) -> tuple[CompactionReport, ...]:
        """Compact once, held against the oracle."""
        before = {tip: self.tiered.records(tip) for tip in self.oracles}
        names = [topic for topic in self.tiered.catalog.topics() if self.random.random() < 0.5]
        reports = self.compactor().run(names or None)
        for report in reports:
            assert report.refused is None, report
            assert report.get_requests <= 2 * report.inputs
            assert report.records_out <= report.records_in
        self.require(before)
        return reports

    def settle(self) -> None:
        """Compact until nothing is left to do."""
        for _ in range(100):
            before = {tip: self.tiered.records(tip) for tip in self.oracles}
            reports = self.compactor().run()
            self.require(before)
            if not reports:
                return
        raise AssertionError("compaction does not come to an end")

    def require(self, before: dict[TopicIdPartition, list[Record]]) -> None:
        """Check the log against the oracle. Raises AssertionError."""
        self.tiered.metadata.refresh()
        self.tiered.metadata.check()
        for live in self.tiered.metadata.state().objects.values():
            audit_object(self.store, self.tiered.layout, live.ref)
        require_key_streams(self.store, self.tiered.metadata, self.tiered.catalog)
        for tip, oracle in self.oracles.items():
            partition = self.tiered.partition(tip)
            oracle.require(
                before[tip],
                self.tiered.records(tip),
                log_start_offset=partition.log_start_offset,
                compacted_upto=partition.compacted_upto,
                now_ms=self.clock.now_ms(),
            )
        assert self.filesystem.list_directory("/tiered/uploads") == []
        assert self.filesystem.list_directory("/tiered/compaction") == [], "scratch is given back"

    def _create_topic(self, name: str) -> None:
        is_compacted = self.random.random() < 0.75
        delete_retention_ms = self.random.choice((0, 1_000))
        min_compaction_lag_ms = self.random.choice((0, 0, 2_000))
        config = {
            "cleanup.policy": "compact" if is_compacted else "delete",
            "delete.retention.ms": str(delete_retention_ms),
            "min.compaction.lag.ms": str(min_compaction_lag_ms),
            "min.cleanable.dirty.ratio": str(self.random.choice((0.0, 0.5))),
        }
        topic = self.tiered.catalog.create(name, 3, config)
        for partition in range(self.random.randrange(1, 4)):
            self.oracles[TopicIdPartition(topic.topic_id, partition)] = PartitionOracle(
                is_compacted=is_compacted,
                delete_retention_ms=delete_retention_ms,
                min_compaction_lag_ms=min_compaction_lag_ms,
            )

    def _batch(self, base_offset: int, *, may_lack_key: bool) -> tuple[bytes, list[Record]]:
        random = self.random
        records = [
            self._record(base_offset + index, may_lack_key=may_lack_key)
            for index in range(random.choice((1, 1, 2, 5, 20)))
        ]
        latest_ms = max(record.timestamp_ms for record in records)
        append_time_ms = random.choice((None, latest_ms))
        batch = encode_batch(
            records,
            codec=random.choice(self._codecs),
            base_offset=base_offset,
            leader_epoch=1,
            append_time_ms=append_time_ms,
        )
        if append_time_ms is not None:
            # The time of the append stands in the header; what producers said stays in the records, unread.
            records = [record._replace(timestamp_ms=append_time_ms) for record in records]
        return batch, records

    def _record(self, offset: int, *, may_lack_key: bool) -> Record:
        random = self.random
        key = None if may_lack_key and random.random() < 0.3 else random.choice(self._keys)
        value = None if random.random() < 0.3 else b"%d " % offset * random.choice((1, 1, 40))
        headers = (("source", random.choice((None, b"", b"test"))),) if random.random() < 0.3 else ()
        return Record(offset, self.clock.now_ms() - random.randrange(3_000), key, value, headers)
