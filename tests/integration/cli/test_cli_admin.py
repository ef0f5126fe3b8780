"""The commands that change and describe topics, partitions and the server, against a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from stratalog.base.errors import (
    DataDirectoryError,
    InvalidConfigError,
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.cli.main import stratalog
from stratalog.cli.partition_failures import raise_failures
from stratalog.client import values
from tests.support.service.server_process import ServerProcess

TOPIC_NAME = re.compile(r"[^a-zA-Z0-9]")


@pytest.fixture
def topic(request: pytest.FixtureRequest, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that no other test uses. The commands of the test go to the server."""
    monkeypatch.setenv("STRATALOG_SERVER", server.address)
    return "admin-" + TOPIC_NAME.sub("-", request.node.name)


def result(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(stratalog, arguments, input=stdin)


def run(*arguments: str, stdin: bytes = b"") -> str:
    """The standard output of a command that must succeed."""
    ended = result(*arguments, stdin=stdin)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def failure(error: type[LogStoreError], *arguments: str) -> LogStoreError:
    """The error of a command that must fail."""
    ended = result(*arguments)
    assert isinstance(ended.exception, error), ended.output
    return ended.exception


def table(text: str) -> list[dict[str, str]]:
    """The rows of a table by the titles of their columns, which are two blanks apart."""
    titles, *rows = (re.split(" {2,}", line.strip()) for line in text.splitlines())
    return [dict(zip(titles, row, strict=True)) for row in rows]


def produce(topic: str, count: int, partition: int = 0) -> None:
    run("produce", topic, "--partition", str(partition), stdin=b"x\n" * count)


def test_keys_of_a_topic_are_set_and_removed(topic: str) -> None:
    run("topic", "create", topic, "--config", "segment.ms=6")
    altered = run_json("topic", "alter", topic, "--add", "retention.ms=5", "--delete", "segment.ms")
    assert {entry["name"]: (entry["value"], entry["source"]) for entry in altered} == {
        "retention.ms": ("5", "DYNAMIC_TOPIC_CONFIG"),
        "segment.ms": ("604800000", "DEFAULT_CONFIG"),
    }
    [row] = table(run("topic", "alter", topic, "--add", "retention.ms=7", "--dry-run"))
    assert (row["KEY"], row["VALUE"]) == ("retention.ms", "5"), "nothing has changed"
    [row] = table(run("topic", "alter", topic, "--add", "retention.ms=8"))
    assert (row["KEY"], row["VALUE"], row["SOURCE"]) == ("retention.ms", "8", "DYNAMIC_TOPIC_CONFIG")
    failure(InvalidConfigError, "topic", "alter", topic, "--add", "retention.ms=-2")
    [row] = table(run("topic", "alter", topic, "--config", "retention.ms=9"))
    assert (row["KEY"], row["VALUE"], row["SOURCE"]) == ("retention.ms", "9", "DYNAMIC_TOPIC_CONFIG")


def test_partitions_are_added(topic: str) -> None:
    run("topic", "create", topic, "--partitions", "2")
    assert run("topic", "add-partitions", topic, "--partitions", "3") == f"{topic} has 3 partitions\n"
    assert run_json("topic", "add-partitions", topic, "--partitions", "4")["partition_count"] == 4
    produce(topic, 1, partition=3)
    failure(InvalidRequestError, "topic", "add-partitions", topic, "--partitions", "1")
    assert len(run_json("log", "describe", topic)) == 4


def test_the_skew_of_a_topic_is_shown(topic: str) -> None:
    run("topic", "create", topic, "--partitions", "4")
    assert "skew:" not in run("topic", "describe", topic)
    produce(topic, 30, partition=2)
    produce(topic, 10, partition=1)
    [line] = [line for line in run("topic", "describe", topic).splitlines() if "skew:" in line]
    assert line.strip().startswith(
        "skew: partition 2 has 30 of 40 records (3.0 times the mean), partition 2 has "
    )
    # What lies in both tiers counts once.
    run("tier", "upload", topic)
    [uploaded] = [line for line in run("topic", "describe", topic).splitlines() if "skew:" in line]
    assert uploaded == line


def test_a_topic_of_one_partition_has_no_skew(topic: str) -> None:
    run("topic", "create", topic)
    produce(topic, 3)
    assert "skew:" not in run("topic", "describe", topic)


def starts(topic: str) -> list[int]:
    return [log["log_start_offset"] for log in run_json("log", "describe", topic)]


def test_records_are_deleted_before_a_position_in_all_partitions_or_some(topic: str) -> None:
    run("topic", "create", topic, "--partitions", "3")
    for partition in range(3):
        lines = [
            json.dumps({"value": "x", "timestamp": 1000 * number, "partition": partition})
            for number in range(1, partition + 5)
        ]
        run("produce", topic, "--format", "json", stdin="\n".join(lines).encode())
    # They end at 4, 5 and 6.
    assert run("records", "delete", topic, "--before", "1") == "".join(
        f"{topic}-{number} starts at 1\n" for number in range(3)
    )
    failure(OffsetOutOfRangeError, "records", "delete", topic, "--before", "5")
    assert starts(topic) == [1, 1, 1], "one partition is too short, so nothing is deleted"
    assert run_json("records", "delete", topic, "--before", "5", "--partition", "2", "--partition", "1") == [
        {"topic": topic, "partition": 1, "log_start_offset": 5},
        {"topic": topic, "partition": 2, "log_start_offset": 5},
    ]
    run("records", "delete", topic, "--before", "1970-01-01T00:00:03Z", "--partition", "0")
    assert starts(topic) == [2, 5, 5]
    run("records", "delete", topic, "--before", "-1")
    assert starts(topic) == [3, 5, 5], "one offset before the end; log starts never move back"
    run("records", "delete", topic, "--before", "latest")
    assert starts(topic) == [4, 5, 6]
    failure(UnknownTopicOrPartitionError, "records", "delete", topic, "--before", "0", "--partition", "3")


def test_the_description_of_a_log_has_the_lag_of_the_uploads(topic: str) -> None:
    run("topic", "create", topic)
    produce(topic, 1)
    run("tier", "upload", topic)
    produce(topic, 2)
    [row] = table(run("log", "describe", topic))
    [log] = run_json("log", "describe", topic)
    assert (row["LAG"], row["SEGMENTS"], row["SLICES"]) == ("2", "2", "1")
    assert row["LAG SIZE"] == f"{log['pending_upload_bytes']}B" != "0B"
    assert log["pending_upload_record_count"] == 2


def test_a_topic_that_is_not_tiered_has_no_lag(topic: str) -> None:
    run("topic", "create", topic, "--config", "remote.storage.enable=false")
    produce(topic, 1)
    [row] = table(run("log", "describe", topic))
    assert (row["LAG"], row["LAG SIZE"], row["END"]) == ("-", "-", "1")
    [log] = run_json("log", "describe", topic)
    assert (log["pending_upload_record_count"], log["pending_upload_bytes"]) == (-1, -1)


def test_the_help_explains_each_column_of_a_log() -> None:
    text = run("log", "describe", "--help")
    for column in (
        "LOCAL START",
        "COMPACTED",
        "RECOVERY",
        "LAG, LAG SIZE",
        "LOCAL, TIERED",
        "SEGMENTS",
        "SLICES",
    ):
        assert f"{column}  " in text


def test_segments_and_slices_are_listed(topic: str) -> None:
    run("topic", "create", topic, "--partitions", "2")
    produce(topic, 3, partition=1)
    run("tier", "upload", topic)
    produce(topic, 1, partition=1)
    rows = table(run("log", "segments", topic))
    assert [(row["PARTITION"], row["BASE"], row["END"], row["STATE"]) for row in rows] == [
        ("0", "0", "0", "active"),
        ("1", "0", "3", "closed"),
        ("1", "3", "4", "active"),
    ]
    assert [one["active"] for one in run_json("log", "segments", topic, "--partition", "1")] == [False, True]
    [row] = table(run("log", "slices", topic))
    [one] = run_json("log", "slices", topic, "--partition", "1")
    assert (row["PARTITION"], row["END"], row["RECORDS"]) == ("1", "3", "3")
    assert (one["partition"], one["object_name"]) == (1, row["OBJECT"])
    assert run_json("log", "slices", topic, "--partition", "0") == []


def test_active_segments_are_closed_and_records_flushed(topic: str) -> None:
    run("topic", "create", topic, "--partitions", "2")
    produce(topic, 3, partition=1)
    assert run("log", "flush", topic, "--partition", "1") == f"{topic}-1 is on the disk up to 3\n"
    assert run_json("log", "flush", topic) == [
        {"partition": 0, "recovery_point": 0},
        {"partition": 1, "recovery_point": 3},
    ]
    assert run("log", "roll", topic).splitlines() == [
        f"the active segment of {topic}-0 begins at 0",
        f"the active segment of {topic}-1 begins at 3",
    ]
    assert run_json("log", "roll", topic, "--partition", "1") == [{"partition": 1, "active_base_offset": 3}]
    assert len(run_json("log", "segments", topic, "--partition", "1")) == 2
    failure(UnknownTopicOrPartitionError, "log", "roll", topic, "--partition", "2")


def test_producers_are_listed(topic: str) -> None:
    run("topic", "create", topic)
    assert run_json("producers", "list", topic) == []
    produce(topic, 1)
    [listed] = run_json("producers", "list", topic)
    assert (listed["producer_epoch"], listed["last_sequence"]) == (0, 0)
    assert run("producers", "list", topic).split()[:2] == ["PARTITION", "PRODUCER"]


def test_the_server_describes_itself(topic: str, server: ServerProcess) -> None:
    document = run_json("server", "info", "--server", server.address)
    rows = {row["WHAT"]: row["VALUE"] for row in table(run("server", "info"))}
    assert rows["version"] == (document["version"] or "-")
    assert rows["store id"] == document["store_id"]
    assert rows["shards"] == "0 (epoch 1)"
    assert rows["largest append request"] == "32.0MiB"
    assert document["limits"]["max_request_bytes"] == 32 << 20
    assert document["owned_shards"] == [{"shard": 0, "epoch": 1}]


def test_failed_partitions_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    full = DataDirectoryError("the disk is full; free space")
    failed = [values.RolledPartition(number, 5, None if number == 4 else full) for number in (1, 2, 3, 4)]
    with pytest.raises(DataDirectoryError) as caught:
        raise_failures("t", failed)
    assert caught.value.fields == {"topic": "t", "partition": 1}
    assert capsys.readouterr().err.splitlines() == [
        "t-2: the disk is full; free space",
        "t-3: the disk is full; free space",
    ]
    raise_failures("t", [])


def leaves(group: click.Group, wanted: Callable[[str], bool]) -> list[tuple[str, click.Command]]:
    context, found = click.Context(group), list[tuple[str, click.Command]]()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += [(f"{name} {below}", leaf) for below, leaf in leaves(command, lambda _: True)]
        else:
            found.append((name, command))
    return [(name, leaf) for name, leaf in found if wanted(name)]


ADMINISTERING = (
    "topic ",
    "config ",
    "records ",
    "log describe",
    "log segments",
    "log slices",
    "log roll",
    "log flush",
)


@pytest.mark.parametrize(
    ("name", "command"),
    leaves(stratalog, lambda name: name.startswith((*ADMINISTERING, "producers ", "server info"))),
)
def test_the_help_has_an_example_that_is_accepted(name: str, command: click.Command) -> None:
    example = re.search(rf"Example: stratalog {name}(.*)", command.help or "")
    assert example is not None
    command.make_context(name, example[1].split())
