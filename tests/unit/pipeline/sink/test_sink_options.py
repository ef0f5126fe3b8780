"""The options and the columns of a write, which are checked before a task runs."""

from __future__ import annotations

import pickle

import pytest

from stratalog.base.errors import InvalidConfigError, UnsupportedOperationError
from stratalog.pipeline.service_options import ServiceOptions
from stratalog.pipeline.sink.sink_options import (
    COLUMN_TYPES,
    OPTION_NAMES,
    SinkOptions,
    parse_sink_options,
    require_columns,
)
from tests.support.spark.documented_options import documented_options

GIVEN = {"server": "log:9190", "topic": "t"}


def test_defaults_promise_the_most() -> None:
    assert parse_sink_options(GIVEN, is_stream=True) == SinkOptions(
        service=ServiceOptions("log:9190"),
        topic="t",
        durability=None,
        compression="none",
        job_id=None,
        batch_id=None,
        is_exactly_once=True,
    )


def test_options_are_read_and_travel() -> None:
    given = {
        "server": "log:9190",
        "durability": "OBJECT",
        "compression": "zstd",
        "jobId": "load-7",
        "batchId": "12",
        "delivery": "atleastonce",
    }
    options = parse_sink_options(given, is_stream=False)
    assert (options.topic, options.durability, options.compression) == (None, "object", "zstd")
    assert (options.job_id, options.batch_id, options.is_exactly_once) == ("load-7", 12, False)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("durability", "tape"),
        ("compression", "zip"),
        ("delivery", "sometimes"),
        ("jobId", "a b"),
        ("jobId", ""),
        ("batchId", "-1"),
        ("batchId", "1e3"),
        ("batchId", "1" * 19),
        ("server", "log"),
    ],
)
def test_a_wrong_option_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_sink_options({**GIVEN, "jobId": "load", name: value}, is_stream=False)
    assert (refused.value.fields["name"], refused.value.fields["value"]) == (name, value)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"topic": "t"}, "server"),
        ({**GIVEN, "jobId": "load-7"}, "jobId"),
        ({**GIVEN, "batchId": "7"}, "batchId"),
    ],
)
def test_a_server_is_needed_and_a_stream_has_no_job(options: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_sink_options(options, is_stream=True)
    assert refused.value.fields["name"] == name


def test_a_number_of_a_batch_needs_the_name_of_its_job() -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_sink_options({**GIVEN, "batchId": "7"}, is_stream=False)
    assert refused.value.fields["name"] == "batchId"


def test_only_known_options_and_those_of_sparks_streams_are_taken() -> None:
    assert documented_options("## Writing") == set(OPTION_NAMES)
    of_spark = {"checkpointlocation": "/c", "queryname": "q"}
    assert parse_sink_options({**GIVEN, **of_spark}, is_stream=True).topic == "t"
    for unknown in (of_spark, {"job": "load-7"}):
        with pytest.raises(InvalidConfigError) as refused:
            parse_sink_options({**GIVEN, **unknown}, is_stream=False)
        assert refused.value.fields["name"] == ", ".join(sorted(unknown))


def test_the_columns_of_a_topic_can_be_written_again() -> None:
    from stratalog.pipeline.source.schema import COLUMNS

    options = parse_sink_options({"server": "log:9190"}, is_stream=False)
    require_columns(((column.name, column.spark_type) for column in COLUMNS), options)
    for name, kinds in COLUMN_TYPES.items():
        for kind in kinds:
            require_columns({"value": "binary", "topic": "string", name: kind}.items(), options)


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"key": "binary", "topic": "string"}, "value"),
        ({"value": "binary"}, "topic"),
        ({"value": "bigint", "topic": "string"}, "value"),
        ({"value": "binary", "topic": "string", "id": "bigint"}, "id"),
        ({"value": "binary", "topic": "string", "partition": "bigint"}, "partition"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(columns: dict[str, str], name: str) -> None:
    options = parse_sink_options({"server": "log:9190"}, is_stream=False)
    with pytest.raises(InvalidConfigError) as refused:
        require_columns(columns.items(), options)
    assert refused.value.fields["name"] == name


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_log_is_only_appended_to(is_stream: bool) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import StructType

    from stratalog.pipeline.source.data_source import StratalogDataSource

    source = StratalogDataSource(GIVEN)
    make = source.streamWriter if is_stream else source.writer
    with pytest.raises(UnsupportedOperationError):
        make(StructType().add("value", "binary"), True)
