"""`stratalog consume`: records as lines of text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from stratalog.base.errors import LogStoreError
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import COUNT, PARTITION
from stratalog.cli.json_pieces import json_pieces
from stratalog.cli.left_out import LeftOut
from stratalog.cli.options import isolation_option, json_option, server_option
from stratalog.cli.positions import POSITION_HELP, parse_position
from stratalog.cli.records.record_json import line_of, record_fields
from stratalog.client.client import Client
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.position import Position
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
    help="Stop before this position. Same notation. Without --follow the current end comes first.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Wait for new records at the end: up to --until, or until Ctrl-C, or until the server has been away"
    " for a minute. Default: stop at the current end.",
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
    printer = _Printer(as_json or line_format == "json", key_separator)
    left_out = LeftOut(is_allowed=not follow)

    async def work(client: Client) -> None:
        consumer = client.consume(
            topic,
            start=start,
            until=until,
            follow=follow,
            partitions=wanted or None,
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


def _say_it_waits(error: LogStoreError) -> None:
    click.echo(f"waiting for the server: {error}", err=True)
