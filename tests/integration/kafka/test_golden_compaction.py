"""A real broker's topics, imported, tiered and compacted: what a client reads from the objects is what
Kafka's own consumer read, without the records that a later one of their key replaces, at both isolation
levels.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.values.operation_values import CompactionOutcome
from stratalog.record.record import Record
from tests.support.kafka.import_command import import_kafka
from tests.support.logs.golden_records import golden_records
from tests.support.logs.log_consumer import table_of
from tests.support.places import GOLDEN
from tests.support.service.service_bench import ServiceBench, service_bench

TOPICS = ("appendtime", "codecs", "compacted", "recompressed", "txn")
TRANSACTIONAL = ("compacted", "txn")
AGAIN = b"written after the import"
COMPACT = ("--config", "cleanup.policy=compact", "--config", "retention.ms=-1")


def require_kept(found: Sequence[Record], written: Sequence[Record]) -> None:
    """Check that what was found is what was written, without replaced records and tombstones."""
    by_offset = {record.offset: record for record in written}
    assert [by_offset.get(record.offset) for record in found] == list(found)
    assert [record.offset for record in found] == sorted(record.offset for record in found)
    last = {record.key: record.offset for record in written}
    kept = {record.offset for record in found}
    for record in written:
        is_replaced = record.key is not None and last[record.key] > record.offset
        assert record.offset in kept or is_replaced or record.is_tombstone, record
    keyed = [record for record in found if record.key is not None]
    assert table_of(keyed) == table_of(record for record in written if record.key is not None)


async def require_topics(bench: ServiceBench, added: dict[str, list[Record]]) -> int:
    """Check all topics, read from the objects alone. Returns the number of records that are gone."""
    gone = 0
    for name in TOPICS:
        [log] = await bench.client.admin.describe_log(f"g1-{name}")
        assert log.log_start_offset < log.local_log_start_offset == log.tiered_end_offset
        found: list[Record] = []
        for isolation in IsolationLevel:
            [found] = await bench.read_all(f"g1-{name}", isolation=isolation)
            written = golden_records(GOLDEN, name, isolation.value) + added[name]
            # Where nothing is committed of a transaction, a reader who sees it anyway sees no last value.
            if isolation is IsolationLevel.READ_COMMITTED or name not in TRANSACTIONAL:
                require_kept(found, written)
            assert {record.offset for record in found} <= {record.offset for record in written}
            gone += len(written) - len(found)
        if name not in TRANSACTIONAL:
            assert log.compacted_upto == log.tiered_end_offset
            keys = [record.key for record in found if record.key is not None]
            assert len(keys) == len(set(keys))
    return gone


async def compact(bench: ServiceBench) -> None:
    jobs = await bench.client.admin.run_compaction([f"g1-{name}" for name in TOPICS])
    done = [job for job in jobs if job.input_count]
    assert done
    assert {job.outcome for job in done} == {CompactionOutcome.COMMITTED}, done


async def test_what_kafka_read_is_left_by_compaction(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    import_kafka(tmp_path / "data", tmp_path / "kafka", *COMPACT)
    added: dict[str, list[Record]] = {name: [] for name in TOPICS}
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.upload([], delete_local=True)
        await compact(bench)
        gone = await require_topics(bench, added)
        assert gone > 0
        # Every other key again, in a slice of its own.
        for name in TOPICS:
            golden = golden_records(GOLDEN, name, IsolationLevel.READ_COMMITTED.value)
            keys = sorted({record.key for record in golden if record.key is not None})[::2]
            producer = bench.client.producer()
            sent = [
                producer.send(f"g1-{name}", key, AGAIN, timestamp_ms=1 << 40, partition=0) for key in keys
            ]
            await producer.flush()
            offsets = [(await delivery).offset for delivery in sent]
            added[name] = [
                Record(offset, 1 << 40, key, AGAIN) for offset, key in zip(offsets, keys, strict=True)
            ]
        await bench.client.admin.upload([], delete_local=True)
        await compact(bench)
        assert await require_topics(bench, added) > gone
    # Another machine, with the bucket alone.
    shutil.rmtree(tmp_path / "data")
    async with service_bench(tmp_path) as bench:
        await require_topics(bench, added)
