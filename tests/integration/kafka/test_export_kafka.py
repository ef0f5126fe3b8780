"""Topics as a broker's log directory: the batches byte for byte, whichever tier they lie in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from stratalog.client.isolation_level import IsolationLevel
from stratalog.log.checkpoint import parse_checkpoint
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.manager.directories.partition_metadata import format_topic_id, parse_partition_metadata
from stratalog.record.batch import batches, stamp
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from tests.support.kafka.import_command import import_golden, import_kafka
from tests.support.logs.golden_records import golden_records
from tests.support.places import GOLDEN
from tests.support.service.service_bench import ServiceBench, service_bench

DATA = GOLDEN / "data"
TOPICS = ("g1-appendtime", "g1-codecs", "g1-compacted", "g1-recompressed", "g1-txn")
BROKERS_ID = UUID(int=77)


async def run(address: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of the command, which runs in a thread with an event loop of its own."""
    command = ["export", "kafka", *arguments, "--server", address]
    result = await asyncio.to_thread(CliRunner().invoke, stratalog, command)
    error = f"{result.exception}\n" if isinstance(result.exception, LogStoreError) else ""
    return result.exit_code, result.stdout, result.stderr + error


async def exported(bench: ServiceBench, *arguments: str) -> list[Any]:
    code, output, errors = await run(bench.client.address, *arguments, "--json")
    assert code == 0, errors
    found: list[Any] = json.loads(output)
    return found


async def refused(address: str, *arguments: str) -> str:
    """The one line that it fails with."""
    code, _, errors = await run(address, *arguments)
    assert code == 1
    assert errors.count("\n") == 1
    return errors


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


