"""`stratalog produce`: records from lines of text or JSON."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from io import BytesIO
from typing import BinaryIO

import click

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.base.types import Durability
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION
from stratalog.cli.options import json_option, require_unicode, server_option
from stratalog.cli.output import counted, print_json
from stratalog.cli.records.input_chunks import input_chunk
from stratalog.cli.records.record_json import InputRecord, parse_line
from stratalog.client.client import Client
from stratalog.client.errors import BufferFullError, ServerUnavailableError
from stratalog.client.producer import Producer
from stratalog.record.codecs.compression import Codec
from stratalog.record.native.record_accumulator import Delivery

INTERRUPTED_S = 2.0
"""After Ctrl-C, records that were read have so much time to be stored."""

Headers = tuple[tuple[str, bytes], ...]


def _parse_headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Headers:
    headers: list[tuple[str, bytes]] = []
    for value in values:
        name, separator, text = value.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE, for example source=web")
        headers.append((require_unicode(context, parameter, name), _encoded(text)))
    return tuple(headers)


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Contents of a line: a value, or a JSON object with key, value, timestamp, headers.",
)
@click.option("--key-separator", help="With --format text: a line is KEY, this separator, VALUE.")
@click.option("--key", help="With --format text: the key of all records.")
@click.option("--value", help="Append one record with this value; no file is read.")
@click.option(
    "--header",
    "headers",
    callback=_parse_headers,
    multiple=True,
    metavar="NAME=VALUE",
    help="Add this header to all records; may be repeated.",
)
@click.option("--partition", type=PARTITION, help="The partition for all records. Default: by key.")
@click.option(
    "--durability",
    type=click.Choice(["os", "disk", "object"]),
    help="When records count as stored: in the page cache, fsynced, or committed in the object store."
    " Default: the topic's min.durability.",
)
@click.option(
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Codec]),
    default="none",
    show_default=True,
)
@json_option
@server_option
def produce(
    topic: str,
    file: BinaryIO,
    line_format: str,
    key_separator: str | None,
    key: str | None,
    value: str | None,
    headers: Headers,
    partition: int | None,
    durability: str | None,
    compression: str,
    as_json: bool,
    server: str,
) -> None:
    """Append records to TOPIC: lines of a file, or one value.

    \b
    Examples:
      stratalog produce orders --key 7 --value paid --header source=web
      stratalog produce orders orders.txt --key-separator : --compression zstd
      echo '{"key": "7", "value": null}' | stratalog produce orders --format json
    """
    if (key_separator, key) != (None, None) and line_format != "text":
        raise click.UsageError(
            "--key and --key-separator go with --format text; JSON lines have a key of their own"
        )
    if key_separator is not None and key is not None:
        raise click.UsageError("give --key or --key-separator, not both")
    if value is not None:
        has_file = (
            click.get_current_context().get_parameter_source("file") is click.core.ParameterSource.COMMANDLINE
        )
        if has_file or key_separator is not None or line_format != "text":
            raise click.UsageError(
                "--value is the only record; leave out FILE, --key-separator and --format json"
            )
        file = BytesIO()
    parse = parse_line if line_format == "json" else _text_parser(key_separator, key)
    records = _records(file, parse) if value is None else _one_record(key, value)
    tally = _Tally()

    async def work(client: Client) -> None:
        # Report a wrong name of the topic now, before a person types the first line.
        await client.topics.describe(topic)
        producer = client.producer(
            durability=Durability[durability.upper()] if durability else None, compression=compression
        )
        await _produce(producer, topic, _with_headers(records, headers), partition, tally)

    try:
        with_client(server, work)
    except LogStoreError as error:
        error.message += tally.what_is_stored()
        raise
    count = tally.by_partition.total()
    if as_json:
        print_json({"topic": topic, "records": count, "partitions": dict(sorted(tally.by_partition.items()))})
    else:
        click.echo(f"{counted(count, 'record')} appended to {topic}", err=True)


class _Tally:
    """Counts stored lines and remembers the first failure. Not thread-safe: belongs to the command."""

    def __init__(self) -> None:
        self.by_partition: Counter[int] = Counter()
        self.failure: LogStoreError | None = None
        """The error of the first line that is not stored."""
        self._first_failed_line = 0
        self._pending: deque[tuple[int, Delivery]] = deque()

    def add(self, line: int, delivery: Delivery) -> None:
        """Remember a line that was sent."""
        self._pending.append((line, delivery))
        self.take_outcomes()

    def take_outcomes(self) -> None:
        """Count acknowledged lines, and remember the failure of the first other line."""
        while self._pending and self._pending[0][1].is_done:
            line, delivery = self._pending.popleft()
            try:
                self.by_partition[delivery.result().partition] += 1
            except LogStoreError as error:
                if self.failure is None:
                    self.failure, self._first_failed_line = error, line

    def what_is_stored(self) -> str:
        """Text for a failure's message. Lines after a failed one may be stored, in later batches."""
        count = self.by_partition.total()
        verb = "is" if count == 1 else "are"
        if self.failure is None:
            return f" (the {counted(count, 'record')} before it {verb} stored)" if count else ""
        is_not = "may not be" if isinstance(self.failure, ServerUnavailableError) else "is not"
        return (
            f" ({counted(count, 'record')} {verb} stored,"
            f" line {self._first_failed_line} is the first that {is_not})"
        )


