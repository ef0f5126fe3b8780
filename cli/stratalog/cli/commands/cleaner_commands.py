"""`stratalog cleaner`: state of the cleaner of local logs, and partitions that it cannot clean."""

from __future__ import annotations

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import print_json, print_table, utc_time, value_document


@click.group()
def cleaner() -> None:
    """Show the cleaner of local logs.

    It cleans compacted topics that are not tiered.
    """


@cleaner.command()
@json_option
@server_option
def status(as_json: bool, server: str) -> None:
    """Show the work of the cleaner and its failures.

    The counts begin at the start of the server. "next clean" is the earliest time at which a log is cleaned
    again to drop old tombstones: a dash, or null in JSON, if no log keeps any. The second table shows the
    partitions that cannot be cleaned, the reason, and the time of the next try.

    \b
    Example: stratalog cleaner status
    """
    response = with_client(server, lambda client: client.admin.cleaner_status())
    document = value_document(response)
    # On the wire, -1 stands for none.
    document["next_clean_ms"] = response.next_clean_ms if response.next_clean_ms >= 0 else None
    if as_json:
        print_json(document)
        return
    del document["next_clean_ms"], document["uncleanable_partitions"]
    document["cleaned_bytes"] = ByteSize(response.cleaned_bytes)
    document["reclaimed_bytes"] = ByteSize(response.reclaimed_bytes)
    rows = [(name.replace("_", " "), str(value)) for name, value in document.items()]
    print_table(("WHAT", "VALUE"), [*rows, ("next clean", _next_clean(response.next_clean_ms))])
    if response.uncleanable_partitions:
        print_table(
            ("UNCLEANABLE", "KIND", "FAILURES", "SINCE", "NEXT TRY", "DIRTY", "ALARM", "REASON"),
            [
                (
                    f"{failed.topic}-{failed.partition}",
                    failed.kind,
                    failed.failure_count,
                    utc_time(failed.since_ms),
                    utc_time(failed.next_try_ms),
                    ByteSize(failed.dirty_bytes),
                    "yes" if failed.alarm else "no",
                    failed.reason,
                )
                for failed in response.uncleanable_partitions
            ],
        )


@cleaner.command()
@click.argument("topic")
@click.option("--partition", type=PARTITION, required=True)
@server_option
def reset(topic: str, partition: int, server: str) -> None:
    """Try again now to clean a partition of TOPIC that failed.

    \b
    Example: stratalog cleaner reset orders --partition 0
    """
    had_failed = with_client(server, lambda client: client.admin.reset_cleaner(topic, partition))
    if had_failed:
        click.echo(f"cleaning of {topic}-{partition} is tried again")
    else:
        click.echo(f"the cleaning of {topic}-{partition} had not failed")


def _next_clean(next_clean_ms: int) -> str | None:
    return (utc_time(next_clean_ms) or str(next_clean_ms)) if next_clean_ms >= 0 else None
