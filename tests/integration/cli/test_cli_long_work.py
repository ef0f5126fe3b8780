"""The commands of long work and of the tiers, as a person types them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stratalog.base.errors import InvalidRequestError, UnknownOperationError, UnknownTopicOrPartitionError
from stratalog.cli.main import stratalog
from tests.support.service.server_process import ServerProcess

TOPICS = iter(range(1000))


class Shell:
    """Runs `stratalog` against a server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def result(self, *arguments: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(stratalog, [*arguments, "--server", self.address], input=stdin)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        result = self.result(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def run(server: ServerProcess) -> Shell:
    return Shell(server.address)


@pytest.fixture
def topic(run: Shell) -> str:
    """A compacted topic with three objects of the same keys."""
    name = f"work-{next(TOPICS)}"
    run("topic", "create", name, "--config", "cleanup.policy=compact,delete", "--config", "retention.ms=-1")
    for number in range(3):
        run("produce", name, "--key-separator", ":", stdin=b"a:%d\nb:%d\n" % (number, number))
        run("tier", "upload", name, "--delete-local")
    return name


def test_an_operation_is_left_to_the_server_and_shown(run: Shell, topic: str) -> None:
    operation_id = run("compaction", "run", topic, "--no-wait").strip()
    shown = run("operation", "watch", operation_id)
    assert dict(line.split(maxsplit=1) for line in shown.splitlines()[:4])["state"] == "succeeded"
    document = run.json("operation", "show", operation_id)
    assert (document["kind"], document["state"], document["topics"]) == ("compaction", "succeeded", [topic])
    assert document["compaction"]["jobs"][0]["input_count"] == 3
    assert document["error"] is None
    assert document["upload"] is None
    listed = run("operation", "list", "--kind", "compaction", "--state", "succeeded")
    assert operation_id in listed
    assert operation_id not in run("operation", "list", "--kind", "move")
    assert operation_id in [one["operation_id"] for one in run.json("operation", "list")]
    assert run("operation", "cancel", operation_id) == f"operation {operation_id} has ended: succeeded\n"
    assert run.json("tier", "upload", topic, "--no-wait")["kind"] == "upload"


def test_an_unknown_operation_is_an_error(run: Shell) -> None:
    for command in ("show", "watch", "cancel"):
        assert isinstance(run.result("operation", command, "nope").exception, UnknownOperationError)


def test_a_plan_says_what_a_compaction_does(run: Shell, topic: str) -> None:
    document = run.json("compaction", "plan", topic, "--put-price", "0.5")
    [job] = document["jobs"]
    assert (job["reason"], job["runs"][0]["slice_count"]) == ("dirty", 3)
    cost = job["cost"]
    assert (cost["get_request_count"], cost["put_request_count"]) == (6, 1)
    assert cost["freed_bytes"] == job["input_bytes"] - cost["written_bytes"]
    assert document["prices"] == {"get_dollars": 0.0004, "put_dollars": 0.5, "storage_dollars": 0.023}
    [prices] = document["job_prices"]
    assert prices["request_dollars"] == pytest.approx((6 * 0.0004 + 0.5) / 1000)
    assert prices["saved_dollars_a_month"] == pytest.approx(cost["freed_bytes"] * 0.023 / 2**30)
    assert (document["total"], document["total_price"]) == (cost, prices)
    titles, row, total = run("compaction", "plan", topic).splitlines()
    assert titles.split()[:2] == ["JOB", "WHY"]
    assert row.split()[:6] == ["1", "dirty", "3", "1", "6", "1"]
    assert row.split()[-2] == "$0.000007"
    assert total.split() == ["all", *row.split()[2:]]
    assert f"{topic}-0" in run("compaction", "plan", topic, "--runs")
    [done] = run.json("compaction", "run", topic)
    assert done["get_request_count"] <= cost["get_request_count"]
    assert (done["put_request_count"], done["resumed_get_request_count"]) == (1, 0)
    assert run("compaction", "plan", topic).splitlines()[0] == "nothing to compact"
    assert run("compaction", "excluded") == "no partition is excluded\n"
    assert run.json("compaction", "excluded") == []
    assert "was not excluded" in run("compaction", "reset", topic, "--partition", "0")
    assert run.json("compaction", "reset", topic, "--partition", "0") == {"was_excluded": False}


def test_retention_is_explained_then_run(run: Shell, topic: str) -> None:
    assert run("retention", "run", topic, "--dry-run") == "nothing has expired\n"
    assert "no limit" in run("retention", "explain", topic)
    run("topic", "alter", topic, "--add", "retention.bytes=1")
    [explained] = run.json("retention", "explain", topic)
    assert explained["new_log_start_offset"] == 4
    [expired] = explained["expired"]
    assert (expired["tier"], expired["rule"], expired["unit_count"]) == ("object-store", "retention-bytes", 2)
    shown = run("retention", "run", topic, "--dry-run")
    assert "retention.bytes" in shown
    assert "0-4" in shown
    table = run("retention", "explain", topic)
    assert "less than retention.bytes would be left" in table
    [retained] = run.json("retention", "run", topic)["partitions"]
    assert (retained["new_log_start_offset"], retained["dropped_slice_count"]) == (4, 2)
    assert run("retention", "run", topic) == "nothing had expired\n"


def test_tiered_data_is_verified_and_collected(run: Shell, topic: str) -> None:
    assert run("tier", "verify", topic).endswith("6 records: 0 findings\n")
    quick = run.json("tier", "verify", "--quick")
    assert (quick["slice_count"], quick["finding_count"], quick["metadata_only"]) == (0, 0, True)
    assert "nothing of their contents was compared: 0 findings" in run("tier", "verify", "--quick", topic)
    assert not run.json("tier", "verify", topic)["metadata_only"]
    run("compaction", "run", topic)
    assert run.json("tier", "verify", topic)["record_count"] == 2
    listed = run("tier", "collect", "--dry-run")
    assert listed.startswith("would delete 0 dropped files, 0B; ")
    assert "stays" in listed
    collected = run.json("tier", "collect")
    assert (collected["dry_run"], collected["deleted_count"]) == (False, 0)
    assert collected["waiting_count"] >= 3
    assert len(run.json("tier", "caches")) == 2
    run("consume", topic)
    emptied = run.result("tier", "caches", "--empty")
    assert emptied.stderr.startswith("emptied ")
    assert [one["entry_count"] for one in run.json("tier", "caches")] == [0, 0]


def test_the_status_has_a_row_for_each_shard_and_topic(run: Shell, topic: str) -> None:
    run("produce", topic, "--key-separator", ":", stdin=b"c:1\n")
    status = run.json("tier", "status")
    assert [shard["shard"] for shard in status["shards"]] == [0]
    [row] = [one for one in status["topics"] if one["topic"] == topic]
    assert (row["slice_count"], row["lag_record_count"]) == (3, 1)
    assert row["lag_bytes"] > 0 <= row["lag_ms"]
    [line] = [line for line in run("tier", "status").splitlines() if line.startswith(topic)]
    assert line.split()[1:3] == ["1", "3"]


def test_commands_refuse_what_does_not_exist(run: Shell) -> None:
    for command in (
        ("retention", "run", "nope"),
        ("retention", "explain", "nope"),
        ("compaction", "plan", "nope"),
        ("compaction", "reset", "nope", "--partition", "0"),
    ):
        assert isinstance(run.result(*command).exception, UnknownTopicOrPartitionError), command
    unfinished = run.result("tier", "verify", "nope")
    assert (unfinished.exit_code, unfinished.stdout) == (2, "")
    assert unfinished.stderr.startswith("error: ")
    run("topic", "create", "stays", "--if-not-exists")
    moved = run.result("log-dirs", "move", "stays", "--partition", "0", "--to", "/nowhere")
    assert isinstance(moved.exception, InvalidRequestError)


def test_an_interrupt_leaves_the_operation_to_the_server(
    run: Shell, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.cli.long_work.follow", interrupted)
    ended = run.result("tier", "verify", topic)
    assert ended.exit_code == 130
    words = ended.stderr.split()
    assert [words[0], *words[2:4]] == ["operation", "goes", "on;"]
    assert f"stratalog operation cancel {words[1]}" in ended.stderr
    monkeypatch.undo()
    assert "succeeded" in run("operation", "watch", words[1])


async def interrupted(_client: object, _operation_id: str) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_ends_a_compaction(run: Shell, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.cli.long_work.follow", interrupted)
    ended = run.result("compaction", "run", topic)
    assert ended.exit_code == 130
    first, last = ended.stderr.splitlines()
    operation_id = first.split()[1]
    assert first == f"operation {operation_id} ends behind its step; Ctrl-C again does not wait"
    # A compaction as small as this may be over before the cancellation reaches it.
    assert last.startswith(f"operation {operation_id} has ended: ")
    assert last.split(": ")[1].split(";")[0] in ("cancelled", "succeeded")
    monkeypatch.undo()
    assert run("compaction", "status") == "no compaction runs\n"
    assert run("compaction", "cancel") == "no compaction runs\n"
    assert run.json("compaction", "status", "--follow") == []
