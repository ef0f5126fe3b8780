"""`stratalog records`: delete records from the start of partitions."""

from __future__ import annotations

import click

from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, partitions_option, server_option
from stratalog.cli.output import print_json
from stratalog.cli.partition_failures import raise_failures
from stratalog.cli.positions import POSITION_HELP, parse_position
from stratalog.client import values
from stratalog.client.client import Client
from stratalog.client.position import Position


@click.group()
def records() -> None:
    """Delete records from the start of partitions."""


@records.command()
@click.argument("topic")
@click.option(
    "--before",
    "position",
    required=True,
    callback=parse_position,
    metavar="POSITION",
    help="Delete the records before this position: " + POSITION_HELP,
)
@partitions_option
@json_option
@server_option
def delete(topic: str, position: Position, partitions: tuple[int, ...], as_json: bool, server: str) -> None:
    """Move the log starts of partitions of TOPIC forward.

    The records before --before are gone in every tier, for good; log starts never move back. `latest` deletes
    all records, and so does a time if all of them are older. An offset behind the end of a partition, or a
    name that no offset has there, is an error, and nothing is deleted then.

    \b
    Example: stratalog records delete orders --before 2024-01-01
    """

    async def run(client: Client) -> list[values.DeletedRecords]:
        numbers = sorted(set(partitions)) or [one.partition for one in await client.partitions(topic)]
        return await client.admin.delete_records_of(topic, dict.fromkeys(numbers, position))

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
