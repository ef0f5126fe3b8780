"""The options and the columns of a write, which are checked before a task runs."""

from __future__ import annotations

import pickle

import pytest

from stratalog.base.errors import InvalidConfigError, UnsupportedOperationError
from stratalog.pipeline.service_options import ServiceOptions
from stratalog.pipeline.sink.sink_options import (
    COLUMN_TYPES,
    SinkOptions,
    parse_sink_options,
    require_columns,
)

GIVEN = {"server": "log:9190", "topic": "t"}


def test_defaults_promise_the_most() -> None:
    assert parse_sink_options(GIVEN, is_stream=True) == SinkOptions(
        service=ServiceOptions("log:9190"),
        topic="t",
        durability=None,
        compression="none",
        job_id=None,
        is_exactly_once=True,
    )


def test_options_are_read_and_travel() -> None:
    given = {
        "server": "log:9190",
        "durability": "OBJECT",
        "compression": "zstd",
        "jobId": "load-7",
        "delivery": "atleastonce",
    }
    options = parse_sink_options(given, is_stream=False)
    assert (options.topic, options.durability, options.compression) == (None, "object", "zstd")
    assert (options.job_id, options.is_exactly_once) == ("load-7", False)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"durability": "tape"}, "os, disk, object"),
        ({"compression": "zip"}, "zstd"),
        ({"delivery": "sometimes"}, "exactlyOnce"),
        ({"jobId": "a b"}, "letters"),
        ({"jobId": ""}, "letters"),
        ({"server": "log"}, "HOST:PORT"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        parse_sink_options({**GIVEN, **wrong}, is_stream=False)


def test_a_server_is_needed_and_a_stream_has_no_job() -> None:
    with pytest.raises(InvalidConfigError, match="server"):
        parse_sink_options({"topic": "t"}, is_stream=False)
    with pytest.raises(InvalidConfigError, match="checkpoint"):
        parse_sink_options({**GIVEN, "jobId": "load-7"}, is_stream=True)


def test_the_columns_of_a_topic_can_be_written_again() -> None:
    from stratalog.pipeline.source.schema import COLUMNS

    options = parse_sink_options({"server": "log:9190"}, is_stream=False)
    require_columns(((column.name, column.spark_type) for column in COLUMNS), options)
    for name, kinds in COLUMN_TYPES.items():
        for kind in kinds:
            require_columns({"value": "binary", "topic": "string", name: kind}.items(), options)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": "binary", "topic": "string"}, "no column value"),
        ({"value": "binary"}, "add a column topic"),
        ({"value": "bigint", "topic": "string"}, "cast, rename or drop"),
        ({"value": "binary", "topic": "string", "id": "bigint"}, "cast, rename or drop"),
        ({"value": "binary", "topic": "string", "partition": "bigint"}, "partition int"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(columns: dict[str, str], message: str) -> None:
    options = parse_sink_options({"server": "log:9190"}, is_stream=False)
    with pytest.raises(InvalidConfigError, match=message):
        require_columns(columns.items(), options)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_log_is_only_appended_to(is_stream: bool) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import StructType

    from stratalog.pipeline.source.data_source import StratalogDataSource

    source = StratalogDataSource(GIVEN)
    make = source.streamWriter if is_stream else source.writer
    with pytest.raises(UnsupportedOperationError, match="append"):
        make(StructType().add("value", "binary"), True)
