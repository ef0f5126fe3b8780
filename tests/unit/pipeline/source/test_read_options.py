"""The options of the data source, as Spark's Kafka source has them."""

from __future__ import annotations

import pickle

import pytest

from stratalog.base.errors import InvalidConfigError, UnknownTopicOrPartitionError
from stratalog.pipeline.sink.staging_topic import staging_topic_name
from stratalog.pipeline.source.read_options import (
    EARLIEST,
    LATEST,
    OPTION_NAMES,
    Commit,
    OffsetBound,
    parse_options,
    wanted_columns,
)
from stratalog.pipeline.source.store_view import require_topics
from tests.support.spark.documented_options import documented_options

GIVEN = {"store": "s3://bucket/prefix", "topic": "t"}


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    query = parse_options(GIVEN, is_stream=False)
    assert (query.starting, query.ending) == (OffsetBound(default=EARLIEST), OffsetBound(default=LATEST))
    assert query.fails_on_data_loss
    assert parse_options(GIVEN, is_stream=True).starting == OffsetBound(default=LATEST)
    assert "headers" not in wanted_columns(GIVEN)
    assert "headers" in wanted_columns({**GIVEN, "includeHeaders": "true"})


def test_options_are_read() -> None:
    given = {
        **GIVEN,
        "topic": "a, b",
        "partitions": "0, 3",
        "startingOffsets": '{"a": {"0": 5, "3": -2}, "b": {"0": 0, "3": 1}}',
        "endingTimestamp": "1700000000000",
        "snapshot": "2:17",
        "lease": "60",
    }
    options = parse_options(given, is_stream=False)
    assert options.topics == ("a", "b")
    assert options.partitions == frozenset({0, 3})
    assert options.starting.offsets == {"a": {0: 5, 3: EARLIEST}, "b": {0: 0, 3: 1}}
    assert options.ending == OffsetBound(default=LATEST, timestamp_ms=1_700_000_000_000)
    assert options.snapshot == Commit(shard=2, seq=17)
    assert options.lease_s == 60
    assert wanted_columns({"columns": "offset, key"}) == ("offset", "key")
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("name", "is_selected"), [("ab", True), ("abb", True), ("xab", False), ("abx", False)]
)
def test_a_pattern_matches_whole_names(name: str, is_selected: bool) -> None:
    options = parse_options({"store": "memory://", "topicPattern": "ab+"}, is_stream=False)
    assert options.selects(name) == is_selected


def test_a_pattern_does_not_mean_the_topics_in_which_writes_are_staged() -> None:
    staging = staging_topic_name("query")
    pattern = parse_options({"store": "memory://", "topicPattern": ".*"}, is_stream=False)
    assert pattern.selects("t")
    assert not pattern.selects(staging)
    assert parse_options({"store": "memory://", "topic": staging}, is_stream=False).selects(staging)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": ""},
        {"topicPattern": "a.*"},
        {"partitions": "0,x"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t": {"0": -1}}'},
        {"startingOffsets": '{"t": 5}'},
        {"startingOffsets": '{"t": {"0": true}}'},
        {"startingOffsets": "[]"},
        {"startingOffsets": "earliest", "startingTimestamp": "5"},
        {"startingTimestamp": "yesterday"},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"t": {"0": -2}}'},
        {"snapshot": "newest"},
        {"lease": "0"},
        {"maxPartitionBytes": "0"},
        {"maxOffsetsPerTrigger": "5"},
        {"maxBytesPerTrigger": "5"},
        {"idlePollMs": "5"},
        {"columns": "key", "includeHeaders": "true"},
        {"failOnDataLoss": "perhaps"},
        {"isolationLevel": "serializable"},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError):
        parse_options({**GIVEN, **wrong}, is_stream=False)


def test_an_idle_stream_has_a_pause_that_may_be_none() -> None:
    assert parse_options(GIVEN, is_stream=True).idle_poll_ms == 1000
    assert parse_options({**GIVEN, "idlePollMs": "0"}, is_stream=True).idle_poll_ms == 0
    with pytest.raises(InvalidConfigError):
        parse_options({**GIVEN, "idlePollMs": "1s"}, is_stream=True)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "snapshot", "lease", "pushdown"])
def test_an_option_that_a_stream_would_not_heed_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfigError) as error:
        parse_options({**GIVEN, name: "5"}, is_stream=True)
    assert (error.value.fields["name"], error.value.fields["value"]) == (name, "5")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", ["partition", "startingOffset", "path", "checkpointLocation"])
def test_a_misspelt_option_is_refused_and_not_left_out(name: str, is_stream: bool) -> None:
    with pytest.raises(InvalidConfigError) as error:
        parse_options({**GIVEN, name: "1"}, is_stream=is_stream)
    assert error.value.fields["name"] == name


def test_names_have_no_case_and_the_document_has_each() -> None:
    """Spark gives all names in small letters."""
    assert parse_options({**GIVEN, "maxpartitionbytes": "7"}, is_stream=False).max_partition_bytes == 7
    assert documented_options("## Options") == set(OPTION_NAMES)


@pytest.mark.parametrize("columns", ["", "colour", "key,key"])
def test_wrong_columns_are_refused(columns: str) -> None:
    with pytest.raises(InvalidConfigError):
        wanted_columns({"columns": columns})


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("option", [("columns", "offset"), ("includeHeaders", "true")])
def test_a_schema_and_an_option_that_names_other_columns_are_refused(
    is_stream: bool, option: tuple[str, str]
) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import StructType

    from stratalog.pipeline.source.data_source import StratalogDataSource

    source = StratalogDataSource({**GIVEN, **dict([option])})
    make = source.streamReader if is_stream else source.reader
    if option[0] == "columns":
        # The schema is the option's, as Spark has it from the source.
        make(StructType().add("offset", "long"))
    with pytest.raises(InvalidConfigError) as error:
        make(StructType().add("key", "binary"))
    assert error.value.fields["name"] == option[0]


def test_a_topic_that_a_snapshot_lacks_is_named_with_the_commit() -> None:
    options = parse_options({**GIVEN, "snapshot": "7"}, is_stream=False)
    with pytest.raises(UnknownTopicOrPartitionError) as error:
        require_topics(options, [])
    assert (error.value.fields["topic"], error.value.fields["snapshot"]) == ("t", "0:7")
