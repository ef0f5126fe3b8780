"""Jobs find out what is wrong with their stores, topics, places and options before they start Spark, which
takes long."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from stratalog.base.errors import (
    InvalidConfigError,
    InvalidRequestError,
    StoreError,
    StoreNotUsableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.main import stratalog
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.job_session import job_session
from stratalog.pipeline.jobs.task_place import ExecutorPlace
from stratalog.pipeline.local_session import MINIMUM_JAVA_VERSION
from stratalog.pipeline.source.read_options import parse_options
from stratalog.pipeline.transfer.topic_export import export_topics
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster
from tests.support.spark.plain_store import START_MS, PlainStore

COMMANDS = ["compact", "audit", "stats"]


class SparkStartedError(Exception):
    """The session was asked for."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store with the topic `t`; no Spark starts."""

    def start(*_: object) -> None:
        raise SparkStartedError

    monkeypatch.setattr("stratalog.pipeline.job_cluster.job_session", start)
    store = LocalObjectStore(
        PosixFileSystem(), ManualClock(START_MS), SequentialIds(1), str(tmp_path / "store")
    )
    found = PlainStore(store)
    found.create("t")
    found.upload({("t", 0): 3})
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
    more = ("--read-keys",) if command == "stats" else ()
    result = CliRunner().invoke(stratalog, ["spark", command, "t", *more, "--store", url])
    assert isinstance(result.exception, SparkStartedError)


def test_stats_that_count_no_keys_start_no_spark(url: str) -> None:
    result = CliRunner().invoke(stratalog, ["spark", "stats", "--json", "--store", url])
    assert result.exit_code == 0, result.output
    (partition,) = json.loads(result.stdout)["partitions"]
    assert (partition["record_count"], partition["keys_counted"]) == (3, False)
    assert "--read-keys" in result.stderr
    assert str(ByteSize(partition["unread_bytes"])) in result.stderr


JSON = ("--values", "json", "--schema", "id INT")
MATERIALIZE = ("materialize", "t", "--to", "delta", "--table")


def exported_to(place: Path, url: str) -> None:
    """Export the topic without Spark."""
    options = parse_options({"store": url, "topic": "t"}, is_stream=False)
    export_topics(InlineCluster(Random(1)), ExecutorPlace(url), ExecutorPlace(f"file://{place}"), options)


# {0} is the directory of the test: `export` is one, `file` is a file, `other` a table of another format.
WRONG: list[tuple[tuple[str, ...], type[Exception], str]] = [
    (("materialize", "u", "--to", "delta", "--table", "{0}/new"), UnknownTopicOrPartitionError, "`u`"),
    (("materialize", "u", "--to", "delta", "--table", "{0}/new", *JSON), UnknownTopicOrPartitionError, "`u`"),
    ((*MATERIALIZE, "{0}/store"), InvalidRequestError, "a store of topics"),
    ((*MATERIALIZE, "{0}/store", *JSON), InvalidRequestError, "a store of topics"),
    ((*MATERIALIZE, "{0}/store/tables/t"), InvalidRequestError, "inside of the other"),
    ((*MATERIALIZE, "{0}"), InvalidRequestError, "inside of the other"),
    (("export", "t", "--to", "{0}/store/shards"), InvalidRequestError, "inside of the other"),
    ((*MATERIALIZE, "{0}/other"), InvalidRequestError, "another format"),
    (
        (*MATERIALIZE, "{0}/new", "--values", "confluent-avro", "--schema", "s"),
        InvalidConfigError,
        "--schema-id",
    ),
    ((*MATERIALIZE, "{0}/new", "--schema-id", "0"), InvalidConfigError, "--schema-id"),
    ((*MATERIALIZE, "{0}/new", "--option", "partitions=1"), InvalidConfigError, "partitions"),
    ((*MATERIALIZE, "{0}/file/new"), StoreError, "file/new"),
    ((*MATERIALIZE, "{0}/file/new", *JSON), StoreError, "file/new"),
    (("export", "u", "--to", "{0}/new"), UnknownTopicOrPartitionError, "`u`"),
    (("export", "t", "--to", "{0}/new", "--option", "partitions=7"), UnknownTopicOrPartitionError, "`7`"),
    (("export", "t", "--to", "{0}/export"), InvalidRequestError, "a whole export"),
    (("export", "t", "--to", "{0}/file/new"), StoreError, "file/new"),
    (("import", "{0}/new", "--topic", "n"), InvalidRequestError, "no whole export"),
    (("import", "{0}/export", "--topic", "t"), TopicAlreadyExistsError, "`t`"),
    (("import", "{0}/export", "--topic", "n", "--from", "u"), UnknownTopicOrPartitionError, "`u`"),
    (("import", "{0}/export", "--topic", "n", "--config", "no.key=1"), InvalidConfigError, "no.key"),
    (("backfill", "{0}/rows", "--topic", "t"), TopicAlreadyExistsError, "`t`"),
    (("backfill", "{0}/rows", "--topic", "n o"), InvalidRequestError, "n o"),
    (("backfill", "{0}/rows", "--topic", "n", "--column", "colour=1"), InvalidRequestError, "colour"),
    (("backfill", "{0}/rows", "--topic", "n", "--config", "no.key=1"), InvalidConfigError, "no.key"),
]
SOUND = [
    (*MATERIALIZE, "{0}/new"),
    (*MATERIALIZE, "{0}/new", *JSON),
    ("export", "t", "--to", "{0}/new"),
    ("import", "{0}/export", "--topic", "n"),
    ("backfill", "{0}/rows", "--topic", "n"),
]


