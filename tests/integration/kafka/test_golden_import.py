"""Imports a real broker's log directory: every topic reads back through gRPC as Kafka's own consumer read
it, at both isolation levels, from the local logs and from the object store.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.position import TimePosition
from stratalog.log.checkpoint import format_checkpoint, parse_checkpoint
from stratalog.manager.directories.partition_metadata import parse_partition_metadata
from stratalog.record.batch import batches
from stratalog.record.header import LEADER_EPOCH_POSITION, parse_header
from stratalog.record.record import Record
from tests.support.kafka.import_command import import_kafka, import_report
from tests.support.logs.golden_records import golden_records
from tests.support.places import GOLDEN
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import ServiceBench, service_bench

TOPICS = ("appendtime", "codecs", "compacted", "recompressed", "txn")
NAMES = {"earliest": "earliest", "latest": "latest", "max_timestamp": "max-timestamp"}


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """The log directory of the broker."""
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    return tmp_path / "kafka"


@pytest.fixture
def killed(broker: Path) -> Path:
    """The log directory of a broker that was killed and, as far as it knows, has fsynced nothing."""
    (broker / ".kafka_cleanshutdown").unlink()
    path = broker / "recovery-point-offset-checkpoint"
    path.write_text(format_checkpoint(dict.fromkeys(parse_checkpoint(path.read_text()), 0)))
    return broker


def import_to(data_dir: Path, *options: str) -> str:
    """Import the log directory beside `data_dir`; returns what the command prints."""
    return import_kafka(data_dir, data_dir.with_name("kafka"), *options)


def report_of(data_dir: Path, *options: str) -> dict[str, Any]:
    return import_report(data_dir, data_dir.with_name("kafka"), *options)


def files_of(directory: Path) -> Mapping[str, bytes]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def expected_records(name: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> list[Record]:
    return golden_records(GOLDEN, name, isolation.value)


async def require_all_as_expected(bench: ServiceBench) -> None:
    for name, isolation in product(TOPICS, IsolationLevel):
        [records] = await bench.read_all(f"g1-{name}", isolation=isolation)
        assert records == expected_records(name, isolation), (name, isolation)
        partition = TopicPartition(f"g1-{name}", 0)
        answered = json.loads((GOLDEN / "expected" / f"{name}.offsets.json").read_text())
        expected = answered[isolation.value]
        answers = await bench.client.list_offsets(
            [
                (partition, NAMES[question] if question in NAMES else TimePosition(int(question[3:])))
                for question in expected
            ],
            isolation=isolation,
        )
        found = {
            question: [answer.offset, answer.timestamp_ms]
            for question, answer in zip(expected, answers, strict=True)
        }
        assert found == expected, (name, isolation)


@pytest.mark.usefixtures("broker")
async def test_everything_reads_back_as_kafka_read_it_from_every_tier(tmp_path: Path) -> None:
    """The broker keeps its files, whatever happens to the topics."""
    report = report_of(tmp_path / "data")
    assert [topic["topic"] for topic in report["topics"]] == [f"g1-{name}" for name in TOPICS]
    async with service_bench(tmp_path) as bench:
        assert bench.server.engine.local.logs.was_clean
        for topic in await bench.client.admin.describe_topics([]):
            metadata = (GOLDEN / "data" / f"{topic.name}-0" / "partition.metadata").read_text()
            assert topic.topic_id == str(parse_partition_metadata(metadata))
            assert dict(topic.config_overrides) == {"retention.ms": "-1"}
        await require_all_as_expected(bench)
        await bench.client.admin.upload([])
    shutil.rmtree(tmp_path / "data")
    async with service_bench(tmp_path) as bench:
        await require_all_as_expected(bench)
    assert files_of(tmp_path / "kafka") == files_of(GOLDEN / "data")


@pytest.mark.usefixtures("broker")
async def test_what_is_linked_into_a_server_is_not_changed_by_it(tmp_path: Path) -> None:
    import_to(tmp_path / "data")
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.upload([], delete_local=True)
        for name in TOPICS:
            [log] = await bench.client.admin.describe_log(f"g1-{name}")
            assert log.log_start_offset < log.local_log_start_offset == log.tiered_end_offset
        await require_all_as_expected(bench)
        for name in TOPICS:
            await bench.append(f"g1-{name}", [b"after the import"])
        await bench.client.admin.upload([], delete_local=True)
        await bench.client.admin.delete_topic("g1-txn")
    assert files_of(tmp_path / "kafka") == files_of(GOLDEN / "data")


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("isolation", IsolationLevel)
def test_the_commands_show_what_kafkas_consumer_got(tmp_path: Path, isolation: IsolationLevel) -> None:
    import_to(tmp_path / "data")
    with ServerProcess(f"{tmp_path}/data") as server:

        def output_of(*arguments: str) -> str:
            options = ["--isolation", isolation.value, "--json", "--server", server.address]
            return CliRunner().invoke(stratalog, [*arguments, *options], catch_exceptions=False).stdout

        shown = [json.loads(line)["offset"] for line in output_of("consume", "g1-txn").splitlines()]
        assert shown == [record.offset for record in expected_records("txn", isolation)]
        answered = json.loads((GOLDEN / "expected" / "txn.offsets.json").read_text())[isolation.value]
        for question, (offset, timestamp_ms) in answered.items():
            at = question.removeprefix("ts:").replace("_", "-")
            [row] = json.loads(output_of("log", "offsets", "g1-txn", "--at", at))
            known = (None if offset < 0 else offset, None if timestamp_ms < 0 else timestamp_ms)
            assert (row["offset"], row["timestamp_ms"]) == known, question


async def test_records_go_on_behind_the_last_one_under_a_higher_epoch(tmp_path: Path, broker: Path) -> None:
    (broker / "g1-codecs-0" / "leader-epoch-checkpoint").write_text("0\n1\n41 0\n")
    log = broker / "g1-codecs-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    for position, _ in batches(data):
        at = position + LEADER_EPOCH_POSITION
        data[at : at + 4] = (41).to_bytes(4, "big")
    log.write_bytes(data)
    import_to(tmp_path / "data", "--topic", "g1-codecs")
    async with service_bench(tmp_path) as bench:
        assert await bench.append("g1-codecs", [b"after the import"]) == 438
        [answer] = await bench.client.fetch({TopicPartition("g1-codecs", 0): 438})
        assert parse_header(answer.batches).leader_epoch > 41


@pytest.mark.parametrize("is_whole", [True, False])
async def test_what_a_killed_broker_left_is_recovered(tmp_path: Path, killed: Path, is_whole: bool) -> None:
    log = killed / "g1-txn-0" / f"{258:020}.log"
    # A broker makes the indexes of the segment that it writes as large as they may become.
    os.truncate(log.with_suffix(".index"), 10_485_760)
    if not is_whole:
        os.truncate(log, log.stat().st_size - 1)
    found = files_of(killed)
    assert "recovered" in import_to(tmp_path / "data", "--topic", "g1-txn")
    assert files_of(killed) == found
    async with service_bench(tmp_path) as bench:
        [records] = await bench.read_all("g1-txn")
        assert records == expected_records("txn")
        assert await bench.append("g1-txn", [b"next"]) == (259 if is_whole else 258)


# Where SIGINT is ignored, as in a run in the background, a child inherits that; so the program asks for it.
_HANGS = """
import signal
import sys
import threading
from stratalog.cli.main import main
from stratalog.migration.import_staging import ImportStaging

