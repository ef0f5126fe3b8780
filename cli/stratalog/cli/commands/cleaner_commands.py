"""`stratalog cleaner`: state of the cleaner of local logs, and partitions that it cannot clean."""

from __future__ import annotations

import click

from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import message_document, print_json, print_table, utc_time


@click.group()
def cleaner() -> None:
    """Show the cleaner of local logs, which cleans compacted topics that are not tiered."""


@cleaner.command()
@json_option
@server_option
def status(as_json: bool, server: str) -> None:
    """Show what the cleaner has done since the server started; when the first log is due for the tombstones
    that a clean has kept (a dash, or null in JSON, where none is); and which partitions it cannot clean, why,
    and when it tries them again.
    """
    response = with_client(server, lambda client: client.admin.cleaner_status())
    document = message_document(response)
    # The wire says 0 where no log is.
    document["next_horizon_ms"] = response.next_horizon_ms or None
    if as_json:
        print_json(document)
        return
    del document["next_horizon_ms"], document["uncleanable"]
    rows = [(name.replace("_", " "), str(value)) for name, value in document.items()]
    print_table(("WHAT", "VALUE"), [*rows, ("next horizon", _horizon(response.next_horizon_ms))])
    if response.uncleanable:
        print_table(
            ("UNCLEANABLE", "KIND", "FAILURES", "SINCE", "NEXT TRY", "DIRTY BYTES", "ALARM", "REASON"),
            [
                (
                    f"{failed.topic}-{failed.partition}",
                    failed.kind,
                    failed.failures,
                    utc_time(failed.since_ms),
                    utc_time(failed.next_try_ms),
                    failed.dirty_bytes,
                    "yes" if failed.alarm else "no",
                    failed.reason,
                )
                for failed in response.uncleanable
            ],
        )


@cleaner.command()
@click.argument("topic")
@click.option("--partition", type=PARTITION, required=True)
@server_option
def reset(topic: str, partition: int, server: str) -> None:
    """Retry cleaning of a failed partition of TOPIC now."""
    had_failed = with_client(server, lambda client: client.admin.reset_cleaner(topic, partition))
    if had_failed:
        click.echo(f"cleaning of {topic}-{partition} is tried again")
    else:
        click.echo(f"the cleaning of {topic}-{partition} had not failed")


def _horizon(next_horizon_ms: int) -> str | None:
    return (utc_time(next_horizon_ms) or str(next_horizon_ms)) if next_horizon_ms else None