@pytest.fixture
def places(url: str, tmp_path: Path) -> Path:
    """The directory of the places in `WRONG` and `SOUND`."""
    exported_to(tmp_path / "export", url)
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "_latest.json").touch()
    return tmp_path


@pytest.mark.parametrize(("words", "error", "text"), WRONG)
def test_what_is_wrong_starts_no_spark(
    url: str, places: Path, words: tuple[str, ...], error: type[Exception], text: str
) -> None:
    result = CliRunner().invoke(
        stratalog, ["spark", *(word.format(places) for word in words), "--store", url]
    )
    assert isinstance(result.exception, error), repr(result.exception)
    assert text in str(result.exception)


@pytest.mark.parametrize("words", SOUND)
def test_what_is_sound_starts_spark_and_takes_a_path_or_a_url(
    url: str, places: Path, words: tuple[str, ...]
) -> None:
    for place in (str(places), f"file://{places}"):
        given = [word.format(place) for word in words]
        result = CliRunner().invoke(stratalog, ["spark", *given, "--store", url])
        assert isinstance(result.exception, SparkStartedError), repr(result.exception)


def test_a_table_that_is_up_to_date_starts_no_spark(url: str, places: Path, tmp_path: Path) -> None:
    from stratalog.base.clock import SystemClock
    from stratalog.pipeline.lake.materialization import Materialization, MaterializeOrder
    from stratalog.pipeline.lake.table_format import TableFormat
    from stratalog.pipeline.lake.table_place import TablePlace
    from stratalog.pipeline.lake.values.value_format import RawValues

    place, values = TablePlace(f"file://{tmp_path}/table"), RawValues()
    table = TableFormat.DELTA.table(place(), SystemClock(), values.arrow_type)
    order = MaterializeOrder(topic="t", values=values)
    assert Materialization(InlineCluster(Random(1)), ExecutorPlace(url), place, order).run(table).row_count
    again = CliRunner().invoke(stratalog, ["spark", *MATERIALIZE, f"{tmp_path}/table", "--store", url])
    assert "nothing new" in again.stdout, repr(again.exception)


@pytest.mark.parametrize(("master", "variable"), [("sc://host:15002", ""), ("local", "SPARK_REMOTE")])
def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch, master: str, variable: str) -> None:
    if variable:
        monkeypatch.setenv(variable, "sc://host:15002")
    with pytest.raises(InvalidConfigError) as refused, job_session("job", master, {}):
        pytest.fail("it has no RDDs")
    assert refused.value.fields["value"] == (variable or master)


@pytest.mark.parametrize(
    ("version", "is_refused"), [("3.5.6", True), ("3.5.1+amzn-0", True), ("4.0.0", False)]
)
def test_a_job_on_a_spark_that_is_too_old_says_so(
    monkeypatch: pytest.MonkeyPatch, version: str, is_refused: bool
) -> None:
    import pyspark.version

    monkeypatch.setattr(pyspark.version, "__version__", version)
    monkeypatch.setattr("stratalog.pipeline.local_session.java_version", lambda: MINIMUM_JAVA_VERSION - 1)
    with pytest.raises(InvalidConfigError) as refused, job_session("job", "local", {}):
        pytest.fail("it started")
    reason = str(refused.value.fields["value"])
    assert reason.startswith(f"PySpark {version} was found, and 4.0" if is_refused else "Java")


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


def test_a_page_that_cannot_be_written_starts_no_spark(url: str, tmp_path: Path) -> None:
    command = ["spark", "stats", "t", "--read-keys", "--store", url, "--html"]
    for page in (tmp_path / "none" / "page.html", tmp_path / "store" / "page\0.html"):
        result = CliRunner().invoke(stratalog, [*command, str(page)])
        assert not isinstance(result.exception, SparkStartedError)
        assert result.exit_code
    page = tmp_path / "page.html"
    assert isinstance(CliRunner().invoke(stratalog, [*command, str(page)]).exception, SparkStartedError)
    assert not page.exists()
    page.write_text("of another day")
    assert isinstance(CliRunner().invoke(stratalog, [*command, str(page)]).exception, SparkStartedError)
    assert page.read_text() == "of another day"


def test_statistics_of_topics_without_tiered_data_say_so(url: str, tmp_path: Path) -> None:
    found = PlainStore(
        LocalObjectStore(PosixFileSystem(), ManualClock(START_MS), SequentialIds(1), str(tmp_path / "other"))
    )
    found.create("nothing")
    other = f"file://{tmp_path}/other"
    for topics, words in ((["nothing"], "of nothing"), ([], "of any topic")):
        result = CliRunner().invoke(stratalog, ["spark", "stats", *topics, "--store", other])
        assert result.exit_code == 0
        assert words in result.stderr
    result = CliRunner().invoke(stratalog, ["spark", "stats", "t", "--store", url])
    assert "has no data" not in result.stderr
