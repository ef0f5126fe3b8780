"""Imports what a real broker leaves on its disks: several disks, deleted records, and a broker that was
killed when it had written no checkpoint yet.

Fetched by Maven on first use; skipped where that, or Java, cannot be had.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from tests.support.kafka.import_command import import_report
from tests.support.kafka.kafka_broker import KafkaBroker
from tests.support.kafka.kafka_distribution import KafkaDistribution
from tests.support.logs.sampling import whole_only
from tests.support.service.service_bench import service_bench

TOPICS = ("t0", "t1", "t2", "t3")
SEGMENT_BYTES = 1 << 20

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def starts(report: dict[str, Any]) -> dict[str, int]:
    return {topic["topic"]: topic["partitions"][0]["log_start_offset"] for topic in report["topics"]}


@whole_only
async def test_records_that_were_deleted_stay_deleted_whatever_disk_they_are_on(
    tmp_path: Path, kafka: KafkaDistribution
) -> None:
    broker = KafkaBroker(kafka, tmp_path, log_dir_count=2)
    deleted = {topic: number + 1 for number, topic in enumerate(TOPICS)}
    with broker.running():
        for topic in TOPICS:
            broker.create_topic(topic)
            broker.produce(topic, [f"{topic}x{number}" for number in range(6)])
        broker.delete_records(deleted)
    first, second = broker.log_dirs
    on_second = [topic for topic in TOPICS if (second / f"{topic}-0").exists()]
    assert 0 < len(on_second) < len(TOPICS)
    report = import_report(tmp_path / "data", first, second)
    assert starts(report) == deleted
    assert not [remark for remark in report["remarks"] if remark.startswith("warning")]
    async with service_bench(tmp_path) as bench:
        for topic in TOPICS:
            [records] = await bench.read_all(topic)
            assert [record.offset for record in records] == [*range(deleted[topic], 6)]
    # Brought together by hand, with the first disk's checkpoints: none is imported that these do not know.
    for topic in on_second:
        shutil.move(second / f"{topic}-0", first)
    for options in ([], ["--topic", on_second[0]]):
        with pytest.raises(DataDirectoryError):
            import_report(tmp_path / "other", first, *options)
    known = [topic for topic in TOPICS if topic not in on_second]
    only = import_report(tmp_path / "other", first, *(f"--topic={topic}" for topic in known))
    assert starts(only) == {topic: deleted[topic] for topic in known}
    # What they would have been.
    told = import_report(tmp_path / "told", first, "--allow-missing-checkpoints")
    assert starts(told) == {topic: 0 if topic in on_second else deleted[topic] for topic in TOPICS}
    warnings = [remark for remark in told["remarks"] if "deleted records may be back" in remark]
    assert len(warnings) == len(on_second)


def dumped(path: Path) -> list[dict[str, Any]]:
    """The lines of `log dump`, which finds no damage."""
    result = CliRunner().invoke(stratalog, ["log", "dump", str(path), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


@whole_only
async def test_a_broker_that_was_killed_before_its_first_checkpoint(
    tmp_path: Path, kafka: KafkaDistribution
) -> None:
    """It preallocates its logs, too: until it is stopped in order, files are longer than their data."""
    # However long this takes: the first checkpoint comes later.
    properties = ["log.initial.task.delay.ms=600000", "log.preallocate=true"]
    broker = KafkaBroker(kafka, tmp_path, properties=[*properties, f"log.segment.bytes={SEGMENT_BYTES}"])
    values = [f"{number}" * 400_000 for number in range(3)]
    with broker.running(is_killed=True):
        broker.create_topic("young")
        for value in values:
            broker.produce("young", [value])
        broker.wait_for_high_watermarks()
    for name in ("recovery-point", "log-start"):
        assert (broker.log_dir / f"{name}-offset-checkpoint").read_bytes() == b"", name
    partition = broker.log_dir / "young-0"
    last = max(partition.glob("*.log"))
    assert last.stat().st_size == SEGMENT_BYTES
    assert last.stem != "0" * 20
    dumped(broker.log_dir)
    found = dumped(partition)
    kinds = {(item["file"], item["type"]) for item in found if item["type"] == "preallocated"}
    assert kinds == {(f"{last.stem}{suffix}", "preallocated") for suffix in (".log", ".index", ".timeindex")}
    assert [item["base_offset"] for item in found if item["type"] == "batch"] == [0, 1, 2]
    report = import_report(tmp_path / "data", broker.log_dir)
    assert starts(report) == {"young": 0}
    assert (report["was_clean"], report["unclean_log_dirs"]) == (False, [str(broker.log_dir)])
    assert not [remark for remark in report["remarks"] if remark.startswith("warning")]
    async with service_bench(tmp_path) as bench:
        assert await bench.values("young") == [[value.encode() for value in values]]
        assert (await bench.client.latest("young"))[TopicPartition("young", 0)] == 3
    with broker.running():
        # A broker that is stopped while it starts leaves its files as they are.
        broker.wait_for_leader("young")
    found = dumped(partition)
    assert not [item for item in found if item["type"] == "preallocated"]
    assert [item["base_offset"] for item in found if item["type"] == "batch"] == [0, 1, 2]