def _text_parser(key_separator: str | None, fixed_key: str | None) -> Callable[[str], InputRecord]:
    fixed = None if fixed_key is None else _encoded(fixed_key)

    def parse(line: str) -> InputRecord:
        if key_separator is None:
            return InputRecord(fixed, _encoded(line))
        key, separator, value = line.partition(key_separator)
        if not separator:
            raise InvalidRequestError("the line has no key separator; tombstones need --format json")
        return InputRecord(_encoded(key), _encoded(value))

    return parse


def _encoded(text: str) -> bytes:
    # Bytes of the input that are not UTF-8 went through `surrogateescape` and come out as they were.
    return text.encode("utf-8", "surrogateescape")


async def _with_headers(
    records: AsyncIterator[tuple[int, InputRecord]], headers: Headers
) -> AsyncIterator[tuple[int, InputRecord]]:
    """The records with these headers behind their own."""
    async for number, record in records:
        yield number, record._replace(headers=(*record.headers, *headers))


async def _one_record(key: str | None, value: str) -> AsyncIterator[tuple[int, InputRecord]]:
    yield 1, InputRecord(None if key is None else _encoded(key), _encoded(value))


async def _records(
    file: BinaryIO, parse: Callable[[str], InputRecord]
) -> AsyncIterator[tuple[int, InputRecord]]:
    """Line numbers and records as they arrive: what a pipe or a terminal has at hand is sent without waiting
    for more. A bad line is raised when it is its turn.
    """
    number, rest = 0, b""
    while chunk := await input_chunk(file):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            number += 1
            yield number, _parsed(line, number, parse)
    if rest:
        yield number + 1, _parsed(rest, number + 1, parse)


def _parsed(line: bytes, number: int, parse: Callable[[str], InputRecord]) -> InputRecord:
    try:
        return parse(line.decode("utf-8", "surrogateescape").removesuffix("\r"))
    except InvalidRequestError as error:
        error.message = f"line {number}: {error.message}"
        raise


async def _produce(
    producer: Producer,
    topic: str,
    records: AsyncIterator[tuple[int, InputRecord]],
    partition: int | None,
    tally: _Tally,
) -> None:
    try:
        async for number, record in records:
            try:
                tally.add(number, await _sent(producer, topic, record, partition))
            except InvalidRequestError as error:
                error.message = f"line {number}: {error.message}"
                raise
            if tally.failure is not None:
                break
    except asyncio.CancelledError:
        # Who interrupts the command does not wait for a quota. A server that has room stores the rest.
        with suppress(LogStoreError, TimeoutError):
            async with asyncio.timeout(INTERRUPTED_S):
                await producer.close()
        raise
    finally:
        # What was read before a bad line is stored and counted, so that one knows where to go on.
        with suppress(LogStoreError):
            await producer.close()
        tally.take_outcomes()
        if tally.failure is not None:
            raise tally.failure


async def _sent(producer: Producer, topic: str, record: InputRecord, partition: int | None) -> Delivery:
    while True:
        try:
            return producer.send(
                topic,
                record.key,
                record.value,
                partition=partition if record.partition is None else record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers or None,
            )
        except BufferFullError:
            await producer.ready()
