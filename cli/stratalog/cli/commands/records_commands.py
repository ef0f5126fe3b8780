"""`stratalog records`: delete records from the start of a partition."""

from __future__ import annotations

import click

from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import OFFSET_OR_END, PARTITION
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import print_json


@click.group()
def records() -> None:
    """Delete records from the start of a partition."""


@records.command()
@click.argument("topic")
@click.option("--partition", type=PARTITION, required=True)
@click.option(
    "--before",
    type=OFFSET_OR_END,
    required=True,
    metavar="OFFSET",
    help="Delete records below this offset; -1 deletes all.",
)
@json_option
@server_option
def delete(topic: str, partition: int, before: int, as_json: bool, server: str) -> None:
    """Move the log start of a partition forward, in every tier."""
    log_start_offset = with_client(
        server, lambda client: client.admin.delete_records(topic, partition, before)
    )
    if as_json:
        print_json({"topic": topic, "partition": partition, "log_start_offset": log_start_offset})
    else:
        click.echo(f"{topic}-{partition} starts at {log_start_offset}")
