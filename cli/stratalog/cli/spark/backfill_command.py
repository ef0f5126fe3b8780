"""`stratalog spark backfill`: a topic with the rows of a table that Spark reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from stratalog.cli.int_ranges import PARTITION_COUNT
from stratalog.cli.options import config_option, json_option
from stratalog.cli.spark.import_command import print_created
from stratalog.cli.spark.new_topic_config import accept_config
from stratalog.cli.spark.options import spark_options
from stratalog.cli.spark.spark_job import spark_job


@click.command()
@click.argument("paths", nargs=-1)
@click.option("--topic", "name", required=True, metavar="NAME", help="The topic to create.")
@click.option("--query", default="", metavar="SQL", help="A query of Spark, in place of PATHS.")
@click.option(
    "--format", "form", default="parquet", show_default=True, metavar="NAME", help="The format of PATHS."
)
@config_option("--option", text="Set an option of the format, such as header=true; may be repeated.")
@config_option(
    "--column",
    text="The SQL expression of key, value, timestamp, headers or partition, such as 'key=string(id)'; may be"
    " repeated. Default: the column of that name.",
)
@click.option(
    "--order-by",
    multiple=True,
    metavar="SQL",
    help="The order of the records of a partition; may be repeated. Default: the timestamp.",
)
@click.option(
    "--partitions",
    "partition_count",
    type=PARTITION_COUNT,
    default=1,
    show_default=True,
    metavar="NUMBER",
    help="Partitions of the topic.",
)
@spark_options
@config_option()
@json_option
def backfill(
    *,
    name: str,
    column: Mapping[str, str],
    order_by: tuple[str, ...],
    partition_count: int,
    store_url: str,
    master: str,
    conf: Mapping[str, str],
    config: Mapping[str, str],
    as_json: bool,
    **table: Any,
) -> None:
    """Create a topic with the rows of a table.

    Each row of PATHS becomes a record. The columns are those of the Kafka sink of Spark: key and value
    (binary or text; a value is required), timestamp (a time, or a whole number of milliseconds; now without
    one), headers, and partition, which is chosen from the key as Kafka's clients do if there is none. Their
    names are found in any case, as by Spark. Offsets begin at 0. Columns of the table that are not taken are
    shown at the start.

    The executors write objects into the bucket, and the topic is created last: it is there whole, or not at
    all, with each row once, whatever tasks fail or run twice. Servers of the store may run. retention.ms
    and retention.bytes are -1 unless --config sets them. If compression.type is producer, the default,
    batches are compressed with zstd.

    The examples find the store in STRATALOG_STORE.

    \b
    Examples:
      stratalog spark backfill /orders --topic orders --column 'key=string(id)'
      stratalog spark backfill --query "select * from lake.orders" --topic orders
    """
    from stratalog.pipeline.jobs.task_place import ExecutorPlace
    from stratalog.pipeline.transfer.topic_backfill import BackfillPlan, Table, backfill_topic

    source = Table(**table)
    if bool(source.paths) == bool(source.query):
        raise click.UsageError("give PATHS, or --query")
    plan = BackfillPlan(name, partition_count, config, column, order_by)
    with spark_job("backfill", master, conf) as cluster:
        report = backfill_topic(
            cluster,
            lambda: source.rows(cluster.session),
            ExecutorPlace(store_url),
            plan,
            accept_config,
            _show_untaken,
        )
    print_created(report, as_json=as_json)


def _show_untaken(columns: Sequence[str]) -> None:
    click.echo(f"columns of the table that the records do not have: {', '.join(columns)}", err=True)
