"""`stratalog producers`: the producers that partitions know."""

from __future__ import annotations

import click

from stratalog.cli.commands.log_pieces_commands import pieces_of, print_pieces_json
from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, partitions_option, server_option
from stratalog.cli.output import print_table, utc_time


@click.group()
def producers() -> None:
    """Show the producers of partitions."""


@producers.command(name="list")
@click.argument("topic")
@partitions_option
@json_option
@server_option
def list_producers(topic: str, partitions: tuple[int, ...], as_json: bool, server: str) -> None:
    """List the idempotent and transactional producers of TOPIC.

    LAST SEQUENCE and LAST OFFSET are those of the producer's last record. OPEN SINCE is the first offset of
    its open transaction, which holds readers of committed records back. A dash is a number that does not
    exist, and so is -1 in JSON.

    \b
    Example: stratalog producers list orders --partition 0
    """
    found = with_client(
        server, lambda client: pieces_of(client, topic, partitions, client.admin.list_producers)
    )
    if as_json:
        print_pieces_json(found)
        return
    print_table(
        ("PARTITION", "PRODUCER", "EPOCH", "LAST SEQUENCE", "LAST OFFSET", "LAST TIME", "OPEN SINCE"),
        [
            (
                number,
                one.producer_id,
                one.producer_epoch,
                _known(one.last_sequence),
                _known(one.last_offset),
                utc_time(one.last_timestamp_ms),
                _known(one.current_txn_first_offset),
            )
            for number, many in found.items()
            for one in many
        ],
    )


def _known(number: int) -> int | None:
    """None for the -1 of the wire."""
    return None if number < 0 else number
