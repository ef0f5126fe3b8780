"""`stratalog consume`: records as lines of text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import click

from stratalog.base.errors import LogStoreError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from stratalog.base.types import TopicPartition
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import COUNT, OFFSET, PARTITION
from stratalog.cli.json_pieces import json_pieces
from stratalog.cli.left_out import LeftOut
from stratalog.cli.options import isolation_option, json_option, server_option
from stratalog.cli.output import counted
from stratalog.cli.record_json import line_of, record_fields
from stratalog.client.client import Client
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.retry import RetryPolicy
from stratalog.record.record import Record
from stratalog.v1 import log_pb2

Start = str | int | datetime
"""The start: earliest or latest, an offset, or a time with its zone."""

FOLLOW_RETRY = RetryPolicy(deadline_s=60.0)
"""`--follow` continues after a restart of the server."""

_LATEST = log_pb2.OFFSET_SPEC_LATEST
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _parse_start(context: click.Context, parameter: click.Parameter, text: str) -> Start:
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return int(OFFSET(text, parameter, context))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            "use earliest, latest, an offset, or a time in ISO 8601 such as 2013-01-01T05:00:00Z"
        ) from None
    # A time without a zone means UTC, on every machine.
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    callback=_parse_start,
    default="earliest",
    show_default=True,
    help="Start at earliest, latest, an offset, or a time in ISO 8601, such as 2013-01-01T05:00:00Z or"
    " 2013-01-01T00:00-05:00; a time without a zone is UTC.",
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
    start: Start,
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
    """
    printer = _Printer(as_json or line_format == "json", key_separator, max_count)
    left_out = LeftOut(is_allowed=not follow)
    with_client(
        server, lambda client: _consume(client, topic, start, follow, wanted, isolation, printer, left_out)
    )
    left_out.require_none()


class _Printer:
    """Writes a limited number of records to standard output. Not thread-safe."""

    def __init__(self, as_json: bool, key_separator: str | None, max_count: int | None) -> None:
        self._as_json = as_json
        # Bytes that are not UTF-8 came in by `surrogateescape` and go out as they were.
        self._key_separator = (
            None if key_separator is None else key_separator.encode("utf-8", "surrogateescape")
        )
        self._left = max_count

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def print(self, partition: int, records: list[Record]) -> None:
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        # Values may be any bytes, so lines bypass the text layer; flushed for the reader of the pipe.
        if len(records) == 1 and self._as_json:
            # It may be a large one, which grows as JSON.
            sys.stdout.buffer.writelines(_json_line(partition, records[0]))
        else:
            sys.stdout.buffer.write(b"".join(self._line(partition, record) for record in records))
        sys.stdout.buffer.flush()

    def _line(self, partition: int, record: Record) -> bytes:
        if self._as_json:
            return line_of(partition, record).encode() + b"\n"
        if self._key_separator is None:
            return (record.value or b"") + b"\n"
        return (record.key or b"") + self._key_separator + (record.value or b"") + b"\n"


def _json_line(partition: int, record: Record) -> Iterator[bytes]:
    for piece in json_pieces(record_fields(record, partition=partition)):
        yield piece.encode()
    yield b"\n"


async def _consume(
    client: Client,
    topic: str,
    start: Start,
    follow: bool,
    wanted: tuple[int, ...],
    isolation: IsolationLevel,
    printer: _Printer,
    left_out: LeftOut,
) -> None:
    partitions = _chosen(await client.partitions(topic), wanted)
    ends = None if follow else await left_out.offsets(client, partitions, _LATEST, isolation)
    consumer = client.consumer(
        await _positions(client, partitions if ends is None else list(ends), start, isolation, left_out),
        end_offsets=ends,
        isolation=isolation,
        retry=FOLLOW_RETRY if follow else None,
        on_broken=_say_it_waits,
        on_offline=left_out.add,
    )
    async for fetched in consumer.fetches():
        printer.print(fetched.topic_partition.partition, fetched.records)
        if printer.is_done:
            return


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


async def _positions(
    client: Client,
    partitions: Sequence[TopicPartition],
    start: Start,
    isolation: IsolationLevel,
    left_out: LeftOut,
) -> Mapping[TopicPartition, int]:
    """The first offset of each partition that can be read."""
    if start == "earliest":
        return await left_out.offsets(client, partitions, log_pb2.OFFSET_SPEC_EARLIEST)
    if start == "latest":
        return await left_out.offsets(client, partitions, _LATEST, isolation)
    if isinstance(start, int):
        return dict.fromkeys(await _inside(client, partitions, start, left_out), start)
    assert isinstance(start, datetime)
    # Records have whole milliseconds: of those not before that time this is the first.
    timestamp_ms = -((_EPOCH - start) // timedelta(milliseconds=1))
    latest = await left_out.offsets(client, partitions, _LATEST, isolation)
    queries = [(partition, None, timestamp_ms) for partition in latest]
    answers = await left_out.answers(client, queries, isolation)
    found = {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}
    # A partition without a record at or behind that time begins at its end.
    return {partition: latest[partition] if offset < 0 else offset for partition, offset in found.items()}


async def _inside(
    client: Client, partitions: Sequence[TopicPartition], offset: int, left_out: LeftOut
) -> list[TopicPartition]:
    """The partitions that can be read. Checks the offset, because one behind the end would look like a
    partition without records."""
    earliest = await left_out.offsets(client, partitions, log_pb2.OFFSET_SPEC_EARLIEST)
    latest = await left_out.offsets(client, list(earliest), _LATEST)
    for partition in latest:
        if not earliest[partition] <= offset <= latest[partition]:
            raise OffsetOutOfRangeError(
                "the offset lies outside the partition, choose another one or a --partition that has it",
                partition=partition,
                offset=offset,
                log_start_offset=earliest[partition],
                log_end_offset=latest[partition],
            )
    return list(latest)
