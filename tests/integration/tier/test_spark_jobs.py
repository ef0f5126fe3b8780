"""`stratalog spark`: jobs on a real Spark session over objects in a directory."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.cli.main import stratalog
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING = why_spark_cannot_run()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.slow]

NOW_MS = 1_700_000_000_000
SMALL = [
    "--config",
    "remote.compaction.job.max.bytes=1048576",
    "--config",
    "remote.compaction.object.bytes=1048576",
]


class Filled:
    """A store with a compacted topic of three partitions, the first of which is large."""

    def __init__(self, directory: Path, seed: int) -> None:
        random = Random(seed)
        self.clock = ManualClock(NOW_MS)
        filesystem = PosixFileSystem()
        self.url = f"file://{directory}/store"
        store = LocalObjectStore(filesystem, self.clock, SequentialIds(1), str(directory / "store"))
        self.tiered = TieredStore(
            filesystem, store, self.clock, SequentialIds(2), directory=str(directory / "tiered")
        )
        entry = self.tiered.catalog.create("state", 3, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(entry.topic_id, number) for number in range(3)]
        for upload in range(8):
            self.tiered.upload(
                {tip: [self._batch(random, tip)] for tip in self.tips}, with_key_streams=upload != 3
            )

    def _batch(self, random: Random, tip: TopicIdPartition) -> bytes:
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
        return encode_batch(records, base_offset=base_offset, leader_epoch=1)

    def records(self) -> dict[int, list[Record]]:
        return {tip.partition: self.tiered.records(tip) for tip in self.tips}

    def last_of_each_key(self) -> dict[int, list[Record]]:
        """By an oracle of its own."""
        last: dict[int, dict[bytes | None, Record]] = {}
        for number, records in self.records().items():
            last[number] = {record.key: record for record in records}
        return {
            number: sorted(found.values(), key=lambda record: record.offset) for number, found in last.items()
        }


def run(*arguments: str) -> Result:
    return CliRunner().invoke(stratalog, ["spark", *arguments])


def test_compact_leaves_the_last_record_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    filled = Filled(tmp_path, seed=1)
    expected = filled.last_of_each_key()
    before = len(filled.tiered.partition(filled.tips[0]).slices)
    done = run("compact", "state", "--store", filled.url, *SMALL, "--json")
    assert done.exit_code == 0, done.output
    jobs = json.loads(done.stdout)
    assert {job["reason"] for job in jobs} == {""}
    assert filled.records() == expected
    partition = filled.tiered.partition(filled.tips[0])
    assert partition.compacted_upto == partition.tiered_end_offset == 3_200
    assert 1 < len(partition.slices) < before, "the large one was rewritten by several tasks"
    verified = CliRunner().invoke(stratalog, ["verify", "--compaction", "--store", filled.url])
    assert verified.exit_code == 0, verified.output


def test_damage_is_named_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    filled = Filled(tmp_path, seed=2)
    large = filled.tips[0]
    live = filled.tiered.partition(large).slices[2]
    key = filled.tiered.layout.data_key(live.object_name)
    data = bytearray(filled.tiered.store.get(key).data)
    data[live.entry.data_position + live.entry.data_bytes - 1] ^= 1
    (tmp_path / "store" / key).write_bytes(data)
    names = [one.object_name for one in filled.tiered.partition(large).slices]
    failed = run("compact", "--store", filled.url, *SMALL, "--json")
    assert failed.exit_code == 1, failed.output
    reasons = " ".join(job["reason"] for job in json.loads(failed.stdout))
    for text in ("topic=`state`", "slice_base_offset=`800`", live.object_name):
        assert text in reasons
    assert [one.object_name for one in filled.tiered.partition(large).slices] == names


def test_audit_finds_each_kind_of_damage(spark: SparkSession, tmp_path: Path) -> None:
    filled = Filled(tmp_path, seed=3)
    whole = run("audit", "--store", filled.url, "--json")
    assert whole.exit_code == 0, whole.output
    document = json.loads(whole.stdout)
    assert document["verification"]["record_count"] == sum(map(len, filled.records().values()))
    assert document["verification"]["object_count"] == 8
    assert len(document["proof"]["partitions"]) == 3
    slices = filled.tiered.partition(filled.tips[0]).slices
    damaged, missing = (filled.tiered.layout.data_key(slices[at].object_name) for at in (1, 5))
    data = bytearray(filled.tiered.store.get(damaged).data)
    data[slices[1].entry.data_position + 100] ^= 1
    (tmp_path / "store" / damaged).write_bytes(data)
    found = run("audit", "state", "--store", filled.url)
    assert found.exit_code == 1, found.output
    lines = [line for line in found.stdout.splitlines() if line.startswith("damaged")]
    assert any(slices[1].object_name in line and "state-0, offsets 400-800" in line for line in lines), (
        found.stdout
    )
    # The newest commits are read with the directories of their objects.
    (tmp_path / "store" / missing).unlink()
    unfinished = run("audit", "state", "--store", filled.url)
    assert unfinished.exit_code == 2
    assert missing in unfinished.stderr


def test_stats_count_keys_and_find_the_hottest(spark: SparkSession, tmp_path: Path) -> None:
    filled = Filled(tmp_path, seed=4)
    page = tmp_path / "page.html"
    shown = run(*("stats", "state", "--hottest", "2", "--html", str(page), "--store", filled.url, "--json"))
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    records = filled.records()
    assert [one["key_count"] for one in document["partitions"]] == [
        len({record.key for record in found}) for found in records.values()
    ]
    counts = Counter(record.key for found in records.values() for record in found)
    expected = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:2]
    assert [
        (base64.b64decode(one["key_base64"]), one["record_count"]) for one in document["hot_keys"]
    ] == expected
    assert f"{counts.total():,}" in page.read_text()
