"""Jobs find out what is wrong with their store and their topics before they start Spark, which takes long."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.base.errors import InvalidConfigError, StoreNotUsableError, UnknownTopicOrPartitionError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.main import stratalog
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.job_session import job_session
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.spark.plain_store import START_MS, PlainStore

COMMANDS = ["compact", "audit", "stats"]


class SparkStartedError(Exception):
    """The session was asked for."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store with the topic `t`; no Spark starts."""

    def start(*_: object) -> None:
        raise SparkStartedError

    monkeypatch.setattr("stratalog.pipeline.job_session.job_session", start)
    store = LocalObjectStore(
        PosixFileSystem(), ManualClock(START_MS), SequentialIds(1), str(tmp_path / "store")
    )
    PlainStore(store).create("t")
    return f"file://{tmp_path}/store"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_store_or_topic_starts_no_spark(command: str, url: str) -> None:
    for topic, store, error, text in (
        ("u", url, UnknownTopicOrPartitionError, "topic=`u`"),
        ("t", f"{url}-elsewhere", StoreNotUsableError, "elsewhere"),
        ("t", "gs://nowhere", InvalidConfigError, "gs://nowhere"),
    ):
        result = CliRunner().invoke(stratalog, ["spark", command, topic, "--store", store])
        said = result.stderr + str(result.exception)
        assert text in said
        if command != "audit":
            assert isinstance(result.exception, error)
        else:
            assert result.exit_code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sound_job_starts_spark(command: str, url: str) -> None:
    result = CliRunner().invoke(stratalog, ["spark", command, "t", "--store", url])
    assert isinstance(result.exception, SparkStartedError)


@pytest.mark.parametrize(("master", "variable"), [("sc://host:15002", ""), ("local", "SPARK_REMOTE")])
def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch, master: str, variable: str) -> None:
    if variable:
        monkeypatch.setenv(variable, "sc://host:15002")
    with pytest.raises(InvalidConfigError) as refused, job_session("job", master, {}):
        pytest.fail("it has no RDDs")
    assert refused.value.fields["value"] == (variable or master)


def test_a_spark_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    def start(_builder: SparkSession.Builder) -> SparkSession:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr("stratalog.pipeline.job_session.why_spark_cannot_run", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    with (
        pytest.raises(InvalidConfigError) as failed,
        job_session("job", "yarn", {"spark.cores.max": "1"}),
    ):
        pytest.fail("it started")
    assert failed.value.fields["value"] == "yarn"
    assert "JAVA_GATEWAY_EXITED" in str(failed.value.fields["reason"])
