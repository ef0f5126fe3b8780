"""Every subcommand against a real server: what it prints, and how it fails."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.cli.main import COMMANDS, main, stratalog
from stratalog.record.key_partition import partition_for_key
from tests.support.service.server_process import ServerProcess

PROGRAM = [sys.executable, "-m", "stratalog.cli"]
_Error = TypeVar("_Error", bound=LogStoreError)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return "topic-" + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


@pytest.fixture
def run(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setenv("STRATALOG_SERVER", server.address)
    return Runner()


class Runner:
    """Runs a command line in this process."""

    def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        """The standard output of a command that must succeed."""
        result = self.result(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """The one JSON document that it prints with --json."""
        return json.loads(self(*arguments, "--json", stdin=stdin))

    def lines(self, *arguments: str) -> list[Any]:
        """The JSON lines that it prints."""
        return [json.loads(line) for line in self(*arguments, "--json").splitlines()]

    def failure(self, error: type[_Error], *arguments: str, stdin: bytes = b"") -> _Error:
        """The error of a command that must fail."""
        result = self.result(*arguments, stdin=stdin)
        assert isinstance(result.exception, error), result.output
        return result.exception

    def result(self, *arguments: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(stratalog, arguments, input=stdin)


def json_lines(*records: Mapping[str, object]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_a_topic_from_creation_to_deletion(run: Runner, topic: str) -> None:
    config = {"segment.bytes": "1000000", "retention.ms": "-1", "local.retention.ms": "1000"}
    options = [option for name, value in config.items() for option in ("--config", f"{name}={value}")]
    created = run.json("topic", "create", topic, "--partitions", "2", *options)
    assert (created["name"], created["partition_count"]) == (topic, 2)
    assert list(created["config_overrides"].items()) == sorted(config.items())
    assert topic in run("topic", "list").split()
    assert topic in [entry["name"] for entry in run.json("topic", "list")]
    [described] = run.json("topic", "describe", topic)
    assert described["config"]["retention.ms"] == "-1"
    assert list(described["config"]) == sorted(described["config"])
    assert "retention.ms" in run("topic", "describe", topic)
    run.failure(TopicAlreadyExistsError, "topic", "create", topic)
    assert run.json("topic", "create", topic, "--if-not-exists", "--partitions", "9") == described
    run("topic", "delete", topic, "--yes")
    assert topic not in run("topic", "list").split()
    run.failure(UnknownTopicOrPartitionError, "topic", "delete", topic, "--yes")


def test_lines_of_text_become_records(run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    produced = run.json("produce", topic, stdin=b"one\ntwo\r\n\nlast without an end")
    assert produced == {"topic": topic, "records": 4, "partitions": {"0": 4}}
    assert run("consume", topic) == "one\ntwo\n\nlast without an end\n"
    assert [line["value"] for line in run.lines("consume", topic)] == [
        "one",
        "two",
        "",
        "last without an end",
    ]
    assert [line["key"] for line in run.lines("consume", topic)] == [None] * 4


def test_records_are_produced_into_the_object_store(run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    produced = run.json("produce", topic, "--durability", "object", stdin=b"one\ntwo\n")
    assert produced == {"topic": topic, "records": 2, "partitions": {"0": 2}}
    [tiered] = run.json("log", "offsets", topic, "--at", "latest-tiered")
    assert tiered["offset"] == 1, "the last of the two is in the store"


def test_lines_of_text_may_have_keys(run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    run("produce", topic, "--key-separator", ":", stdin=b"a:1\nb:2:3\n")
    assert run("consume", topic, "--key-separator", "=") == "a=1\nb=2:3\n"
    wrong = run.failure(
        InvalidRequestError, "produce", topic, "--key-separator", ":", stdin=b"c:ok\nnothing\n"
    )
    assert str(wrong).startswith("line 2: ")


def test_bytes_that_are_not_text_survive_both_formats(run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    raw = b"\xff\xfe binary \x00\n"
    run("produce", topic, stdin=raw)
    result = run.result("consume", topic)
    assert result.stdout_bytes == raw
    [line] = run.lines("consume", topic)
    assert line["value"] == {"base64": "//4gYmluYXJ5IAA="}
    run("produce", topic, "--format", "json", stdin=json_lines(line))
    assert run.result("consume", topic).stdout_bytes == raw * 2


def test_json_lines_carry_everything_there_and_back(run: Runner, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "12")
    sent: list[dict[str, Any]] = [
        {"key": "N14228", "value": "first", "timestamp": 1357034400000, "headers": []},
        {
            "key": "N14228",
            "value": None,
            "timestamp": 1357034400001,
            "headers": [{"key": "why", "value": "x"}],
        },
        {
            "key": None,
            "value": "keyless",
            "timestamp": 5,
            "headers": [{"key": "n", "value": None}],
            "partition": 7,
        },
        {"key": {"base64": "/w=="}, "value": "", "timestamp": 6, "headers": []},
    ]
    produced = run.json("produce", topic, "--format", "json", stdin=json_lines(*sent))
    assert produced["records"] == 4
    got = run.lines("consume", topic)
    for record in sent:
        key = record["key"]
        data = b"\xff" if isinstance(key, dict) else None if key is None else str(key).encode()
        partition = record.get("partition", None if data is None else partition_for_key(data, 12))
        [match] = [line for line in got if line["timestamp"] == record["timestamp"]]
        assert {**match, "offset": 0} == {**record, "partition": partition, "offset": 0}
    copy = topic + "-copy"
    run("topic", "create", copy, "--partitions", "12")
    run("produce", copy, "--format", "json", stdin=json_lines(*got))
    assert sorted(map(str, run.lines("consume", copy))) == sorted(map(str, got))


def test_a_bad_line_is_named_and_what_came_before_is_stored(run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    data = json_lines({"value": "good"}) + b'{"value": 7}\n' + json_lines({"value": "never"})
    wrong = run.failure(InvalidRequestError, "produce", topic, "--format", "json", stdin=data)
    assert str(wrong).startswith("line 2: ")
    assert "the 1 record before it is stored" in str(wrong)
    large = run.failure(RecordTooLargeError, "produce", topic, stdin=b"small\n" + b"x" * 2_000_000)
    # The limit of a topic that the producer does not know yet is the server's to say.
    ours, servers = "the 1 record before it is stored", "1 record is stored, line 2 is the first that is not"
    assert (str(large).startswith("line 2: ") and ours in str(large)) or servers in str(large)
    assert run("consume", topic).split() == ["good", "small"]


def test_a_bad_line_far_behind_costs_none_of_those_before_it(run: Runner, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "3")
    lines = json_lines(*({"key": str(number), "value": "v" * 20} for number in range(20_000)))
    stdin = lines + b"nonsense\n" + lines
    wrong = run.failure(InvalidRequestError, "produce", topic, "--format", "json", stdin=stdin)
    assert str(wrong).startswith("line 20001: ")
    assert "the 20,000 records before it are stored" in str(wrong)
    assert len(run("consume", topic).split()) == 20_000


def test_reading_begins_at_the_given_position(run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    records = [{"value": str(number), "timestamp": 1_000_000 + number * 1000} for number in range(10)]
    run("produce", topic, "--format", "json", stdin=json_lines(*records))
    expected = {
        "earliest": list(range(10)),
        "7": [7, 8, 9],
        "10": [],
        "latest": [],
        "1970-01-01T00:16:45Z": [5, 6, 7, 8, 9],
        "1970-01-01T00:16:45": [5, 6, 7, 8, 9],
        "1970-01-01T00:16:45.000001Z": [6, 7, 8, 9],
        "1970-01-01T00:16:44.999001Z": [5, 6, 7, 8, 9],
        "2030-01-01": [],
        "@1005000": [5, 6, 7, 8, 9],
        "-3": [7, 8, 9],
        "-30": list(range(10)),
    }
    for start, values in expected.items():
        assert run("consume", topic, "--from", start).split() == [str(value) for value in values], start
    assert run("consume", topic, "--from", "3", "--max", "2").split() == ["3", "4"]
    assert run("consume", topic, "-o", "-2").split() == ["8", "9"]
    outside = run.failure(OffsetOutOfRangeError, "consume", topic, "--from", "11")
    assert {"partition": 0, "offset": 11, "log_end_offset": 10}.items() <= outside.fields.items()
    assert run.result("consume", topic, "--from", "yesterday").exit_code == 2


def test_reading_stops_at_the_given_position(run: Runner, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "2")
    records = [
        {"value": str(number), "timestamp": 1_000_000 + number * 1000, "partition": 1} for number in range(5)
    ]
    run("produce", topic, "--format", "json", stdin=json_lines(*records))
    expected = {
        "latest": [0, 1, 2, 3, 4],
        "99": [0, 1, 2, 3, 4],
        "2": [0, 1],
        "0": [],
        "-1": [0, 1, 2, 3],
        "1970-01-01T00:16:43Z": [0, 1, 2],
        "@1003001": [0, 1, 2, 3],
        "2030-01-01": [0, 1, 2, 3, 4],
        "earliest": [],
    }
    for until, values in expected.items():
        assert run("consume", topic, "--until", until).split() == [str(value) for value in values], until
    assert run("consume", topic, "--partition", "1", "--from", "2", "--until", "4").split() == ["2", "3"]
    assert run("consume", topic, "--from", "-2", "--until", "1") == ""
    # Following, it ends at an end that is there already, and waits for one that is not.
    both = run("consume", topic, "--partition", "1", "--until", "2", "--follow")
    assert both.split() == ["0", "1"]


def test_key_and_headers_for_all_records(run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    run("produce", topic, "--key", "k", "--header", "a=1", "--header", "b=x=y", stdin=b"one\ntwo\n")
    own = {"key": None, "value": "three", "headers": [{"key": "own", "value": None}]}
    run("produce", topic, "--format", "json", "--header", "a=", stdin=json_lines(own))
    both = [{"key": "a", "value": "1"}, {"key": "b", "value": "x=y"}]
    assert [(line["key"], line["headers"]) for line in run.lines("consume", topic)] == [
        ("k", both),
        ("k", both),
        (None, [{"key": "own", "value": None}, {"key": "a", "value": ""}]),
    ]


def test_one_record_from_the_command_line(run: Runner, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "3")
    run("produce", topic, "--value", "one, with spaces", "--header", "src=web", "--partition", "2")
    produced = run.json("produce", topic, "--key", "7", "--value", "", "--partition", "2")
    assert produced == {"topic": topic, "records": 1, "partitions": {"2": 1}}
    assert [(line["key"], line["value"], line["headers"]) for line in run.lines("consume", topic)] == [
        (None, "one, with spaces", [{"key": "src", "value": "web"}]),
        ("7", "", []),
    ]


def test_reading_may_be_limited_to_partitions(run: Runner, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "3")
    for partition in range(3):
        run("produce", topic, "--partition", str(partition), stdin=b"from-%d\n" % partition)
    assert run("consume", topic, "--partition", "1") == "from-1\n"
    both = run("consume", topic, "--partition", "0", "--partition", "2").split()
    assert sorted(both) == ["from-0", "from-2"]
    for command in ("consume", "produce"):
        run.failure(UnknownTopicOrPartitionError, command, topic, "--partition", "3", stdin=b"x\n")


def test_logs_tiers_and_compaction_are_shown_and_moved(run: Runner, topic: str) -> None:
    run("topic", "create", topic, "--config", "cleanup.policy=compact")
    for number in range(3):
        run("produce", topic, "--key-separator", ":", stdin=b"a:%d\nb:%d\n" % (number, number))
        uploaded = run.json("tier", "upload", topic, "--delete-local")
        assert (uploaded["object_count"], uploaded["slice_count"], uploaded["deleted_segment_count"]) == (
            1,
            1,
            1,
        )
    [log] = run.json("log", "describe", topic)
    assert (log["log_start_offset"], log["local_log_start_offset"], log["tiered_end_offset"]) == (0, 6, 6)
    assert (log["segment_count"], log["slice_count"]) == (1, 3)
    [job] = run.json("compaction", "run", topic)
    assert (
        job["input_count"],
        job["get_request_count"],
        job["input_record_count"],
        job["output_record_count"],
    ) == (3, 4, 6, 2), "no record of the first two objects stays, so their data are not asked for"
    assert run("consume", topic, "--key-separator", "=") == "a=2\nb=2\n"
    shown = dict(line.split("  ", 1) for line in run("tier", "status").splitlines() if "  " in line.strip())
    status = run.json("tier", "status")
    [shard] = status["shards"]
    assert shard["live_object_count"] >= 1
    passes = {one["name"]: one for one in status["passes"]}
    assert passes["upload"]["total_done"]["objects"] >= 3
    assert passes["compaction"]["total_done"]["jobs"] >= 1, "operations count with the passes"
    assert 0 < passes["upload"]["last_begin_ms"] <= passes["upload"]["last_success_ms"] <= status["time_ms"]
    assert passes["upload"]["last_error"] == ""
    assert shown["upload"].split()[2] == "0", "failures"
    assert not [line for line in run("tier", "status").splitlines() if "failed" in line]
    assert run.json("records", "delete", topic, "--partition", "0", "--before", "5") == [
        {"topic": topic, "partition": 0, "log_start_offset": 5}
    ]
    assert run("consume", topic) == "2\n"
    run.failure(OffsetOutOfRangeError, "records", "delete", topic, "--partition", "0", "--before", "99")


def test_a_compaction_without_work_says_why(run: Runner, topic: str) -> None:
    def reason_of(name: str) -> str:
        first, second = run("compaction", "run", name).splitlines()
        assert first == "nothing to compact"
        assert second.startswith(f"  {name}: ")
        return second.removeprefix(f"  {name}: ")

    names = [f"{topic}-{number}" for number in range(4)]
    run("topic", "create", names[0], "--config", "remote.storage.enable=false")
    run("topic", "create", names[1], "--config", "cleanup.policy=compact")
    run("topic", "create", names[2], "--config", "cleanup.policy=compact")
    run("topic", "create", names[3])
    for name in names[2:]:
        run("produce", name, "--key-separator", ":", stdin=b"a:1\na:2\n")
        run("tier", "upload", name)
    run("compaction", "run", names[2])
    reasons = [reason_of(name) for name in names]
    assert reasons[0].startswith("not tiered")
    assert reasons[1].startswith("no records in the object store")
    assert reasons[2].startswith("compacted already")
    assert reasons[3].startswith("cleanup.policy is delete")


def test_a_topic_is_described_by_the_keys_that_were_set(run: Runner, topic: str) -> None:
    run("topic", "create", topic, "--config", "segment.bytes=2048")
    _, titles, row, rest = run("topic", "describe", topic).splitlines()
    assert (titles.split(), row.split()) == (["KEY", "VALUE", "FROM"], ["segment.bytes", "2048", "topic"])
    assert "--all" in rest
    _, _, first, *others = run("topic", "describe", topic, "--all").splitlines()
    assert first.split() == row.split()
    assert len(others) > 20
    assert {line.split()[-1] for line in others} == {"default"}


def test_the_status_of_a_server_that_was_replaced_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store_url = Runner(), f"file://{tmp_path}/store"
    with (
        ServerProcess(f"{tmp_path}/a", store_url=store_url) as former,
        ServerProcess(f"{tmp_path}/b", store_url=store_url) as owner,
    ):
        monkeypatch.setenv("STRATALOG_SERVER", owner.address)
        assert run.json("tier", "status")["shards"][0]["takeover"] is None
        assert "another server" not in run("tier", "status")
        monkeypatch.setenv("STRATALOG_SERVER", former.address)
        # The command goes on at the owner, and the former server knows from then on.
        run("topic", "create", "t")
        takeover = run.json("tier", "status")["shards"][0]["takeover"]
        assert takeover["owner"].endswith(f":{owner.pid}")
        assert takeover["epoch"] == 2
        first, *_ = run("tier", "status").splitlines()
        assert takeover["endpoint"] == owner.address
        whole = f"another server, {takeover['owner']} at {owner.address}, has owned shard 0 since epoch 2 ("
        assert first.startswith(whole)


def test_offsets_by_name_and_by_time_in_both_tiers(run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    lines = [{"value": "x", "timestamp": time_ms} for time_ms in (1000, 3000, 2000, 2500)]
    run("produce", topic, "--format", "json", stdin=json_lines(*lines[:3]))
    run("tier", "upload", topic, "--delete-local")
    run("produce", topic, "--format", "json", stdin=json_lines(lines[3]))
    for at, offset, timestamp_ms in (
        ("earliest", 0, None),
        ("latest", 4, None),
        ("earliest-local", 3, None),
        ("latest-tiered", 2, None),
        ("earliest-pending-upload", 3, None),
        ("compacted-upto", 0, None),
        ("max-timestamp", 1, 3000),
        ("-3", 1, None),
        ("1970-01-01T00:00:01.001Z", 1, 3000),
        ("@1001", 1, 3000),
        ("0", 0, 1000),
        ("1001", 1, 3000),
        ("3001", None, None),
    ):
        answer = {"partition": 0, "offset": offset, "timestamp_ms": timestamp_ms}
        assert run.json("log", "offsets", topic, "--at", at) == [answer], at


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "nope"),
        ("produce", "nope"),
        ("topic", "describe", "nope"),
        ("topic", "delete", "nope", "--yes"),
        ("topic", "alter", "nope", "--add", "retention.ms=1"),
        ("topic", "add-partitions", "nope", "--partitions", "2"),
        ("log", "describe", "nope"),
        ("log", "segments", "nope"),
        ("log", "slices", "nope"),
        ("log", "roll", "nope"),
        ("log", "flush", "nope"),
        ("producers", "list", "nope"),
        ("records", "delete", "nope", "--before", "latest"),
        ("records", "delete", "nope", "--partition", "0", "--before", "0"),
        ("tier", "upload", "nope"),
        ("compaction", "run", "nope"),
    ],
)
def test_an_unknown_topic_is_said_by_every_command(run: Runner, arguments: tuple[str, ...]) -> None:
    unknown = run.failure(UnknownTopicOrPartitionError, *arguments)
    assert unknown.fields == {"topic": "nope"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create"),
        ("topic", "create", "t", "--config", "retention.ms"),
        ("topic", "create", "t", "--partitions", "0"),
        ("topic", "delete", "t"),
        ("config", "alter", "--add", "retention.ms=1"),
        ("config", "alter", "t", "--add", "retention.ms=1"),
        ("topic", "alter", "t"),
        ("topic", "add-partitions", "t"),
        ("topic", "add-partitions", "t", "--partitions", "0"),
        ("records", "delete", "t"),
        ("records", "delete", "t", "--before", "yesterday"),
        ("config", "describe"),
        ("produce", "t", "--format", "xml"),
        ("produce", "t", "--format", "json", "--key-separator", ":"),
        ("produce", "t", "--durability", "all"),
        ("produce", "t", "--header", "name"),
        ("produce", "t", "--key", "k", "--format", "json"),
        ("produce", "t", "--key", "k", "--key-separator", ":"),
        ("produce", "t", "-", "--value", "v"),
        ("produce", "t", "--value", "v", "--key-separator", ":"),
        ("produce", "t", "--value", "v", "--format", "json"),
        ("consume", "t", "--from", "-x"),
        ("consume", "t", "--until", "yesterday"),
        ("consume", "t", "--max", "0"),
        ("nonsense",),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(run: Runner, arguments: tuple[str, ...]) -> None:
    assert run.result(*arguments).exit_code == 2


# --- as a process ------------------------------------------------------------------------------------------


def as_process(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, timeout=60, check=False)


@contextmanager
def process(*arguments: str) -> Generator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
    """A command as a process, with both its outputs. It has written no error at its end."""
    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        yield running, running.stdout, running.stderr
        assert running.stderr.read() == b""


def test_a_failure_is_one_line_and_exit_code_one(server: ServerProcess) -> None:
    ended = as_process("consume", "nope", "--server", server.address)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr == b"error: there is no such topic, create it or correct the name topic=`nope`\n"


def test_a_server_that_is_not_there_is_said_in_one_line() -> None:
    ended = as_process("topic", "list", "--server", "127.0.0.1:1")
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"error: the server does not answer")
    assert len(ended.stderr.splitlines()) == 1
    assert b"HOST:PORT" in as_process("topic", "list", "--server", "nowhere").stderr


def test_following_goes_on_behind_a_restart_of_the_server_until_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess(f"{tmp_path}/data") as server:
        monkeypatch.setenv("STRATALOG_SERVER", server.address)
        run = Runner()
        run("topic", "create", "t")
        run("produce", "t", stdin=b"before\n")
        with process("consume", "t", "--follow") as (follower, output, errors):
            assert output.readline() == b"before\n"
            run("produce", "t", stdin=b"meanwhile\n")
            assert output.readline() == b"meanwhile\n"
            server.add_options("--listen", server.address)
            server.kill()
            # One line for each time it waits.
            assert errors.readline().startswith(b"waiting for the server: ")
            server.start()
            run("produce", "t", stdin=b"after\n")
            assert output.readline() == b"after\n"
            follower.send_signal(signal.SIGINT)
            assert follower.wait(60) == 130


def test_an_interrupt_ends_produce_though_its_input_stays_open(
    server: ServerProcess, run: Runner, topic: str
) -> None:
    run("topic", "create", topic)
    terminal, stdin = pty.openpty()
    with subprocess.Popen([*PROGRAM, "produce", topic], stdin=stdin, stderr=subprocess.PIPE) as producing:
        try:
            os.write(terminal, b"typed\n")
            with process("consume", topic, "--follow") as (follower, output, _):
                assert output.readline() == b"typed\n"
                follower.send_signal(signal.SIGINT)
                assert follower.wait(60) == 130
            producing.send_signal(signal.SIGINT)
            assert producing.wait(60) == 130
            assert producing.stderr is not None
            assert producing.stderr.read() == b""
        finally:
            # Also where it still waits for a line.
            producing.kill()
            os.close(stdin)
            os.close(terminal)


def test_a_topic_is_deleted_only_after_a_yes(server: ServerProcess, run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    for answer, code in ((b"n", 1), (b"y", 0)):
        terminal, stdin = pty.openpty()
        os.write(terminal, answer + b"\n")
        ended = subprocess.run(
            [*PROGRAM, "topic", "delete", topic], stdin=stdin, capture_output=True, timeout=60, check=False
        )
        os.close(stdin)
        os.close(terminal)
        assert (ended.returncode, f"Delete {topic} and" in ended.stdout.decode()) == (code, True)
        assert (topic in run("topic", "list").split()) == (answer == b"n")


def test_a_reader_that_leaves_the_pipe_ends_it_quietly(run: Runner, topic: str) -> None:
    run("topic", "create", topic)
    run("produce", topic, stdin=b"x" * 100 + b"\n" + b"y\n" * 50_000)
    with process("consume", topic) as (reader, output, _):
        output.readline()
        output.close()
        assert reader.wait(60) in (0, 1)


def test_help_needs_no_server() -> None:
    ended = as_process("--help")
    assert ended.returncode == 0
    for command in COMMANDS:
        assert command.encode() in ended.stdout


CLIENT = ("grpc", "google.protobuf", "boto3", "asyncio", "stratalog.client.client")
"""Modules that only a command at work needs."""


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], ("grpc", "google.protobuf", "boto3", "asyncio")),
        (["topic", "list", "--help"], CLIENT),
        (["log", "roll", "--help"], CLIENT),
        (["producers", "list", "--help"], CLIENT),
        (["tier", "upload", "--help"], CLIENT),
        (["tier", "status", "--help"], CLIENT),
        (["retention", "run", "--help"], CLIENT),
        (["operation", "watch", "--help"], CLIENT),
        (
            ["topic", "list"],
            (
                "boto3",
                "numpy",
                "grpc_status",
                "stratalog.client.consuming.topic_follower",
                "crc32c",
                "rich",
                "stratalog.record",
                "stratalog.server",
                "stratalog.log",
                "stratalog.client.values.tier_values",
            ),
        ),
    ],
)
def test_a_command_imports_little(
    server: ServerProcess, arguments: list[str], heavy: tuple[str, ...]
) -> None:
    check = (
        "import sys; from stratalog.cli.main import stratalog;"
        f"stratalog.main({arguments!r}, standalone_mode=False);"
        f"found = {{name for name in {heavy!r} if name in sys.modules}};"
        "sys.exit(', '.join(found) or 0)"
    )
    environment = {**os.environ, "STRATALOG_SERVER": server.address}
    ended = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_the_version_is_that_of_the_distribution(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["stratalog", "--version"])

    def version(name: str) -> str:
        return f"9.9 of {name}"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert capsys.readouterr().out == "stratalog 9.9 of stratalog\n"
