"""`stratalog consume`: records as lines of text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import click

from stratalog.base.errors import LogStoreError, UnknownTopicOrPartitionError
from stratalog.base.types import TopicPartition
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import COUNT, PARTITION
from stratalog.cli.json_pieces import json_pieces
from stratalog.cli.left_out import LeftOut
from stratalog.cli.options import isolation_option, json_option, server_option
from stratalog.cli.output import counted
from stratalog.cli.positions import POSITION_HELP, parse_position
from stratalog.cli.record_json import line_of, record_fields
from stratalog.client.client import Client
from stratalog.client.consuming.position_finder import PositionFinder
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.position import OffsetPosition, Position
from stratalog.client.retry import RetryPolicy
from stratalog.record.native.consumer_records import ConsumerRecord

FOLLOW_RETRY = RetryPolicy(deadline_s=60.0)
"""`--follow` continues after a restart of the server."""


@click.command()
@click.argument("topic")
@click.option(
    "-o",
    "--from",
    "start",
    callback=parse_position,
    default="earliest",
    show_default=True,
    metavar="POSITION",
    help="Start at this position: " + POSITION_HELP,
)
@click.option(
    "--until",
    callback=parse_position,
    metavar="POSITION",
    help="Stop before this position, or at the current end if that comes first. Same notation.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Continue with new records, until Ctrl-C, or until the server has been away for a minute. Default:"
    " stop at the current end.",
)
@click.option("--max", "max_count", type=COUNT, help="Stop after this many records.")
@click.option(
    "--partition", "wanted", type=PARTITION, multiple=True, help="Only this partition; may be repeated."
)
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Contents of a line: the value, or a JSON object with all fields of the record.",
)
@click.option("--key-separator", help="With --format text: print KEY, this separator, VALUE.")
@isolation_option
@json_option
@server_option
def consume(
    topic: str,
    start: Position,
    until: Position | None,
    follow: bool,
    max_count: int | None,
    wanted: tuple[int, ...],
    line_format: str,
    key_separator: str | None,
    isolation: IsolationLevel,
    as_json: bool,
    server: str,
) -> None:
    """Print the records of TOPIC.

    `--json` is the same as `--format json`. Only JSON shows whether a record is a tombstone or has an empty
    value. If a partition cannot be read, standard error names it, and the exit code is 1. With --follow the
    first such partition ends the command.

    \b
    Examples:
      stratalog consume orders --from -10 --follow
      stratalog consume orders --from 2026-01-01 --until 2026-02-01 --json
      stratalog consume orders --partition 0 --from 5 --max 2
    """
    if follow and until is not None:
        raise click.UsageError("give --follow or --until, not both: --until stops at the current end")
    printer = _Printer(as_json or line_format == "json", key_separator)
    left_out = LeftOut(is_allowed=not follow)

    async def work(client: Client) -> None:
        partitions = _chosen(await client.partitions(topic), wanted)
        finder = PositionFinder(client, isolation, left_out.add)
        ends = None if follow else await _ends(finder, partitions, until)
        starts = await _starts(finder, partitions if ends is None else list(ends), start)
        consumer = client.consume(
            topic,
            start=_by_number(starts),
            until=None if ends is None else _by_number(ends),
            partitions=[one.partition for one in starts] if wanted or not follow else None,
            max_records=max_count,
            isolation=isolation,
            on_broken=_say_it_waits,
            on_offline=left_out.add,
            retry=FOLLOW_RETRY if follow else RetryPolicy(),
        )
        async for records in consumer.batches():
            printer.print(records)

    with_client(server, work)
    left_out.require_none()


class _Printer:
    """Writes records to standard output. Not thread-safe."""

    def __init__(self, as_json: bool, key_separator: str | None) -> None:
        self._as_json = as_json
        # Bytes that are not UTF-8 came in by `surrogateescape` and go out as they were.
        self._key_separator = (
            None if key_separator is None else key_separator.encode("utf-8", "surrogateescape")
        )

    def print(self, records: list[ConsumerRecord]) -> None:
        # Values may be any bytes, so lines bypass the text layer; flushed for the reader of the pipe.
        if len(records) == 1 and self._as_json:
            # It may be a large one, which grows as JSON.
            sys.stdout.buffer.writelines(_json_line(records[0]))
        else:
            sys.stdout.buffer.write(b"".join(self._line(record) for record in records))
        sys.stdout.buffer.flush()

    def _line(self, record: ConsumerRecord) -> bytes:
        if self._as_json:
            return line_of(record.partition, record).encode() + b"\n"
        if self._key_separator is None:
            return (record.value or b"") + b"\n"
        return (record.key or b"") + self._key_separator + (record.value or b"") + b"\n"


def _json_line(record: ConsumerRecord) -> Iterator[bytes]:
    for piece in json_pieces(record_fields(record, partition=record.partition)):
        yield piece.encode()
    yield b"\n"


async def _ends(
    finder: PositionFinder, partitions: list[TopicPartition], until: Position | None
) -> dict[TopicPartition, int]:
    """The offset before which each partition stops."""
    ends = await finder.ends(partitions)
    if until is None:
        return ends
    return {one: min(offset, ends[one]) for one, offset in (await finder.offsets(list(ends), until)).items()}


async def _starts(
    finder: PositionFinder, partitions: list[TopicPartition], start: Position
) -> dict[TopicPartition, int]:
    """The first offset of each partition that can be read."""
    if isinstance(start, OffsetPosition):
        partitions = await finder.require_inside(partitions, start.offset)
    return await finder.offsets(partitions, start)


def _by_number(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {one.partition: offset for one, offset in offsets.items()}


def _say_it_waits(error: LogStoreError) -> None:
    click.echo(f"waiting for the server: {error}", err=True)


def _chosen(partitions: list[TopicPartition], wanted: tuple[int, ...]) -> list[TopicPartition]:
    for partition in wanted:
        if partition >= len(partitions):
            raise UnknownTopicOrPartitionError(
                f"the topic has {counted(len(partitions), 'partition')}; choose a lower number",
                topic=partitions[0].topic,
                partition=partition,
            )
    return [partitions[partition] for partition in sorted(set(wanted))] if wanted else partitions
