"""A random life of a shard whose producers use transactions: uploads that end anywhere, trims, time and
compactions, with the oracle after each of these."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from random import Random
from typing import Any

from stratalog.base.types import TopicIdPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.log.isolation import Isolation
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.source.slice_scan import scan
from stratalog.record.batch import batches, decode
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.native.batch_kernels import whole_batches
from stratalog.record.reading.readable_batches import readable_batches
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.key_streams import require_key_streams
from tests.support.compaction.time_to_horizon import time_to_horizon_ms
from tests.support.compaction.written_transactions import UNDECIDED, WrittenTransactions
from tests.support.spark.topic_scan import topic_spans
from tests.support.tiered.inline_reads import inline_reads
from tests.support.tiered.object_audit import audit_object
from tests.support.tiered.tiered_store import TieredStore

DELETE_RETENTION_MS = 1_000
PRODUCERS = (7, 8, 9)


class TransactionalHistory:
    """Random histories of partitions with transactions. Not thread-safe: one test uses it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(seed))
        self.has_bound = self.random.random() < 0.2
        """Whether slices have a bound, so that a run may become several slices."""
        config = {
            "cleanup.policy": "compact,delete" if self.has_bound else "compact",
            "retention.ms": "20000",
            "delete.retention.ms": str(DELETE_RETENTION_MS),
            "min.cleanable.dirty.ratio": "0.0",
        }
        topic = self.tiered.catalog.create("t", 3, config)
        tips = [TopicIdPartition(topic.topic_id, number) for number in range(self.random.choice((1, 2)))]
        self.written = {tip: WrittenTransactions() for tip in tips}
        self._keys = [b"key-%d" % number for number in range(self.random.randrange(1, 6))]

    def compactor(self) -> Compactor:
        """A compactor whose jobs end in the middle of transactions, and whose streams are hashed in parts."""
        random = self.random
        settings: dict[str, Any] = {
            "max_inputs_per_job": random.choice((2, 3, 64)),
            "merge_fanout": 3,
            "read_chunk_bytes": random.choice((100, 1 << 20)),
            "hash_part_entries": random.choice((1, 1 << 20)),
        }

        def change(base: CompactionSettings) -> CompactionSettings:
            return dataclasses.replace(base, **settings)

        return self.tiered.compactor(change=change)

    def step(self) -> None:
        """Something happens, most often an upload."""
        kind = self.random.choices(("upload", "trim", "wait", "compact"), (6, 1, 2, 4))[0]
        match kind:
            case "upload":
                self.upload()
            case "trim":
                self.trim()
            case "wait":
                self.clock.advance(self.random.choice((1, time_to_horizon_ms(DELETE_RETENTION_MS))))
            case _:
                self.compact()

    def upload(self, *, ends_all: bool = False) -> None:
        """An object with a slice of some partitions. `ends_all`: no transaction stays open."""
        slices: dict[TopicIdPartition, list[bytes]] = {}
        ends: dict[TopicIdPartition, SliceEnd] = {}
        chosen = sorted(self.written) if ends_all else self.random.sample(sorted(self.written), 1)
        for tip in chosen:
            written = self.written[tip]
            base_offset = written.next_offset
            slices[tip] = [self._batch(written) for _ in range(self.random.randrange(1, 6))]
            if ends_all:
                slices[tip] += [self._end(written, one) for one in written.open_producers]
            ends[tip] = written.slice_end(base_offset)
        self.tiered.upload(slices, ends=ends)

    def trim(self) -> None:
        """Log start moves, mostly into the middle of something."""
        tip = self.random.choice(sorted(self.written))
        partition = self.tiered.partition(tip)
        offset = self.random.randint(partition.log_start_offset, partition.tiered_end_offset)
        if offset > partition.log_start_offset:
            self.tiered.advance_log_start(tip, offset)

    def compact(self) -> tuple[CompactionReport, ...]:
        """Compact once, held against the oracle."""
        reports = self.compactor().run()
        for report in reports:
            assert report.refused is None, report
            assert report.refused_partitions == (), report
            assert report.get_requests <= 2 * report.inputs
        self.require()
        return reports

    def settle(self) -> None:
        """Compact until nothing is left to do, however many transactions are open."""
        for _ in range(100):
            if not self.compact():
                return
        raise AssertionError("compaction does not come to an end")

    def require(self) -> None:
        """Check the shard against the oracle. Raises AssertionError."""
        tiered = self.tiered
        tiered.metadata.refresh()
        tiered.metadata.check()
        for stored in tiered.metadata.state().objects.values():
            audit_object(self.store, tiered.layout, stored.ref)
        require_key_streams(self.store, tiered.metadata, tiered.catalog)
        reader = RemoteReader(inline_reads(self.store), tiered.metadata)
        now_ms = self.clock.now_ms()
        for tip, written in self.written.items():
            partition = tiered.partition(tip)
            start_offset = partition.log_start_offset
            found = tiered.records(tip)
            written.require(found, start_offset, now_ms - DELETE_RETENTION_MS)
            written.note_compaction(now_ms, partition.compacted_upto)
            written.require(found, start_offset, now_ms - DELETE_RETENTION_MS)
            stable_end_offset = written.stable_end(partition.tiered_end_offset)
            assert partition.stable_end_offset == max(stable_end_offset, start_offset)
            for first in {start_offset, self._offset_in(start_offset, stable_end_offset)}:
                uncommitted = self._read(reader, tip, first, Isolation.HIGH_WATERMARK)
                assert uncommitted == [record for record in found if record.offset >= first]
                committed = self._read(reader, tip, first, Isolation.TXN_COMMITTED)
                written.require_committed(committed, found, first, stable_end_offset)
            for live in partition.slices:
                self._require_markers(written, live, {record.offset for record in found}, start_offset)

    def require_scans(self) -> None:
        """Check that a scan of the objects, as Spark makes it, has the same records. Raises
        AssertionError."""
        for isolation in IsolationLevel:
            is_committed = isolation is IsolationLevel.READ_COMMITTED
            found: dict[int, list[int]] = defaultdict(list)
            # The tasks of one level are as small as indexes allow.
            max_bytes = "1" if is_committed else "1000000"
            spans = topic_spans(
                self.store, topic="t", isolationLevel=isolation.value, maxPartitionBytes=max_bytes
            )
            for span in sorted(spans, key=lambda one: one.first_offset):
                for batch in scan(self.store, [span], ("offset",)):
                    found[span.partition] += [row["offset"] for row in batch.to_pylist()]
            for tip, written in self.written.items():
                end_offset = written.stable_end(written.next_offset) if is_committed else written.next_offset
                assert found[tip.partition] == [
                    record.offset
                    for record in self.tiered.records(tip)
                    if record.offset < end_offset
                    and (not is_committed or written.is_committed(record.offset))
                ]

    def _offset_in(self, start_offset: int, end_offset: int) -> int:
        return self.random.randint(start_offset, max(start_offset, end_offset))

    def _read(
        self, reader: RemoteReader, tip: TopicIdPartition, offset: int, isolation: Isolation
    ) -> list[Record]:
        """Read as a consumer from that offset on."""
        first_offset, records = offset, list[Record]()
        while True:
            found = reader.read(tip, offset, self.random.choice((0, 300, 1 << 20)), isolation)
            is_readable = readable_batches(found.aborted_transactions)
            for position, header in batches(found.batches):
                if is_readable(header):
                    records += decode(found.batches, position)
            if found.next_offset <= offset:
                end = self.tiered.partition(tip)
                is_committed = isolation is Isolation.TXN_COMMITTED
                end_offset = end.stable_end_offset if is_committed else end.tiered_end_offset
                assert offset >= end_offset, "a read goes on"
                return [one for one in records if first_offset <= one.offset < end_offset]
            offset = found.next_offset

    def _require_markers(
        self, written: WrittenTransactions, live: LiveSlice, left: set[int], start_offset: int
    ) -> None:
        tiered, entry = self.tiered, live.entry
        data = tiered.slice_data(live.object_name, entry)
        assert whole_batches(data) == (len(data), entry.record_count)
        index = read_slice_index(self.store, tiered.layout, live.object_name, entry)
        markers: dict[int, ControlType] = {}
        for position, header in batches(data):
            if header.is_control:
                marker = EndTransactionMarker.read(data, position, header)
                assert marker is not None
                markers[header.base_offset] = marker.control_type
        first_offset = max(live.base_offset, start_offset)
        named = {one.last_offset: one for one in index.aborted if one.last_offset >= first_offset}
        for transaction in written.transactions:
            offset = transaction.marker_offset
            if offset == UNDECIDED or not first_offset <= offset < live.end_offset:
                continue
            assert (offset in named) == (offset in markers and transaction.is_aborted), (
                "an entry goes with its marker"
            )
            has_data = any(
                one in left for one, found in written.transaction_of.items() if found is transaction
            )
            assert offset in markers or not has_data, "a marker went before its data"
        assert all(offset in markers for offset in named)
        opened = {(one.producer_id, one.first_offset) for one in written.open_at(live.end_offset)}
        assert set(entry.open_transactions) == opened

    def _batch(self, written: WrittenTransactions) -> bytes:
        random = self.random
        what = random.choices(("plain", "data", "end"), (2, 5, 3))[0]
        if what == "end":
            return self._end(written, random.choice(PRODUCERS))
        records = [self._record() for _ in range(random.choice((1, 1, 2, 5)))]
        codec = random.choice((Codec.NONE, Codec.NONE, Codec.ZSTD))
        return written.data(records, codec, random.choice(PRODUCERS) if what == "data" else None)

    def _end(self, written: WrittenTransactions, producer_id: int) -> bytes:
        is_aborted = self.random.random() < 0.5
        bumps_epoch = is_aborted and self.random.random() < 0.3
        return written.end(producer_id, self.clock.now_ms(), is_aborted=is_aborted, bumps_epoch=bumps_epoch)

    def _record(self) -> Record:
        random = self.random
        value = None if random.random() < 0.2 else b"%d" % random.randrange(1_000)
        return Record(0, self.clock.now_ms(), random.choice(self._keys), value)
