"""The demonstration's part in Spark finds what is there, and leaves no process behind, whatever ends it.

A shell script takes the place of Java: it answers the question for its version, says through a named pipe
that it has started as Spark's JVM, and then sleeps, as deaf to SIGINT as the JVM is. It keeps the pipe open,
so the end of the pipe is the end of the process.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.cli.demo.oracle import state_of_table
from stratalog.cli.demo.spark_readback import DemoTopics, findings_of
from stratalog.pipeline.job_cluster import JobCluster
from stratalog.pipeline.local_session import why_spark_cannot_run
from tests.support.spark.keyed_store import local_store
from tests.support.spark.plain_store import PlainStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
MISSING = why_spark_cannot_run()

PATIENCE_S = 60

JAVA = """#!/bin/sh
case "$*" in *-version*) echo 'openjdk version "17"' >&2; exit;; esac
exec 3> {signs}
echo started >&3
exec sleep 600
"""

READ = """
import sys
from pathlib import Path
from stratalog.cli.demo.spark_readback import DemoTopics, read_with_spark
read_with_spark("file:///nowhere", DemoTopics("keyed", "plain", "other"), Path(sys.argv[1]))
"""


def next_sign(signs: int) -> bytes:
    """The next bytes of the stand-in, b"" once it is gone."""
    with selectors.DefaultSelector() as selector:
        selector.register(signs, selectors.EVENT_READ)
        assert selector.select(PATIENCE_S), "nothing was heard of it"
    return os.read(signs, 100)


Process = subprocess.Popen[bytes]


def press_ctrl_c(reader: Process) -> None:
    """Send the signal to every process of the foreground's group, as a terminal does."""
    os.killpg(reader.pid, signal.SIGINT)


@pytest.mark.parametrize("end", [press_ctrl_c, Process.terminate, Process.kill])
def test_no_jvm_outlives_the_check(tmp_path: Path, end: Callable[[Process], None]) -> None:
    signs_path, java = tmp_path / "signs", tmp_path / "home" / "bin" / "java"
    os.mkfifo(signs_path)
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(signs=signs_path))
    java.chmod(0o755)
    signs = os.open(signs_path, os.O_RDONLY | os.O_NONBLOCK)
    reader = subprocess.Popen(
        [sys.executable, "-c", READ, str(tmp_path / "scratch")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "JAVA_HOME": str(tmp_path / "home")},
        process_group=0,
    )
    try:
        assert next_sign(signs) == b"started\n"
        end(reader)
        assert next_sign(signs) == b""
        assert reader.wait(PATIENCE_S) != 0
    finally:
        reader.kill()
        os.close(signs)


@pytest.mark.slow
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_spark_compacts_makes_a_table_and_reads(spark: SparkSession, tmp_path: Path) -> None:
    found = PlainStore(local_store(tmp_path))
    topics = DemoTopics("keyed", "plain", "dense")
    for topic in topics:
        found.create(topic, 1, cleanup_policy="delete" if topic == topics.plain else "compact")
    before: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
    for _ in range(2):
        found.upload({(topic, 0): 10 for topic in topics})
    for topic in topics:
        before[topic] = [(one.key, one.value) for one in found.tiered.records(found.tips[topic][0])]
    findings = findings_of(JobCluster(lambda: spark), found.store.url, topics, tmp_path / "scratch")
    assert sorted(findings.values) == sorted(value for _, value in before["plain"] if value is not None)
    assert sorted(findings.compacted) == sorted(dict(before["dense"]).items())
    assert state_of_table(findings.table) == dict(before["keyed"])
    assert [len(records) for records in before.values()] == [20] * 3


def test_a_failure_of_spark_is_shown(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "scratch")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
    )
    assert "JAVA_GATEWAY_EXITED" in done.stderr, done.stderr
    assert "Spark could not read the topics back" in done.stderr
