"""`stratalog spark import`: a topic with the records of an export, without the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from stratalog.cli.options import config_option, json_option
from stratalog.cli.output import counted, print_json, print_table
from stratalog.cli.spark.new_topic_config import accept_config
from stratalog.cli.spark.options import spark_options
from stratalog.cli.spark.places import place_url
from stratalog.cli.spark.spark_job import spark_job

if TYPE_CHECKING:
    from stratalog.pipeline.transfer.topic_import import ImportReport


@click.command("import")
@click.argument("place", callback=place_url)
@click.option("--topic", "name", required=True, metavar="NAME", help="The topic to create.")
@click.option(
    "--from",
    "source_topic",
    default="",
    metavar="NAME",
    help="The topic of the export. Default: the only one.",
)
@spark_options
@config_option()
@json_option
def import_(
    place: str,
    name: str,
    source_topic: str,
    store_url: str,
    master: str,
    conf: Mapping[str, str],
    config: Mapping[str, str],
    as_json: bool,
) -> None:
    """Create a topic with the records of an export.

    The new topic has the records of PLACE, a directory or s3://bucket/prefix that `stratalog spark export`
    has written, with their offsets, timestamps, keys, values and headers, and the configuration of the topic
    that was exported. Only retention.ms and retention.bytes are -1 unless --config sets them: old records
    would be deleted at once. If compression.type is producer, batches are compressed with zstd. Producers and
    transactions are not kept.

    The executors write objects into the bucket, and the topic is created last: it is there whole, or not at
    all. Servers of the store may run; they open the topic within seconds.

    The examples find the store in STRATALOG_STORE.

    \b
    Examples:
      stratalog spark import s3://archive/orders --topic orders
      stratalog spark import /archive/all --from orders --topic orders-restored
    """
    from stratalog.pipeline.jobs.task_place import ExecutorPlace
    from stratalog.pipeline.transfer.topic_import import import_topic

    with spark_job("import", master, conf) as cluster:
        report = import_topic(
            cluster,
            ExecutorPlace(place),
            ExecutorPlace(store_url),
            source_topic=source_topic,
            name=name,
            config=config,
            accept=accept_config,
        )
    print_created(report, as_json=as_json)


def print_created(report: ImportReport, *, as_json: bool) -> None:
    """Show a topic that a job has created."""
    if as_json:
        print_json(
            {
                "topic": report.topic,
                "topic_id": str(report.topic_id),
                "config": dict(report.config),
                "left_out_config": dict(report.left_out),
                "object_count": report.object_count,
                "partitions": [one._asdict() for one in report.partitions],
            }
        )
        return
    print_table(
        ("PARTITION", "FROM", "END", "RECORDS"),
        [(one.partition, one.first_offset, one.end_offset, one.record_count) for one in report.partitions],
    )
    record_count = sum(one.record_count for one in report.partitions)
    click.echo(
        f"created {report.topic} with {counted(record_count, 'record')} in"
        f" {counted(report.object_count, 'object')}"
    )
    _show_retention(report)


def _show_retention(report: ImportReport) -> None:
    """Show which keys keep old records, and the values that an exported topic had."""
    from stratalog.pipeline.transfer.topic_import import UNLIMITED

    unlimited = [key for key, value in UNLIMITED.items() if report.config[key] == value]
    if not unlimited:
        return
    had = ", ".join(f"{key}={value}" for key, value in sorted(report.left_out.items()))
    before = f" (the exported topic had {had})" if had else ""
    click.echo(
        f"{' and '.join(unlimited)}: -1{before}, so that old records stay; set another value with"
        f" `stratalog topic alter {report.topic} --add KEY=VALUE`"
    )
