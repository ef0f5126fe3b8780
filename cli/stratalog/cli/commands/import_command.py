"""`stratalog import kafka`: imports the topics of a stopped broker into a store and a data directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator, system_random
from stratalog.base.types import TopicPartition
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.commands.import_remarks import plan_remarks, report_remarks
from stratalog.cli.interrupts import interrupted_by_signals
from stratalog.cli.options import config_option, data_dir_option, json_option, store_option
from stratalog.cli.output import Cell, counted, print_json, print_table
from stratalog.remote.metadata.catalog.catalog_bounds import DEFAULT_BOUNDS, MAX_BOUNDS, CatalogBounds

if TYPE_CHECKING:
    from stratalog.migration.import_plan import ImportPlan
    from stratalog.migration.kafka_log_directory import SourceTopic
    from stratalog.migration.topic_importer import ImportedTopic, ImportReport


@click.group(name="import")
def import_() -> None:
    """Import topics from a stopped Kafka broker."""


@import_.command()
@click.argument(
    "log_dirs", nargs=-1, required=True, metavar="LOG_DIR...", type=click.Path(exists=True, file_okay=False)
)
@data_dir_option
@store_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Only this topic; may be repeated. Default: all topics except Kafka's own.",
)
@config_option()
@click.option(
    "--copy",
    "copies_all",
    is_flag=True,
    help="Copy every file. Default: link finished segments, which takes no space; but a broker that continues"
    " with LOG_DIR may truncate them.",
)
@click.option(
    "--allow-missing-checkpoints",
    "allows_missing_checkpoints",
    is_flag=True,
    help="Also import partitions that are missing in the checkpoint files beside them. Default: refuse them,"
    " because deleted records may come back.",
)
@click.option(
    "--max-topics",
    "max_topic_count",
    type=click.IntRange(1, MAX_BOUNDS.topic_count),
    default=DEFAULT_BOUNDS.topic_count,
    show_default=True,
    help="Refuse an import after which the store would have more topics: max-topic-count of its server.",
)
@click.option(
    "--max-partitions",
    "max_partition_count",
    type=click.IntRange(1, MAX_BOUNDS.partition_count),
    default=DEFAULT_BOUNDS.partition_count,
    show_default=True,
    help="Refuse an import after which its topics would have more partitions: max-total-partition-count.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be imported, and change nothing.")
@json_option
def kafka(
    log_dirs: tuple[str, ...],
    data_dir: str,
    store_url: str,
    topics: tuple[str, ...],
    config: dict[str, str],
    copies_all: bool,
    allows_missing_checkpoints: bool,
    max_topic_count: int,
    max_partition_count: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import topics from the log directories of a Kafka broker.

    LOG_DIR... are all directories of the stopped broker, which the import does not change. Each holds the
    list of its own deleted records, so leave the partitions where they are.

    Topics keep their names and ids. Partitions keep their offsets, log starts, leader epochs and producers. A
    log directory holds no configuration of topics: give it with --config. Without retention.ms, records are
    kept for ever. The server of the data directory and the store must be stopped; the import fences it. It
    writes to the data directory only; `stratalog log-dirs move` spreads the partitions.

    An interrupted import can be repeated: topics are imported whole, and skipped if they exist with their id.

    \b
    Examples:
      stratalog import kafka /var/lib/kafka --data-dir /data --dry-run
      stratalog import kafka /disk1/kafka /disk2/kafka --data-dir /data
    """
    from stratalog.migration.topic_importer import ImportSettings, TopicImporter
    from stratalog.objectstore.open_store import open_store
    from stratalog.server.background.thread_scheduler import ThreadScheduler
    from stratalog.server.configuration.settings import default_store_url

    filesystem, clock, ids = PosixFileSystem(), SystemClock(), SystemIdGenerator()
    settings = ImportSettings(
        log_dirs=tuple(dict.fromkeys(map(os.path.realpath, log_dirs))),
        data_dir=os.path.realpath(data_dir),
        topics=topics,
        config=config,
        shares_files=not copies_all,
        allows_missing_checkpoints=allows_missing_checkpoints,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        bounds=CatalogBounds(max_topic_count, max_partition_count),
    )
    store = open_store(store_url or default_store_url(data_dir), filesystem=filesystem, clock=clock, ids=ids)
    scheduler = ThreadScheduler(1)
    try:
        importer = TopicImporter(filesystem, store, clock, scheduler, ids, system_random(), settings)
        if dry_run:
            _print_plan(importer.plan(), as_json, links=not copies_all)
            return
        with interrupted_by_signals():
            report = importer.run(_ignore_opened if as_json else _tell)
        _print_report(report, as_json)
    finally:
        scheduler.close()
        store.close()


