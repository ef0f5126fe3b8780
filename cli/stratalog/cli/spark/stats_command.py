"""`stratalog spark stats`: numbers of topics, counted on Spark's executors."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidConfigError
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.options import json_option, require_unicode
from stratalog.cli.output import counted, print_json, print_table, utc_time, value_document
from stratalog.cli.spark.options import spark_options
from stratalog.cli.spark.spark_job import spark_job

if TYPE_CHECKING:
    from stratalog.pipeline.jobs.hot_keys import HotKey
    from stratalog.pipeline.jobs.key_statistics import PartitionStatistics


@click.command()
@click.argument("topics", nargs=-1)
@spark_options
@click.option(
    "--read-keys",
    is_flag=True,
    help="Also count the keys of topics that are not compacted, and what compaction would save there. They"
    " have no key streams, so all of their data is read.",
)
@click.option(
    "--hottest",
    type=click.IntRange(1, 10_000),
    metavar="NUMBER",
    help="Show so many keys of each topic, those with the most records. Reads all data of the topics.",
)
@click.option(
    "--html",
    "page_path",
    type=click.Path(dir_okay=False, writable=True),
    callback=require_unicode,
    metavar="FILE",
    help="Also write a page with charts, which needs no network.",
)
@json_option
def stats(
    topics: tuple[str, ...],
    store_url: str,
    master: str,
    conf: Mapping[str, str],
    read_keys: bool,
    hottest: int | None,
    page_path: str | None,
    as_json: bool,
) -> None:
    """Count keys, records and bytes with all executors.

    The keys of each partition are counted, exactly, by the key streams of its slices. A slice of a compacted
    topic without one is read. Other topics have none: see --read-keys.

    \b
    LOST      offsets that the metadata records as lost
    KEYS      different keys
    KEPT      records that a compaction of all records would leave
    SAVES     the bytes that it would free, an estimate; of other topics, if they were compacted
    DIRTY     data that is not compacted yet, of SIZE

    \b
    Examples:
      stratalog spark stats --store s3://bucket/prefix --master spark://host:7077
      stratalog spark stats events --read-keys --hottest 10 --store s3://bucket
      stratalog spark stats --html stats.html --store s3://bucket/prefix
    """
    from stratalog.pipeline.jobs.hot_keys import hot_keys
    from stratalog.pipeline.jobs.key_statistics import key_statistics
    from stratalog.pipeline.jobs.task_place import ExecutorPlace

    if page_path is not None:
        _require_writable(page_path)
    with spark_job("stats", master, conf) as cluster:
        found = key_statistics(cluster, ExecutorPlace(store_url), topics, reads_keys=read_keys)
        hot: list[HotKey] = []
        if hottest is not None:
            for topic in sorted({one.topic for one in found}):
                hot += hot_keys(cluster.session, store_url, topic, hottest)
    _print_untiered(topics, found)
    _print_unread(found)
    if as_json:
        _print_documents(found, hot)
    else:
        _print_tables(found, hot)
    if page_path is not None:
        from stratalog.cli.spark.stats_page import stats_page

        # The numbers have cost hours, perhaps, and are printed whatever becomes of the file.
        time = utc_time(SystemClock().now_ms())
        page = stats_page(found, hot, store_url.partition("?")[0], f"{time}")
        Path(page_path).write_text(page, encoding="utf-8")


def _require_writable(page_path: str) -> None:
    """Raise InvalidConfigError unless the page can be written: the job takes long. A file that is there stays
    as it is."""
    path = Path(page_path)
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise InvalidConfigError(
            "the page cannot be written; name a file in a directory that is there",
            name="--html",
            value=page_path,
            reason=error.strerror or str(error),
        ) from error
    if is_new:
        path.unlink()


def _print_untiered(topics: Sequence[str], found: Sequence[PartitionStatistics]) -> None:
    """Print which topics have no numbers, because nothing of them is in the store."""
    tiered = {one.topic for one in found}
    missing = [topic for topic in topics if topic not in tiered]
    if missing or not found:
        names = f"of {', '.join(missing)}" if missing else "of any topic"
        click.echo(f"the store has no data {names}: nothing was uploaded, or nothing is left", err=True)


def _print_unread(found: Sequence[PartitionStatistics]) -> None:
    """Print how to count the keys that were not counted, and the cost."""
    unread = [one for one in found if not one.keys_counted]
    if unread:
        topics = counted(len({one.topic for one in unread}), "topic")
        size = ByteSize(sum(one.unread_bytes for one in unread))
        click.echo(
            f"keys of {topics} without compaction were not counted, because that reads {size}:"
            " --read-keys counts them",
            err=True,
        )


def _print_documents(found: Sequence[PartitionStatistics], hot: Sequence[HotKey]) -> None:
    print_json(
        {
            "partitions": [{**value_document(one), "keys_counted": one.keys_counted} for one in found],
            "hot_keys": [
                {
                    "topic": one.topic,
                    "key_base64": base64.b64encode(one.key).decode(),
                    "record_count": one.record_count,
                }
                for one in hot
            ],
        }
    )


def _print_tables(found: Sequence[PartitionStatistics], hot: Sequence[HotKey]) -> None:
    _print_partitions(found)
    if hot:
        print_table(
            ("TOPIC", "KEY", "RECORDS"),
            [(one.topic, repr(one.key)[2:-1], one.record_count) for one in hot],
        )


def _print_partitions(found: Sequence[PartitionStatistics]) -> None:
    header = "TOPIC,PARTITION,OBJECTS,RECORDS,LOST,TOMBSTONES,KEYS,KEPT,SIZE,DIRTY,SAVES"
    print_table(
        header.split(","),
        [
            (one.topic, one.partition, one.object_count, one.record_count, one.lost_offset_count,
             one.tombstone_count,
             one.key_count if one.keys_counted else None, one.kept_record_count if one.keys_counted else None,
             ByteSize(one.size_bytes), ByteSize(one.dirty_bytes),
             ByteSize(one.size_bytes - one.kept_bytes) if one.keys_counted else None)
            for one in found
        ],
    )  # fmt: skip
