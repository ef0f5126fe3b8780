"""`stratalog produce`: records from lines of text or JSON."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from io import BufferedReader, BytesIO
from typing import BinaryIO

import click

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.base.types import Durability
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION
from stratalog.cli.options import json_option, require_unicode, server_option
from stratalog.cli.output import counted, print_json
from stratalog.cli.record_json import InputRecord, parse_line
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.producer import BatchOutcome
from stratalog.client.producer_settings import ProducerSettings
from stratalog.record.codecs.compression import Codec

CHUNK_BYTES = 1 << 18
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
    help="When records count as stored: in the page cache, fsynced, or in the object store (not supported"
    " yet). Default: the topic's min.durability.",
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
    headers: Headers,
    partition: int | None,
    durability: str | None,
    compression: str,
    as_json: bool,
    server: str,
) -> None:
    """Append the lines of FILE, or of standard input, to TOPIC."""
    if (key_separator, key) != (None, None) and line_format != "text":
        raise click.UsageError(
            "--key and --key-separator go with --format text; JSON lines have a key of their own"
        )
    if key_separator is not None and key is not None:
        raise click.UsageError("give --key or --key-separator, not both")
    parse = parse_line if line_format == "json" else _text_parser(key_separator, key)
    settings = ProducerSettings(
        durability=Durability[durability.upper()] if durability else None, codec=Codec[compression.upper()]
    )
    tally = _Tally()
    try:
        with_client(
            server,
            lambda client: _produce(
                client, topic, _with_headers(_records(file, parse), headers), partition, settings, tally
            ),
        )
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

    def add(self, outcome: BatchOutcome) -> None:
        """Count acknowledged lines, and remember the failure of the first other line."""
        if outcome.error is None:
            self.by_partition[outcome.topic_partition.partition] += outcome.record_count
        elif self.failure is None or outcome.first_tag < self._first_failed_line:
            self.failure, self._first_failed_line = outcome.error, outcome.first_tag

    def what_is_stored(self) -> str:
        """Text for a failure's message. Lines after a failed one may be stored, in other partitions."""
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


async def _records(
    file: BinaryIO, parse: Callable[[str], InputRecord]
) -> AsyncIterator[tuple[int, InputRecord]]:
    """Line numbers and records as they arrive: what a pipe or a terminal has at hand is sent without waiting
    for more. A bad line is raised when it is its turn.
    """
    assert isinstance(file, BufferedReader | BytesIO)
    number, rest = 0, b""
    while chunk := await asyncio.to_thread(file.read1, CHUNK_BYTES):
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
    client: Client,
    topic: str,
    records: AsyncIterator[tuple[int, InputRecord]],
    partition: int | None,
    settings: ProducerSettings,
    tally: _Tally,
) -> None:
    # Report a wrong name of the topic now, before a person types the first line.
    await client.partitions(topic)
    producer = client.producer(settings, on_outcome=tally.add)
    try:
        async for number, record in records:
            await producer.post(
                topic,
                record.key,
                record.value,
                partition=partition if record.partition is None else record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers,
                tag=number,
            )
            if tally.failure is not None:
                break
    finally:
        # What was read before a bad line is stored and counted, so that one knows where to go on.
        with suppress(LogStoreError):
            await producer.flush()
        if tally.failure is not None:
            raise tally.failure