@pytest.mark.parametrize("is_tiered", [False, True], ids=["local", "tiered"])
async def test_what_kafka_wrote_comes_out_as_it_went_in(tmp_path: Path, is_tiered: bool) -> None:
    import_golden(tmp_path)
    target = tmp_path / "out"
    async with service_bench(tmp_path) as bench:
        if is_tiered:
            await bench.client.admin.upload([], delete_local=True)
        logs = await exported(bench, *TOPICS, str(target), "--keep-producer-ids")
    assert [log["open_transactions"] for log in logs] == [0] * 5
    assert [log["raised_producer_ids"] for log in logs] == [False] * 5
    for name in TOPICS:
        golden, found = DATA / f"{name}-0", target / f"{name}-0"
        if name == "g1-recompressed":
            # The broker keeps what lies below the log start, in the same segment; no reader can read it.
            assert log_bytes(golden).endswith(log_bytes(found))
        else:
            assert log_bytes(found) == log_bytes(golden)
        last = max(golden.glob("*.snapshot"))
        assert (found / last.name).read_bytes() == last.read_bytes()
        assert (found / "partition.metadata").read_bytes() == (golden / "partition.metadata").read_bytes()
        # The epoch of the records that compaction dropped is unknown, as after a recovery of Kafka's own.
        epochs = (
            b"0\n1\n0 3040\n" if name == "g1-compacted" else (golden / "leader-epoch-checkpoint").read_bytes()
        )
        assert (found / "leader-epoch-checkpoint").read_bytes() == epochs
    aborted = [
        b"".join(path.read_bytes() for path in sorted(directory.glob("g1-txn-0/*.txnindex")))
        for directory in (DATA, target)
    ]
    assert aborted[0] == aborted[1] != b""
    for checkpoint in ("recovery-point", "log-start", "replication"):
        name = f"{checkpoint}-offset-checkpoint"
        assert parse_checkpoint((target / name).read_text()) == parse_checkpoint((DATA / name).read_text())
    assert sorted(path.name for path in target.iterdir() if path.is_file()) == [
        ".kafka_cleanshutdown",
        "log-start-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ]
    assert not list(tmp_path.glob("out.*"))


async def test_another_cluster_gets_other_producer_ids(tmp_path: Path) -> None:
    """In batches, markers, transaction indexes and snapshots; everything else is as it was."""
    import_golden(tmp_path)
    target = tmp_path / "out"
    async with service_bench(tmp_path) as bench:
        code, output, _ = await run(bench.client.address, "g1-txn", str(target))
    assert code == 0
    assert "note: producer ids were raised by 2^48" in output
    golden, found = (
        [header for _, header in batches(log_bytes(directory / "g1-txn-0"))] for directory in (DATA, target)
    )
    assert any(header.is_transactional for header in golden)
    assert [header._replace(crc=0) for header in found] == [
        header._replace(crc=0, producer_id=header.producer_id + 2**48 * (header.producer_id >= 0))
        for header in golden
    ]
    folder = tmp_path / "again"
    import_kafka(folder / "data", target)
    async with service_bench(folder) as bench:
        for isolation in IsolationLevel:
            [records] = await bench.read_all("g1-txn", isolation=isolation)
            assert records == golden_records(DATA.parent, "txn", isolation.value)


async def test_a_compacted_tier_comes_out_with_its_holes(tmp_path: Path) -> None:
    config = {"cleanup.policy": "compact", "segment.bytes": "1024", "delete.retention.ms": "0"}
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("keyed", 2, config)
        for number in range(40):
            key, value = b"k%d" % (number % 4), b"%d" % number + bytes(200)
            await bench.client.append("keyed", 0, [Record(0, 1000, key, value)])
        # Deletions all: the end of what is left is a hole.
        for number in range(4):
            await bench.client.append("keyed", 0, [Record(0, 1000, b"k%d" % number, None)])
        for _ in range(3):
            await bench.client.admin.upload([], delete_local=True)
            await bench.client.admin.run_compaction(["keyed"])
        expected = await bench.read_all("keyed")
        logs = await exported(bench, "keyed", f"{tmp_path}/kafka", "--topic-id", format_topic_id(BROKERS_ID))
        assert [log["log_end_offset"] for log in logs] == [44, 0]
    metadata = (tmp_path / "kafka" / "keyed-1" / "partition.metadata").read_text()
    assert parse_partition_metadata(metadata) == BROKERS_ID
    folder = tmp_path / "again"
    import_kafka(folder / "data", tmp_path / "kafka")
    async with service_bench(folder) as bench:
        assert await bench.read_all("keyed") == expected
        ends = await bench.client.latest("keyed")
        assert ends == {TopicPartition("keyed", 0): 44, TopicPartition("keyed", 1): 0}
        await bench.client.append("keyed", 0, [Record(0, 1000, b"k", b"v")])
        assert (await bench.client.latest("keyed"))[TopicPartition("keyed", 0)] == 45


async def test_transactions_that_are_open_are_counted_and_told(tmp_path: Path) -> None:
    """Two are open at the end, a third one has been ended; and a fourth producer has none."""
    directory = tmp_path / "kafka" / "t-0"
    directory.mkdir(parents=True)
    for name in ("recovery-point", "log-start"):
        (tmp_path / "kafka" / f"{name}-offset-checkpoint").touch()
    data = b""
    for offset, producer_id in enumerate((1, 2, 3)):
        producer = BatchProducer(producer_id, 0, 0, is_transactional=True)
        data += encode_batch(
            [Record(0, 1000, b"k", b"v")], base_offset=offset, leader_epoch=0, producer=producer
        )
    marker = bytearray(EndTransactionMarker(ControlType.COMMIT, 0).to_batch(2, 0, 1000))
    stamp(marker, 0, base_offset=3, leader_epoch=0)
    data += marker + encode_batch(
        [Record(0, 1000, b"k", b"v")], base_offset=4, leader_epoch=0, producer=BatchProducer(4, 0, 0)
    )
    (directory / f"{0:020}.log").write_bytes(data)
    import_kafka(tmp_path / "data", tmp_path / "kafka")
    async with service_bench(tmp_path) as bench:
        [log] = await exported(bench, "t", f"{tmp_path}/out")
        assert log["open_transactions"] == 2
        code, output, _ = await run(bench.client.address, "t", f"{tmp_path}/again")
    assert code == 0
    assert "note: t-0 has 2 open transactions that the broker does not know" in output
    [snapshot] = (tmp_path / "out" / "t-0").glob("*.snapshot")
    entries = ProducerSnapshot.from_bytes(5, snapshot.read_bytes()).entries
    assert {entry.producer_id - 2**48: entry.current_txn_first_offset for entry in entries} == {
        1: 0,
        2: None,
        3: 2,
        4: None,
    }


async def test_a_damaged_topic_is_left_out_and_named(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        for name in ("bad", "good"):
            await bench.client.admin.create_topic(name, 2)
            for number in range(2):
                await bench.client.append(name, number, [Record(0, 1000, b"k", b"value")])
    # The process that appended them would read them from memory.
    path = tmp_path / "data" / "bad-1" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    async with service_bench(tmp_path) as bench:
        target = tmp_path / "out"
        code, output, errors = await run(bench.client.address, "bad", "good", str(target), "--json")
        assert code == 1
        [left_out, last] = errors.splitlines()
        assert left_out.startswith("left out: ")
        assert "topic=`bad` partition=`1`" in left_out
        assert "topics=`bad`" in last
        assert [(log["topic"], log["partition"]) for log in json.loads(output)] == [("good", 0), ("good", 1)]
        assert sorted(path.name for path in target.iterdir() if path.is_dir()) == ["good-0", "good-1"]
        for name in ("recovery-point", "log-start", "replication"):
            assert "bad" not in (target / f"{name}-offset-checkpoint").read_text()
        code, _, errors = await run(bench.client.address, "bad", f"{tmp_path}/none")
        assert code == 1
        assert "topics=`bad`" in errors
        assert not list(tmp_path.glob("none*"))


async def test_nothing_is_overwritten_and_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "file").touch()
        address, new = bench.client.address, f"{tmp_path}/new"
        assert "taken" in await refused(address, "t", f"{tmp_path}/taken")
        assert "topic=`u`" in await refused(address, "t", "u", new)
        assert (await run(address, "t", "u", new, "--topic-id", str(BROKERS_ID)))[0] == 2
        assert (await run(address, "t", new, "--topic-id", "neither"))[0] == 2
        before = sorted(tmp_path.iterdir())
        assert not [path for path in before if "export" in path.name or path.name == "new"]
        (tmp_path / "empty").mkdir()
        assert (await run(address, "t", f"{tmp_path}/empty", "--topic-id", str(BROKERS_ID)))[0] == 0
        assert (tmp_path / "empty" / "t-0" / "partition.metadata").exists()