def open_logs(*arguments, **options):
    print("staged", flush=True)
    threading.Event().wait()

signal.signal(signal.SIGINT, signal.default_int_handler)
ImportStaging.open = open_logs
sys.argv[:1] = ["stratalog"]
main()
"""


@pytest.mark.usefixtures("broker")
def test_one_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    arguments = ("import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/new/data", "--copy")
    process = subprocess.Popen(
        [sys.executable, "-c", _HANGS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"staged\n"
    assert len(list((tmp_path / "new" / "data").glob("import.*-staging/closed/*-0"))) == len(TOPICS)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (130, b"")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("was_clean", [True, False])
async def test_without_its_transaction_indexes_no_aborted_record_is_read(
    tmp_path: Path, broker: Path, was_clean: bool
) -> None:
    for path in (broker / "g1-txn-0").glob("*.txnindex"):
        path.unlink()
    if not was_clean:
        (broker / ".kafka_cleanshutdown").unlink()
    import_to(tmp_path / "data", "--topic", "g1-txn")
    async with service_bench(tmp_path) as bench:
        for delete_local in (False, True):
            for isolation in IsolationLevel:
                [records] = await bench.read_all("g1-txn", isolation=isolation)
                assert records == expected_records("txn", isolation)
            await bench.client.admin.upload([], delete_local=delete_local)


@pytest.mark.parametrize("options", [("--topic", "nope"), ("--config", "nope=1"), ()])
def test_a_refused_import_leaves_nothing(tmp_path: Path, broker: Path, options: tuple[str, ...]) -> None:
    if not options:
        (broker / ".kafka_cleanshutdown").unlink()
        log = broker / "g1-codecs-0" / f"{0:020}.log"
        os.truncate(log, log.stat().st_size // 2)
    arguments = ["import", "kafka", str(broker), "--data-dir", f"{tmp_path}/data", *options]
    assert isinstance(CliRunner().invoke(stratalog, arguments).exception, LogStoreError)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka"]


# --- what an import tells ----------------------------------------------------------------------------------


def told_of(folder: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    """The text that the command prints of g1-codecs and g1-txn, and the partitions of its JSON document,
    which has the same remarks."""
    options = ("--topic", "g1-codecs", "--topic", "g1-txn", *options)
    text, document = import_to(folder / "0", *options), report_of(folder / "1", *options)
    assert [line for line in text.splitlines() if line in document["remarks"]] == document["remarks"]
    return text, [partition for topic in document["topics"] for partition in topic["partitions"]]


def test_a_log_that_ends_below_its_start_is_reported(tmp_path: Path, broker: Path) -> None:
    (broker / "log-start-offset-checkpoint").write_text("0\n1\ng1-codecs 0 500\n")
    warning = "warning: the log of g1-codecs-0 ended at offset 438, below its start; it begins anew at 500"
    assert warning in told_of(tmp_path)[0]


def test_what_other_brokers_may_not_have_is_reported(tmp_path: Path, broker: Path) -> None:
    (broker / "replication-offset-checkpoint").write_text("0\n2\ng1-codecs 0 430\ng1-txn 0 259\n")
    text, partitions = told_of(tmp_path)
    assert "note: g1-codecs-0 has 8 offsets above the broker's high watermark; they were kept" in text
    assert "g1-txn-0 has" not in text
    assert [partition["uncertain_offsets"] for partition in partitions] == [8, 0]
    assert [partition["open_transactions"] for partition in partitions] == [0, 0]


@pytest.mark.usefixtures("broker")
def test_that_last_partitions_may_be_missing_is_reported(tmp_path: Path) -> None:
    assert "g1-codecs has 1 partition, g1-txn has 1 partition here" in told_of(tmp_path, "--dry-run")[0]


@pytest.mark.parametrize("options", [(), ("--config", "cleanup.policy=compact")])
def test_a_segment_that_did_not_come_along_is_reported(
    tmp_path: Path, broker: Path, options: tuple[str, ...]
) -> None:
    _, second, third, *_ = sorted((broker / "g1-txn-0").glob("*.log"))
    for path in (broker / "g1-txn-0").glob(f"{second.stem}.*"):
        path.unlink()
    text, partitions = told_of(tmp_path, *options)
    assert [partition["holes_before"] for partition in partitions] == [[], [int(third.stem)]]
    warning = f"warning: no batch of g1-txn-0 has the offsets just below {int(third.stem)},"
    assert (warning in text) == (not options)


def test_a_torn_end_that_was_cut_off_is_reported(tmp_path: Path, killed: Path) -> None:
    log = killed / "g1-txn-0" / f"{258:020}.log"
    size = log.stat().st_size
    os.truncate(log, size - 1)
    text, partitions = told_of(tmp_path)
    assert [partition["truncated_bytes"] for partition in partitions] == [0, size - 1]
    assert f"note: {size - 1} bytes behind offset 258 of g1-txn-0 were not sound batches" in text


def test_what_a_recovery_cut_off_is_reported_with_where_it_is(tmp_path: Path, killed: Path) -> None:
    path = killed / "g1-codecs-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    first = parse_header(data)
    second = parse_header(data, first.size_in_bytes)
    data[first.size_in_bytes + second.size_in_bytes - 1] ^= 1
    path.write_bytes(data)
    options = ("--topic", "g1-codecs", "--topic", "g1-txn")
    kept = [tmp_path / name / "g1-codecs-0" / f"{first.next_offset:020}.cut" for name in ("0", "1")]
    lines = import_to(tmp_path / "0", *options).splitlines()
    [loss, warning] = [line for line in lines if line.startswith("warning: ")]
    assert f"g1-codecs-0 ends at offset {first.next_offset}, and the broker's high watermark was" in loss
    assert "g1-codecs-0" in warning
    assert f"offset {first.next_offset}," in warning
    assert warning.endswith(str(kept[0]))
    topics = report_of(tmp_path / "1", *options)["topics"]
    assert [topic["partitions"][0]["remains"] for topic in topics] == [[str(kept[1])], []]
    assert kept[1].read_bytes() == data[first.size_in_bytes :]
