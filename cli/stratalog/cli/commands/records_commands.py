"""`stratalog records`: delete records from the start of partitions."""

from __future__ import annotations

import click

from stratalog.base.types import TopicPartition
from stratalog.cli.connection import with_client
from stratalog.cli.left_out import LeftOut
from stratalog.cli.options import json_option, partitions_option, server_option
from stratalog.cli.output import print_json
from stratalog.cli.partition_failures import raise_failures
from stratalog.cli.positions import parse_position
from stratalog.client import values
from stratalog.client.client import Client
from stratalog.client.consuming.position import SPECS, NamedPosition, Position
from stratalog.client.consuming.position_finder import PositionFinder
from stratalog.client.isolation_level import IsolationLevel

HIGH_WATERMARK = -1
"""The end of the visible records on the wire, as in Kafka."""
_LATEST = NamedPosition(SPECS["latest"])


def _parse_before(context: click.Context, parameter: click.Parameter, text: str) -> Position:
    """Parse a position. Of the names only `latest` is one: the others may lie nowhere, which would delete
    all."""
    position = parse_position(context, parameter, text)
    assert position is not None, "the option is required"
    if isinstance(position, NamedPosition) and position != _LATEST:
        raise click.BadParameter(f"{text!r} is no end of a deletion; use latest, an offset, -N or a time")
    return position


@click.group()
def records() -> None:
    """Delete records from the start of partitions."""


@records.command()
@click.argument("topic")
@click.option(
    "--before",
    "position",
    required=True,
    callback=_parse_before,
    metavar="POSITION",
    help="Delete the records before this: latest (all), an offset, -N for N offsets before the end of each"
    " partition, a time in ISO 8601 (UTC without a zone), or @MILLIS since 1970.",
)
@partitions_option
@json_option
@server_option
def delete(topic: str, position: Position, partitions: tuple[int, ...], as_json: bool, server: str) -> None:
    """Move the log starts of partitions of TOPIC forward.

    The records before --before are gone in every tier, for good; log starts never move back. An offset behind
    the end of a partition is an error, and nothing is deleted then.

    \b
    Example: stratalog records delete orders --before 2024-01-01
    """
    left_out = LeftOut()

    async def run(client: Client) -> list[values.DeletedRecords]:
        chosen = [TopicPartition(topic, number) for number in sorted(set(partitions))]
        chosen = chosen or await client.partitions(topic)
        offsets = dict.fromkeys(chosen, HIGH_WATERMARK)
        if position != _LATEST:
            finder = PositionFinder(client, IsolationLevel.READ_UNCOMMITTED, left_out.add)
            offsets = await finder.offsets(chosen, position)
        if not offsets:
            return []
        return await client.admin.delete_records_of(
            topic, {one.partition: offset for one, offset in offsets.items()}
        )

    results = with_client(server, run)
    deleted = [result for result in results if result.error is None]
    if as_json:
        print_json(
            [
                {"topic": topic, "partition": one.partition, "log_start_offset": one.log_start_offset}
                for one in deleted
            ]
        )
    else:
        for one in deleted:
            click.echo(f"{topic}-{one.partition} starts at {one.log_start_offset}")
    raise_failures(topic, results)
    left_out.require_none()
