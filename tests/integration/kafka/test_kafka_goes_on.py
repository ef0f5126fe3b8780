"""A real broker goes on with a topic that was exported to it: as leader under its own epochs, with producers
of its own cluster, through crashes; another broker follows; and what there is then is imported again.

Fetched by Maven on first use; skipped where that, or Java, cannot be had.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.migration.log_export import LogExport
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.background.thread_scheduler import ThreadScheduler
from tests.support.kafka.import_command import import_report
from tests.support.kafka.kafka_broker import KafkaBroker
from tests.support.kafka.kafka_distribution import KafkaDistribution
from tests.support.logs.sampling import whole_only
from tests.support.service.service_bench import service_bench

OLD_EPOCH = 17
"""The epoch of the server that has written the log: higher than that of any topic that was just created."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def export(target: Path, topic_id: UUID) -> list[str]:
    """A log of four producers, whose ids the new cluster hands out again; it is as young as their state has
    to be to be remembered. Returns the values."""
    values = [f"old{number}" for number in range(20)]
    clock, scheduler = SystemClock(), ThreadScheduler(1)
    try:
        with LogExport(PosixFileSystem(), clock, scheduler, SystemIdGenerator(), str(target)) as exporting:
            log = exporting.begin(
                TopicPartition("t", 0),
                topic_id,
                LogConfig(),
                base_offset=0,
                log_start_offset=0,
                log_end_offset=len(values),
            )
            for base_offset in range(0, len(values), 5):
                records = [
                    Record(0, clock.now_ms(), None, value.encode())
                    for value in values[base_offset : base_offset + 5]
                ]
                log.append(
                    encode_batch(
                        records,
                        base_offset=base_offset,
                        leader_epoch=OLD_EPOCH,
                        producer=BatchProducer(base_offset // 5, 0, 0),
                    )
                )
            exporting.end(log)
            exporting.publish()
    finally:
        scheduler.close()
    return values


def log_bytes(log_dir: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((log_dir / "t-0").glob("*.log")))


@whole_only
async def test_a_broker_goes_on_with_what_was_exported(tmp_path: Path, kafka: KafkaDistribution) -> None:
    broker = KafkaBroker(kafka, tmp_path)
    with broker.running():
        topic_id = broker.create_topic("t")
    values = export(tmp_path / "out", topic_id)
    shutil.rmtree(broker.log_dir / "t-0")
    shutil.move(tmp_path / "out" / "t-0", broker.log_dir / "t-0")
    # Each time a new producer of the new cluster, whose ids and sequences begin at 0.
    with broker.running(is_killed=True):
        assert broker.consume("t", "group", 8) == values[:8]
        # As many as a batch of old has, so that it could be taken for that one.
        values += produced(broker, "a")
    # After the kill the broker makes the state of producers again, from the batches.
    follower = tmp_path / "follower"
    with broker.running():
        values += produced(broker, "b")
        assert broker.consume("t", "group", len(values) - 8) == values[8:]
        assert broker.consume("t", "others", len(values)) == values
        with broker.follower_running(follower):
            broker.let_follow("t")
    assert log_bytes(follower / "logs") == log_bytes(broker.log_dir)
    [topic] = import_report(tmp_path / "data", broker.log_dir, "--topic", "t")["topics"]
    [partition] = topic["partitions"]
    assert (partition["epochs_raised_from"], partition["truncated_bytes"]) == (None, 0)
    async with service_bench(tmp_path) as bench:
        [records] = await bench.read_all("t")
        assert [(record.value or b"").decode() for record in records] == values
        assert [record.offset for record in records] == [*range(len(values))]


def produced(broker: KafkaBroker, name: str) -> list[str]:
    values = [f"{name}{number}" for number in range(5)]
    broker.produce("t", values)
    return values