def _tell(partition: TopicPartition) -> None:
    click.echo(f"opened {partition}", err=True)


def _ignore_opened(_partition: TopicPartition) -> None:
    pass


def _print_plan(plan: ImportPlan, as_json: bool, *, links: bool) -> None:
    if as_json:
        topics = [_source_document(topic, links) for topic in plan.topics]
        print_json({**_plan_document(plan), "topics": topics, "remarks": plan_remarks(plan)})
        return
    rows: list[tuple[Cell, ...]] = [
        (
            str(partition.topic_partition),
            partition.log_start_offset,
            partition.high_watermark,
            partition.segment_count,
            ByteSize(partition.size_bytes),
            ByteSize(partition.linked_bytes if links else 0),
        )
        for topic in plan.topics
        for partition in topic.partitions
    ]
    print_table(("PARTITION", "START", "HIGH WATERMARK", "SEGMENTS", "SIZE", "TO BE LINKED"), rows)
    _print_lines(plan_remarks(plan))
    click.echo(f"would import {counted(len(plan.topics), 'topic')}; nothing was changed")


def _print_report(report: ImportReport, as_json: bool) -> None:
    if as_json:
        document = {**_plan_document(report.plan), "topics": list(map(_imported_document, report.topics))}
        print_json({**document, "remarks": report_remarks(report)})
        return
    partitions = [partition for topic in report.topics for partition in topic.partitions]
    rows: list[tuple[Cell, ...]] = [
        (
            str(partition.topic_partition),
            partition.log.log_start_offset,
            partition.log.log_end_offset,
            ByteSize(partition.log.recovery.recovered_bytes),
            ByteSize(partition.log.recovery.truncated_bytes),
        )
        for partition in partitions
    ]
    print_table(("PARTITION", "START", "END", "RECOVERED", "TRUNCATED"), rows)
    _print_lines(report_remarks(report))
    click.echo(f"imported {counted(len(report.topics), 'topic')}")


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line)


def _plan_document(plan: ImportPlan) -> dict[str, object]:
    return {
        "was_clean": plan.was_clean,
        "unclean_log_dirs": list(plan.unclean_log_dirs),
        "config": dict(plan.config),
        "passed_over": [over._asdict() for over in plan.passed_over],
        "leftovers": list(map(str, plan.leftovers)),
        "already_imported": list(plan.already_imported),
    }


def _source_document(topic: SourceTopic, links: bool) -> dict[str, object]:
    return {
        "topic": topic.name,
        "topic_id": None if topic.topic_id is None else str(topic.topic_id),
        "partitions": [
            {
                "partition": partition.topic_partition.partition,
                "log_start_offset": partition.log_start_offset,
                "recovery_point": partition.recovery_point,
                "high_watermark": partition.high_watermark,
                "segments": partition.segment_count,
                "size_bytes": partition.size_bytes,
                "linked_bytes": partition.linked_bytes if links else 0,
                "lacks_checkpoints": partition.lacks_checkpoints,
            }
            for partition in topic.partitions
        ],
    }


def _imported_document(topic: ImportedTopic) -> dict[str, object]:
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "partitions": [
            {
                "partition": partition.topic_partition.partition,
                "log_start_offset": partition.log.log_start_offset,
                "log_end_offset": partition.log.log_end_offset,
                "high_watermark": partition.high_watermark,
                "leader_epoch": partition.log.latest_epoch,
                "recovered_bytes": partition.log.recovery.recovered_bytes,
                "truncated_bytes": partition.log.recovery.truncated_bytes,
                "remains": partition.log.recovery.remains,
                "lost_end_offset": partition.log.recovery.lost_end_offset,
                "epochs_raised_from": partition.log.recovery.epochs_raised_from,
                "holes_before": partition.log.holes_before,
                "uncertain_offsets": partition.uncertain_count,
                "missing_offsets": partition.missing_count,
                "max_producer_id": partition.log.max_producer_id,
                "open_transactions": len(partition.log.open_transactions),
            }
            for partition in topic.partitions
        ],
    }
