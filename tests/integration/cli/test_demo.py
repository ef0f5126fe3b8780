"""Runs the demonstration as a user does, and lets things go wrong meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.cli.demo.story import KEYED_TOPIC, PARTITION_COUNT, PLAIN_TOPIC
from stratalog.cli.main import stratalog
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from tests.support.service.server_process import ServerProcess
from tests.support.tiered.s3_servers import S3Server

FEW = "4000"


def run_demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without Java, so that the check in Spark is skipped: it has tests of its own."""
    return subprocess.run(
        [sys.executable, "-m", "stratalog.cli", "demo", "--flights", FEW, "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "JAVA_HOME": "/nowhere", **environment},
    )


def test_the_demo_ends_with_one_json_object_and_leaves_nothing(tmp_path: Path) -> None:
    # As on a machine where the steps take longer than the server waits with its first pass over local logs.
    at_once = "log.initial.task.delay.ms=0 log.retention.check.interval.ms=10"
    done = run_demo(TMPDIR=str(tmp_path), STRATALOG_CONFIG=at_once)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["records"] == int(FEW)
    assert all(check["ok"] for check in found["checks"])
    assert 0 < found["compaction"]["get_requests"] <= 2 * found["compaction"]["inputs"]
    assert found["objects"]["after"]["records"] < found["objects"]["before"]["records"]
    assert list(found["seconds"])[:2] == ["start the server", "read the data set"]
    assert len(found["offsets"]) == 2 * PARTITION_COUNT
    assert any("Java" in reason for reason in found["skipped"])
    assert list(tmp_path.iterdir()) == []


def test_the_demo_of_one_flight_takes_its_objects_away(moto_server: S3Server, s3_prefix: str) -> None:
    store_url = moto_server.store_url(s3_prefix)
    done = run_demo("--flights", "1", "--store", store_url, **moto_server.environment())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["records"] == 1
    assert all(check["ok"] for check in found["checks"])
    plain = [each for name, each in found["offsets"].items() if name.startswith(PLAIN_TOPIC)]
    assert [each["log_end_offset"] for each in plain] == [0] * PARTITION_COUNT, "it has a tail number"
    store = moto_server.open_store(s3_prefix)
    assert list(store.list("")) == []
    store.close()


@pytest.mark.parametrize(
    ("store_url", "reason"),
    [
        ("gs://bucket", "this is not the url of an object store"),
        ("s3://bucket?port=1", "the query of the store's url"),
        ("memory://", "ends with its server"),
    ],
)
def test_a_wrong_store_is_refused_before_anything_is_made(
    tmp_path: Path, store_url: str, reason: str
) -> None:
    refused = CliRunner().invoke(stratalog, ["demo", "--store", store_url, "--keep", f"{tmp_path}/kept"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert reason in f"{refused.stderr}{refused.exception}"
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_reached_is_the_one_error(tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    done = run_demo(
        "--store", "s3://bucket?endpoint=http://127.0.0.1:1&region=x", TMPDIR=str(tmp_path), **keys
    )
    assert done.returncode == 1
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "the server did not start: the store cannot be reached" in error
    assert "endpoint=`http://127.0.0.1:1`" in error
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_the_server_cleanly_and_leaves_a_store_that_a_server_starts_on(tmp_path: Path) -> None:
    kept, scratch = tmp_path / "kept", tmp_path / "scratch"
    scratch.mkdir()
    demo = subprocess.Popen(
        [sys.executable, "-m", "stratalog.cli", "demo", "--flights", FEW, "--serve", "--keep", str(kept)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "JAVA_HOME": "/nowhere", "TMPDIR": str(scratch)},
        process_group=0,
    )
    assert demo.stdout is not None
    said = ""
    while "Ctrl-C ends it" not in said:
        line = demo.stdout.readline()
        assert line, said
        said += line
    # A terminal's Ctrl-C goes to every process of the foreground's group.
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait(60) == 0
    demo.stdout.close()
    assert list(scratch.iterdir()) == []
    assert "stopping at once" not in (kept / "server.log").read_text()
    assert (kept / "data" / CLEAN_SHUTDOWN_FILE).exists()
    with ServerProcess(f"{kept}/data", store_url=(kept / "store").as_uri()) as server:
        arguments = ["consume", KEYED_TOPIC, "--max", "3", "--format", "json", "--server", server.address]
        lines = CliRunner().invoke(stratalog, arguments, catch_exceptions=False).stdout.splitlines()
        assert len(lines) == 3
        assert {"key", "value", "partition", "offset"} <= set(json.loads(lines[0]))
    again = CliRunner().invoke(stratalog, ["demo", "--keep", str(kept)])
    assert again.exit_code == 1
    assert "not empty" in f"{again.stderr}{again.exception}"
