"""A real broker's log directory, imported: every topic reads back through gRPC as Kafka's own consumer read
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

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from stratalog.client.isolation_level import IsolationLevel
from stratalog.log.checkpoint import format_checkpoint, parse_checkpoint
from stratalog.manager.partitions.partition_metadata import parse_partition_metadata
from stratalog.record.batch import batches
from stratalog.record.header import LEADER_EPOCH_POSITION, parse_header
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
from tests.support.logs.golden_records import golden_records
from tests.support.places import GOLDEN
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import ServiceBench, service_bench

TOPICS = ("appendtime", "codecs", "compacted", "recompressed", "txn")
SPECS = {
    "earliest": log_pb2.OFFSET_SPEC_EARLIEST,
    "latest": log_pb2.OFFSET_SPEC_LATEST,
    "max_timestamp": log_pb2.OFFSET_SPEC_MAX_TIMESTAMP,
}


def import_golden(folder: Path, *options: str) -> dict[str, Any]:
    """Import all of it into `folder/data`; returns what the command prints with --json."""
    shutil.copytree(GOLDEN / "data", folder / "kafka")
    arguments = ["import", "kafka", f"{folder}/kafka", "--data-dir", f"{folder}/data", "--json", *options]
    result = CliRunner().invoke(stratalog, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def files_of(directory: Path) -> Mapping[str, bytes]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def expected_records(name: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> list[Record]:
    return golden_records(GOLDEN, name, isolation.value)


async def require_all_as_expected(bench: ServiceBench) -> None:
    for name, isolation in product(TOPICS, IsolationLevel):
        [records] = await bench.read_all(f"g1-{name}", isolation=isolation)
        assert records == expected_records(name, isolation), (name, isolation)


async def require_offsets_as_expected(bench: ServiceBench) -> None:
    for name, isolation in product(TOPICS, IsolationLevel):
        partition = TopicPartition(f"g1-{name}", 0)
        answered = json.loads((GOLDEN / "expected" / f"{name}.offsets.json").read_text())
        expected = answered[isolation.value]
        answers = await bench.client.list_offsets(
            [
                (partition, SPECS.get(question), None if question in SPECS else int(question[3:]))
                for question in expected
            ],
            isolation=isolation,
        )
        found = {
            question: [answer.offset, answer.timestamp_ms]
            for question, answer in zip(expected, answers, strict=True)
        }
        assert found == expected, (name, isolation)


async def test_everything_reads_back_as_kafka_read_it(tmp_path: Path) -> None:
    report = import_golden(tmp_path)
    assert [topic["topic"] for topic in report["topics"]] == [f"g1-{name}" for name in TOPICS]
    async with service_bench(tmp_path) as bench:
        assert bench.server.engine.logs.was_clean
        await require_all_as_expected(bench)
        await require_offsets_as_expected(bench)
        for topic in await bench.client.admin.describe_topics([]):
            metadata = (GOLDEN / "data" / f"{topic.name}-0" / "partition.metadata").read_text()
            assert topic.topic_id == str(parse_partition_metadata(metadata))
            assert dict(topic.config_overrides) == {"retention.ms": "-1"}


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_the_commands_show_what_kafkas_consumer_got(tmp_path: Path, isolation: IsolationLevel) -> None:
    import_golden(tmp_path)
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


async def test_from_the_object_store_it_reads_the_same(tmp_path: Path) -> None:
    import_golden(tmp_path)
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.upload([], delete_local=True)
        for name in TOPICS:
            [log] = await bench.client.admin.describe_log(f"g1-{name}")
            assert log.log_start_offset < log.local_log_start_offset == log.tiered_end_offset
        await require_all_as_expected(bench)
        await require_offsets_as_expected(bench)


async def test_from_the_bucket_alone_it_reads_the_same(tmp_path: Path) -> None:
    import_golden(tmp_path)
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.upload([])
    shutil.rmtree(tmp_path / "data")
    async with service_bench(tmp_path) as bench:
        await require_all_as_expected(bench)
        await require_offsets_as_expected(bench)


async def test_the_broker_keeps_its_files_whatever_happens_to_the_topics(tmp_path: Path) -> None:
    import_golden(tmp_path)
    async with service_bench(tmp_path) as bench:
        for name in TOPICS:
            await bench.append(f"g1-{name}", [b"after the import"])
        await bench.client.admin.upload([], delete_local=True)
        await bench.client.admin.delete_topic("g1-txn")
    assert files_of(tmp_path / "kafka") == files_of(GOLDEN / "data")


async def test_records_go_on_behind_the_last_one_under_a_higher_epoch(tmp_path: Path) -> None:
    epochs = "0\n1\n41 0\n"
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    (tmp_path / "kafka" / "g1-codecs-0" / "leader-epoch-checkpoint").write_text(epochs)
    log = tmp_path / "kafka" / "g1-codecs-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    for position, _ in batches(data):
        at = position + LEADER_EPOCH_POSITION
        data[at : at + 4] = (41).to_bytes(4, "big")
    log.write_bytes(data)
    options = ["import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/data"]
    CliRunner().invoke(stratalog, [*options, "--topic", "g1-codecs"], catch_exceptions=False)
    async with service_bench(tmp_path) as bench:
        assert await bench.append("g1-codecs", [b"after the import"]) == 438
        [answer] = await bench.client.fetch({TopicPartition("g1-codecs", 0): 438})
        assert parse_header(answer.batches).leader_epoch > 41


def forget_recovery_points(log_dir: Path) -> None:
    """Nothing was fsynced when the broker was killed, as far as it knows."""
    path = log_dir / "recovery-point-offset-checkpoint"
    path.write_text(format_checkpoint(dict.fromkeys(parse_checkpoint(path.read_text()), 0)))


@pytest.mark.parametrize("is_whole", [True, False])
async def test_what_a_killed_broker_left_is_recovered(tmp_path: Path, is_whole: bool) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    (tmp_path / "kafka" / ".kafka_cleanshutdown").unlink()
    forget_recovery_points(tmp_path / "kafka")
    log = tmp_path / "kafka" / "g1-txn-0" / f"{258:020}.log"
    # A broker makes the indexes of the segment that it writes as large as they may become.
    os.truncate(log.with_suffix(".index"), 10_485_760)
    if not is_whole:
        os.truncate(log, log.stat().st_size - 1)
    found = files_of(tmp_path / "kafka")
    arguments = [
        "import",
        "kafka",
        f"{tmp_path}/kafka",
        "--data-dir",
        f"{tmp_path}/data",
        "--topic",
        "g1-txn",
    ]
    result = CliRunner().invoke(stratalog, arguments, catch_exceptions=False)
    assert "recovered" in result.stdout
    assert files_of(tmp_path / "kafka") == found
    async with service_bench(tmp_path) as bench:
        [records] = await bench.read_all("g1-txn")
        assert records == expected_records("txn")
        assert await bench.append("g1-txn", [b"next"]) == (259 if is_whole else 258)


@pytest.mark.parametrize("option", ["--json", ""])
async def test_what_a_recovery_cut_off_is_told_with_where_it_is(tmp_path: Path, option: str) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    (tmp_path / "kafka" / ".kafka_cleanshutdown").unlink(missing_ok=True)
    forget_recovery_points(tmp_path / "kafka")
    path = tmp_path / "kafka" / "g1-codecs-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    first = parse_header(data)
    second = parse_header(data, first.size_in_bytes)
    data[first.size_in_bytes + second.size_in_bytes - 1] ^= 1
    path.write_bytes(data)
    arguments = ["import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/data"]
    arguments += ["--topic", "g1-codecs", "--topic", "g1-txn", *filter(None, [option])]
    result = CliRunner().invoke(stratalog, arguments, catch_exceptions=False)
    kept = tmp_path / "data" / "g1-codecs-0" / f"{first.next_offset:020}.cut"
    if option:
        topics = json.loads(result.stdout)["topics"]
        remains = [partition["remains"] for topic in topics for partition in topic["partitions"]]
        assert remains == [[str(kept)], []]
    else:
        [loss, warning] = [line for line in result.stdout.splitlines() if line.startswith("warning: ")]
        assert f"g1-codecs-0 ends at offset {first.next_offset}, and the broker's high watermark was" in loss
        assert "g1-codecs-0" in warning
        assert f"offset {first.next_offset}," in warning
        assert warning.endswith(str(kept))
    assert kept.read_bytes() == data[first.size_in_bytes :]


def test_the_same_import_again_says_what_is_there_and_brings_the_rest(tmp_path: Path) -> None:
    first = import_golden(tmp_path, "--topic", "g1-txn")
    assert (first["already_imported"], [topic["topic"] for topic in first["topics"]]) == ([], ["g1-txn"])
    arguments = ["import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/data"]
    plan = CliRunner().invoke(stratalog, [*arguments, "--dry-run", "--json"], catch_exceptions=False)
    assert json.loads(plan.stdout)["already_imported"] == ["g1-txn"]
    again = CliRunner().invoke(stratalog, arguments, catch_exceptions=False)
    assert again.exit_code == 0
    assert "note: g1-txn exists already with the same id" in again.stdout
    assert "imported 4 topics" in again.stdout
    last = CliRunner().invoke(stratalog, [*arguments, "--json"], catch_exceptions=False)
    assert last.exit_code == 0
    report = json.loads(last.stdout)
    assert (report["topics"], report["leftovers"]) == ([], [])
    assert report["already_imported"] == [f"g1-{name}" for name in TOPICS]
    assert len(report["remarks"]) == len(TOPICS)


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_told_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    arguments = ("import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/new/data", "--copy")
    process = subprocess.Popen(
        [sys.executable, "-c", _HANGS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"staged\n"
    assert len(list((tmp_path / "new" / "data").glob("import.*-staging/closed/*-0"))) == len(TOPICS)
    process.send_signal(number)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (130, b"")
    assert not (tmp_path / "new").exists()


def test_what_is_passed_over_is_told_in_a_line_for_each_topic(tmp_path: Path) -> None:
    names = ["__transaction_state-0", "__transaction_state-1", "__consumer_offsets-7", "g1-txn-0.0af3-delete"]
    for name in names:
        (tmp_path / "kafka" / name).mkdir(parents=True)
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka", dirs_exist_ok=True)
    arguments = ["import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/data", "--dry-run"]
    plan = json.loads(CliRunner().invoke(stratalog, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert sorted(over["name"] for over in plan["passed_over"]) == sorted(names)
    lines = CliRunner().invoke(stratalog, arguments, catch_exceptions=False).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("passed over")] == [
        "passed over g1-txn-0.0af3-delete",
        "passed over __consumer_offsets-7",
        "passed over 2 partitions of __transaction_state",
    ]


def test_a_log_that_ends_below_its_start_is_told(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    (tmp_path / "kafka" / "log-start-offset-checkpoint").write_text("0\n1\ng1-codecs 0 500\n")
    arguments = ["import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/data"]
    result = CliRunner().invoke(stratalog, [*arguments, "--topic", "g1-codecs"], catch_exceptions=False)
    assert "warning: the log of g1-codecs-0 ended at offset 438, below its start; it begins anew at 500" in (
        result.stdout
    )


@pytest.mark.parametrize("was_clean", [True, False])
async def test_without_its_transaction_indexes_no_aborted_record_is_read(
    tmp_path: Path, was_clean: bool
) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    for path in (tmp_path / "kafka" / "g1-txn-0").glob("*.txnindex"):
        path.unlink()
    if not was_clean:
        (tmp_path / "kafka" / ".kafka_cleanshutdown").unlink()
    arguments = ["import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/data"]
    CliRunner().invoke(stratalog, arguments, catch_exceptions=False)
    async with service_bench(tmp_path) as bench:
        await require_all_as_expected(bench)
        await bench.client.admin.upload([], delete_local=True)
        await require_all_as_expected(bench)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--topic", "nope"), "correct the name"),
        (("--config", "retention.ms=x"), "retention.ms"),
        (("--config", "nope=1"), "nope"),
        ((), "fsynced bytes of the log are damaged"),
    ],
)
def test_a_refused_import_leaves_nothing(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    if not options:
        (tmp_path / "kafka" / ".kafka_cleanshutdown").unlink()
        log = tmp_path / "kafka" / "g1-codecs-0" / f"{0:020}.log"
        os.truncate(log, log.stat().st_size // 2)
    arguments = ["import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/data"]
    result = CliRunner().invoke(stratalog, [*arguments, *options])
    assert result.exit_code != 0
    assert message in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka"]


def changed_import(folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """What the command says of g1-codecs and g1-txn in `folder/kafka`, as text and as JSON."""
    outputs: list[str] = []
    for format_options in ((), ("--json",)):
        arguments = ["import", "kafka", f"{folder}/kafka", "--data-dir", f"{folder}/{len(outputs)}"]
        arguments += ["--topic", "g1-codecs", "--topic", "g1-txn", *options, *format_options]
        result = CliRunner().invoke(stratalog, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        outputs.append(result.stdout)
    document: dict[str, Any] = json.loads(outputs[1])
    assert [line for line in outputs[0].splitlines() if line in document["remarks"]] == document["remarks"]
    return outputs[0], document


def partitions_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [partition for topic in document["topics"] for partition in topic["partitions"]]


def test_what_other_brokers_may_not_have_is_told(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    (tmp_path / "kafka" / "replication-offset-checkpoint").write_text("0\n2\ng1-codecs 0 430\ng1-txn 0 259\n")
    text, document = changed_import(tmp_path)
    assert "note: g1-codecs-0 has 8 offsets above the broker's high watermark; they were kept" in text
    assert "g1-txn-0 has" not in text
    assert [partition["uncertain_offsets"] for partition in partitions_of(document)] == [8, 0]


def test_that_last_partitions_may_be_missing_is_told(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    text, _ = changed_import(tmp_path, "--dry-run")
    assert "g1-codecs has 1 partition, g1-txn has 1 partition here" in text


@pytest.mark.parametrize("options", [(), ("--config", "cleanup.policy=compact")])
def test_a_segment_that_did_not_come_along_is_told(tmp_path: Path, options: tuple[str, ...]) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    logs = sorted((tmp_path / "kafka" / "g1-txn-0").glob("*.log"))
    assert len(logs) > 2
    for path in (tmp_path / "kafka" / "g1-txn-0").glob(f"{logs[1].stem}.*"):
        path.unlink()
    text, document = changed_import(tmp_path, *options)
    assert [partition["holes_before"] for partition in partitions_of(document)] == [[], [int(logs[2].stem)]]
    assert (f"warning: no batch of g1-txn-0 has the offsets just below {int(logs[2].stem)}," in text) == (
        not options
    )


def test_a_torn_end_that_was_cut_off_is_told(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    (tmp_path / "kafka" / ".kafka_cleanshutdown").unlink()
    forget_recovery_points(tmp_path / "kafka")
    log = tmp_path / "kafka" / "g1-txn-0" / f"{258:020}.log"
    size = log.stat().st_size
    os.truncate(log, size - 1)
    text, document = changed_import(tmp_path)
    assert [partition["truncated_bytes"] for partition in partitions_of(document)] == [0, size - 1]
    assert f"note: {size - 1} bytes behind offset 258 of g1-txn-0 were not sound batches" in text


def two_disks(folder: Path) -> list[str]:
    """The log directory as a broker has it on two disks; one topic, of which records were deleted, is on the
    second."""
    shutil.copytree(GOLDEN / "data", folder / "disk1")
    (folder / "disk2").mkdir()
    shutil.move(folder / "disk1" / "g1-recompressed-0", folder / "disk2")
    for name in ("recovery-point", "log-start", "replication"):
        path = folder / "disk1" / f"{name}-offset-checkpoint"
        offsets = parse_checkpoint(path.read_text())
        for disk in ("disk1", "disk2"):
            own = {
                partition: offset
                for partition, offset in offsets.items()
                if (folder / disk / str(partition)).exists()
            }
            (folder / disk / path.name).write_text(format_checkpoint(own))
    shutil.copy(folder / "disk1" / ".kafka_cleanshutdown", folder / "disk2")
    return [f"{folder}/disk1", f"{folder}/disk2"]


async def test_a_broker_of_two_disks_is_imported_from_both(tmp_path: Path) -> None:
    disks = two_disks(tmp_path)
    arguments = ["import", "kafka", *disks, "--data-dir", f"{tmp_path}/data"]
    result = CliRunner().invoke(stratalog, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "warning" not in result.stdout
    async with service_bench(tmp_path) as bench:
        await require_all_as_expected(bench)
        await require_offsets_as_expected(bench)


def test_what_was_brought_together_without_its_checkpoints_is_imported_only_if_told_so(
    tmp_path: Path,
) -> None:
    two_disks(tmp_path)
    shutil.move(tmp_path / "disk2" / "g1-recompressed-0", tmp_path / "disk1")
    arguments = ["import", "kafka", f"{tmp_path}/disk1", "--data-dir", f"{tmp_path}/data"]
    for option in ("--dry-run", "--json"):
        with pytest.raises(DataDirectoryError):
            CliRunner().invoke(stratalog, [*arguments, option], catch_exceptions=False)
        assert not (tmp_path / "data").exists()
    arguments += ["--allow-missing-checkpoints", "--json"]
    warning = "warning: 1 partition of g1-recompressed (0) missing in the"
    for options in (["--dry-run"], []):
        result = CliRunner().invoke(stratalog, [*arguments, *options], catch_exceptions=False)
        report = json.loads(result.stdout)
        assert len([remark for remark in report["remarks"] if remark.startswith(warning)]) == 1
        starts = {topic["topic"]: topic["partitions"][0]["log_start_offset"] for topic in report["topics"]}
        # It was 37.
        assert starts["g1-recompressed"] == 0


async def test_a_broker_that_was_killed_before_its_first_checkpoint_is_imported(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    (tmp_path / "kafka" / ".kafka_cleanshutdown").unlink()
    for name in ("recovery-point", "log-start", "replication"):
        (tmp_path / "kafka" / f"{name}-offset-checkpoint").write_text("")
    arguments = ["import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/data"]
    result = CliRunner().invoke(stratalog, [*arguments, "--topic", "g1-txn"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "warning" not in result.stdout
    async with service_bench(tmp_path) as bench:
        [records] = await bench.read_all("g1-txn")
        assert records == expected_records("txn")
