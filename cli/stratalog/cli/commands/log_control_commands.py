"""`stratalog log roll` and `log flush`: close active segments, and make records durable, now."""

from __future__ import annotations

import click

from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, partitions_option, server_option
from stratalog.cli.output import print_json
from stratalog.cli.partition_failures import raise_failures


@click.command()
@click.argument("topic")
@partitions_option
@json_option
@server_option
def roll(topic: str, partitions: tuple[int, ...], as_json: bool, server: str) -> None:
    """Close the active segments of the partitions of TOPIC.

    The next upload takes closed segments, and retention and compaction see them. An empty active segment
    stays.

    \b
    Example: stratalog log roll orders
    """
    results = with_client(server, lambda client: client.admin.roll(topic, partitions))
    done = {one.partition: one.active_base_offset for one in results if one.error is None}
    if as_json:
        print_json([{"partition": number, "active_base_offset": offset} for number, offset in done.items()])
    else:
        for number, offset in done.items():
            click.echo(f"the active segment of {topic}-{number} begins at {offset}")
    raise_failures(topic, results)


@click.command()
@click.argument("topic")
@partitions_option
@json_option
@server_option
def flush(topic: str, partitions: tuple[int, ...], as_json: bool, server: str) -> None:
    """Make all records of TOPIC durable on the server's disk.

    \b
    Example: stratalog log flush orders --partition 0
    """
    results = with_client(server, lambda client: client.admin.flush(topic, partitions))
    done = {one.partition: one.recovery_point for one in results if one.error is None}
    if as_json:
        print_json([{"partition": number, "recovery_point": offset} for number, offset in done.items()])
    else:
        for number, offset in done.items():
            click.echo(f"{topic}-{number} is on the disk up to {offset}")
    raise_failures(topic, results)
