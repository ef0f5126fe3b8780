"""Jobs find out what is wrong with their store and their topics before they start Spark, which takes long."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.base.errors import InvalidConfigError, StoreNotUsableError, UnknownTopicOrPartitionError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.main import stratalog
from stratalog.objectstore.local import LocalObjectStore
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
