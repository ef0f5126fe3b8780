"""`stratalog log dump` of what a real broker leaves that preallocates its logs: killed, and stopped in order.

Fetched by Maven on first use; skipped where that, or Java, cannot be had.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stratalog.cli.main import stratalog
from tests.support.kafka.kafka_broker import KafkaBroker
from tests.support.kafka.kafka_distribution import KafkaDistribution

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEGMENT_BYTES = 1 << 20


def dumped(path: Path) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(stratalog, ["log", "dump", str(path), "--json"])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_what_a_broker_has_preallocated_is_shown_and_is_no_damage(
    tmp_path: Path, kafka: KafkaDistribution
) -> None:
    properties = ["log.preallocate=true", f"log.segment.bytes={SEGMENT_BYTES}"]
    broker = KafkaBroker(kafka, tmp_path, properties=properties)
    with broker.running(is_killed=True):
        broker.create_topic("t", 1)
        for number in range(3):
            broker.produce("t", [f"{number}" * 400_000])
    partition = broker.log_dir / "t-0"
    last = max(partition.glob("*.log"))
    assert last.stat().st_size == SEGMENT_BYTES
    assert last.stem != "0" * 20
    code, found = dumped(partition)
    assert code == 0, found
    kinds = {(item["file"], item["type"]) for item in found if item["type"] in {"preallocated", "corrupt"}}
    assert kinds == {(f"{last.stem}{suffix}", "preallocated") for suffix in (".log", ".index", ".timeindex")}
    assert [item["base_offset"] for item in found if item["type"] == "batch"] == [0, 1, 2]
    with broker.running():
        pass
    code, found = dumped(partition)
    assert code == 0, found
    assert not [item for item in found if item["type"] == "preallocated"]
    assert [item["base_offset"] for item in found if item["type"] == "batch"] == [0, 1, 2]
