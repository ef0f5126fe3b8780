"""`stratalog spark export`: topics as Parquet files, written by Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.options import config_option, json_option
from stratalog.cli.output import print_json, print_table
from stratalog.cli.spark.options import spark_options
from stratalog.cli.spark.places import PLACE_HELP, place_url, require_outside
from stratalog.cli.spark.spark_job import spark_job
from stratalog.client.isolation_level import IsolationLevel

if TYPE_CHECKING:
    from stratalog.pipeline.transfer.export_manifest import ExportedPartition
    from stratalog.pipeline.transfer.topic_export import ExportReport

_SOURCE_OPTIONS = (
    "partitions",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "snapshot",
    "lease",
    "maxPartitionBytes",
)
"""Those that bound an export. It sets the others itself, and has no tail."""


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option(
    "--to",
    "target",
    required=True,
    callback=place_url,
    metavar="PLACE",
    help=f"Where to: {PLACE_HELP}.",
)
@spark_options
@config_option(
    "--option",
    text="Set an option of the source, such as partitions=0,1 or startingTimestamp=MS; may be repeated.",
)
@click.option(
    "--isolation",
    type=click.Choice([level.value for level in IsolationLevel]),
    default=IsolationLevel.READ_COMMITTED.value,
    show_default=True,
    help="With read_uncommitted, also records of transactions that were aborted, or are open.",
)
@json_option
def export(
    topics: tuple[str, ...],
    target: str,
    store_url: str,
    master: str,
    conf: Mapping[str, str],
    option: Mapping[str, str],
    isolation: str,
    as_json: bool,
) -> None:
    """Write TOPICS to Parquet files.

    The files have each record with key, value, headers, offset, timestamp and its type, so that `stratalog
    spark import` gives a topic back. Any reader of Parquet reads them, a folder for each topic. A file has
    records of one partition, from about maxPartitionBytes of data.

    _manifest.json is written last, and without it nothing is imported. After a failure the same command goes
    on with the files that are there. Only what is tiered is exported.

    The examples find the store in STRATALOG_STORE.

    \b
    Examples:
      stratalog spark export orders --to s3://archive/orders --master local[4]
      stratalog spark export orders --to /archive/orders --option partitions=0,1
    """
    from stratalog.pipeline.option_names import known_options

    require_outside(target, store_url)
    options = {**known_options(option, _SOURCE_OPTIONS), "isolationLevel": isolation}
    report = _exported(topics, target, store_url, master, conf, options)
    manifest = report.manifest
    found = [_row(topic.name, one) for topic in manifest.topics for one in topic.partitions]
    if as_json:
        print_json(
            {
                "partitions": [row._asdict() for row in found],
                "reused_file_count": report.reused_count,
                "deleted_file_count": report.deleted_count,
            }
        )
        return
    print_table(
        ("TOPIC", "PARTITION", "FROM", "END", "RECORDS", "FILES", "SIZE"),
        [(*row[:-1], ByteSize(row.size_bytes)) for row in found],
    )


class _Row(NamedTuple):
    """A partition, as it is shown."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    record_count: int
    file_count: int
    size_bytes: int


def _row(topic: str, one: ExportedPartition) -> _Row:
    return _Row(
        topic=topic,
        partition=one.partition,
        first_offset=one.first_offset,
        end_offset=one.end_offset,
        record_count=one.record_count,
        file_count=len(one.files),
        size_bytes=sum(file.size_bytes for file in one.files),
    )


def _exported(
    topics: tuple[str, ...],
    target_url: str,
    store_url: str,
    master: str,
    conf: Mapping[str, str],
    options: Mapping[str, str],
) -> ExportReport:
    from stratalog.pipeline.jobs.task_place import ExecutorPlace
    from stratalog.pipeline.source.read_options import parse_options
    from stratalog.pipeline.transfer.topic_export import export_topics

    parsed = parse_options({**options, "store": store_url, "topic": ",".join(topics)}, is_stream=False)
    with spark_job("export", master, conf) as cluster:
        return export_topics(cluster, ExecutorPlace(store_url), ExecutorPlace(target_url), parsed)
