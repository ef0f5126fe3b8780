"""`stratalog export kafka`: topics of a server, from all tiers, as a log directory that a broker opens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import click

from stratalog.base.clock import SystemClock
from stratalog.base.errors import CorruptRecordError, LogStoreError, OffsetOutOfRangeError, StartingError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicPartition
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.interrupts import interrupted_by_signals
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import Cell, counted, print_json, print_table
from stratalog.client import values
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.partition_metadata import format_topic_id, parse_topic_id
from stratalog.record.header import parse_header

if TYPE_CHECKING:
    from stratalog.migration.log_export import ExportedLog, LogExport, PartitionExport

_FETCH_BYTES = 8 << 20
_MAX_BEGINNINGS = 5
"""Tries of a partition whose first records are deleted while it is read."""
_RESERVED_IDS = frozenset({0, 1})
"""The ids that Kafka uses for no topic, and for its own metadata."""


def _parse_id(_context: click.Context, _parameter: click.Parameter, value: str | None) -> UUID | None:
    if value is None:
        return None
    try:
        topic_id = UUID(value) if len(value) > 22 else parse_topic_id(value)
    except ValueError:
        raise click.BadParameter(
            "use the id as `kafka-topics.sh --describe` shows it, or a UUID in hexadecimal"
        ) from None
    if topic_id.int in _RESERVED_IDS:
        raise click.BadParameter(
            "Kafka reserves this id, and a broker would not start on it; use the one that"
            " `kafka-topics.sh --describe` shows"
        )
    return topic_id


@click.group()
def export() -> None:
    """Export topics as the log directory of a Kafka broker."""


@export.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.argument("log_dir", type=click.Path())
@click.option(
    "--topic-id",
    callback=_parse_id,
    metavar="UUID",
    help="The broker's id of the topic, if one topic is exported. Default: the id of the topic here.",
)
@click.option(
    "--keep-producer-ids",
    "keeps_producer_ids",
    is_flag=True,
    help="Use it only to restore into the producers' own cluster. Default: raise ids by 2^48, because another"
    " cluster hands out the same ids and would take its new producers for the old ones.",
)
@json_option
@server_option
def kafka(
    topics: tuple[str, ...],
    log_dir: str,
    topic_id: UUID | None,
    keeps_producer_ids: bool,
    as_json: bool,
    server: str,
) -> None:
    """Export topics as the log directory of a Kafka broker.

    Creates the directory LOG_DIR with all records of TOPIC..., from all tiers, up to the current end, with
    their offsets. Batches get leader epoch 0, as in a new topic, and producer ids that no producer of a new
    cluster has. A broker knows topics by their ids: create the topic there, export with its id (--topic-id),
    stop the broker, and replace the partition directories of the topic by the exported ones.

    \b
    Example: stratalog export kafka orders /tmp/orders
    """
    if topic_id is not None and len(topics) > 1:
        raise click.UsageError("--topic-id goes with one topic")
    from stratalog.migration.log_export import LogExport
    from stratalog.server.background.thread_scheduler import ThreadScheduler

    scheduler = ThreadScheduler(1)
    try:
        with (
            interrupted_by_signals(),
            LogExport(
                PosixFileSystem(),
                SystemClock(),
                scheduler,
                SystemIdGenerator(),
                os.path.abspath(log_dir),
                keeps_producer_ids=keeps_producer_ids,
            ) as target,
        ):
            failures = with_client(server, lambda client: _export(client, topics, topic_id, target))
            for failure in failures:
                click.echo(f"left out: {failure}", err=True)
            if len(failures) == len(set(topics)):
                raise _left_out(failures)
            exported = target.publish()
    finally:
        scheduler.close()
    if as_json:
        print_json([_document(log) for log in exported])
    else:
        _print(exported, log_dir)
    if failures:
        raise _left_out(failures)


def _left_out(failures: Sequence[LogStoreError]) -> LogStoreError:
    return LogStoreError(
        "topics were left out; mend the faults that are named above, and export them again",
        topics=",".join(str(failure.fields["topic"]) for failure in failures),
    )


async def _export(
    client: Client, topics: Sequence[str], topic_id: UUID | None, target: LogExport
) -> list[LogStoreError]:
    """Export the topics; returns the failures of those that are left out."""
    from stratalog.migration.log_export import ExportTargetError

    failures: list[LogStoreError] = []
    gone: ServerUnavailableError | StartingError | None = None
    for topic in await client.admin.describe_topics(list(dict.fromkeys(topics))):
        partition = 0
        try:
            if gone is not None:
                # Each question more would wait for it in vain.
                raise gone
            for partition in range(topic.partition_count):
                named = TopicPartition(topic.name, partition)
                target.end(await _export_partition(client, topic, topic_id, named, target))
        except ExportTargetError:
            raise
        except LogStoreError as failure:
            gone = failure if isinstance(failure, ServerUnavailableError | StartingError) else None
            fields = {"topic": topic.name, "partition": partition, **failure.fields}
            failures.append(LogStoreError(failure.message, **fields))
            target.leave_out(topic.name)
    return failures


async def _export_partition(
    client: Client,
    topic: values.Topic,
    topic_id: UUID | None,
    partition: TopicPartition,
    target: LogExport,
) -> PartitionExport:
    """Export a partition; begins anew behind records that are deleted before they are read."""
    for _ in range(_MAX_BEGINNINGS - 1):
        try:
            return await _export_range(client, topic, topic_id, partition, target)
        except OffsetOutOfRangeError:
            continue
    return await _export_range(client, topic, topic_id, partition, target)


async def _export_range(
    client: Client,
    topic: values.Topic,
    topic_id: UUID | None,
    partition: TopicPartition,
    target: LogExport,
) -> PartitionExport:
    [start_offset] = (await client.offsets([partition], "earliest")).values()
    [end_offset] = (await client.offsets([partition], "latest")).values()
    offset = start_offset
    writer: PartitionExport | None = None
    while offset < end_offset or writer is None:
        [answer] = await client.fetch({partition: offset}, max_bytes=_FETCH_BYTES)
        if answer.error is not None:
            raise answer.error
        if writer is None:
            # The first batch may begin below the log start, and with it the log.
            begins = parse_header(answer.batches).base_offset if answer.batches else start_offset
            writer = target.begin(
                partition,
                topic_id or UUID(topic.topic_id),
                LogConfig.from_overrides(topic.config_overrides),
                base_offset=min(begins, start_offset),
                log_start_offset=start_offset,
                log_end_offset=end_offset,
            )
        writer.append(answer.batches)
        if answer.next_fetch_offset <= offset < end_offset:
            raise CorruptRecordError(
                "the server returned no records where there must be some; look at its log",
                topic=partition.topic,
                partition=partition.partition,
                offset=offset,
            )
        offset = answer.next_fetch_offset
    return writer


def _print(exported: Sequence[ExportedLog], log_dir: str) -> None:
    rows: list[tuple[Cell, ...]] = [
        (
            str(log.topic_partition),
            log.log_start_offset,
            log.log_end_offset,
            ByteSize(log.size_bytes),
            format_topic_id(log.topic_id),
        )
        for log in exported
    ]
    print_table(("PARTITION", "START", "END", "SIZE", "TOPIC ID"), rows)
    for log in exported:
        if log.open_transaction_count:
            click.echo(
                f"note: {log.topic_partition} has {counted(log.open_transaction_count, 'open transaction')}"
                " that the broker does not know; end them with `kafka-transactions.sh abort`"
            )
    if any(log.has_raised_producer_ids for log in exported):
        click.echo(
            "note: producer ids were raised by 2^48, because another cluster hands out the same ids; to"
            " restore into the producers' own cluster, export with --keep-producer-ids"
        )
    if any(log.log_start_offset for log in exported):
        click.echo(
            "note: records were deleted; also copy the lines of log-start-offset-checkpoint, or the broker"
            " begins with the first batch of the first segment"
        )
    click.echo(f"exported {counted(len(exported), 'partition')} to {log_dir}")


def _document(log: ExportedLog) -> dict[str, object]:
    return {
        "topic": log.topic_partition.topic,
        "partition": log.topic_partition.partition,
        "topic_id": str(log.topic_id),
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "size_bytes": log.size_bytes,
        "open_transactions": log.open_transaction_count,
        "raised_producer_ids": log.has_raised_producer_ids,
    }
