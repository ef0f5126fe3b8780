"""`stratalog log offsets`: offsets of partitions by name or by time, in both tiers."""

from __future__ import annotations

import click

from stratalog.base.types import TopicPartition
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION
from stratalog.cli.left_out import LeftOut
from stratalog.cli.options import isolation_option, json_option, server_option
from stratalog.cli.output import print_json, print_table, utc_time
from stratalog.cli.positions import POSITION_HELP, parse_time_or_name
from stratalog.client.client import Client
from stratalog.client.consuming.position_finder import PositionFinder
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.position import NamedPosition, Position, TimePosition


@click.command()
@click.argument("topic")
@click.option(
    "--partition", "wanted", type=PARTITION, multiple=True, help="Only this partition; may be repeated."
)
@click.option(
    "--at",
    "position",
    callback=parse_time_or_name,
    default="latest",
    show_default=True,
    metavar="POSITION",
    help="The position to show, in the notation of `consume --from`: " + POSITION_HELP + " Here a number is"
    " such a time, too.",
)
@isolation_option
@json_option
@server_option
def offsets(
    topic: str,
    wanted: tuple[int, ...],
    position: Position,
    isolation: IsolationLevel,
    as_json: bool,
    server: str,
) -> None:
    """Show an offset of each partition of TOPIC, by name or time.

    Also shows the time of the record there. `latest` is the offset of the next record; `latest-tiered` is the
    last offset in the object store. An offset that does not exist is null in JSON, and a dash in the table.
    If a partition cannot be read, standard error names it, and the exit code is 1.

    \b
    Examples:
      stratalog log offsets orders
      stratalog log offsets orders --at 2026-01-01T12:00:00Z
      stratalog log offsets orders --at latest-tiered --partition 0
    """
    left_out = LeftOut()

    async def look_up(client: Client) -> list[tuple[int, int | None, int | None]]:
        partitions = [TopicPartition(topic, number) for number in sorted(set(wanted))]
        partitions = partitions or await client.partitions(topic)
        finder = PositionFinder(client, isolation, left_out.add)
        if isinstance(position, NamedPosition | TimePosition):
            return [
                (answer.partition, _known(answer.offset), _known(answer.timestamp_ms))
                for answer in await finder.answers(partitions, position)
            ]
        found = await finder.offsets(partitions, position)
        return [(one.partition, offset, None) for one, offset in found.items()]

    rows = with_client(server, look_up)
    if as_json:
        print_json([dict(zip(("partition", "offset", "timestamp_ms"), row, strict=True)) for row in rows])
    else:
        print_table(
            ("PARTITION", "OFFSET", "TIMESTAMP", "TIME"),
            [(*row, None if row[2] is None else utc_time(row[2])) for row in rows],
        )
    left_out.require_none()


def _known(number: int) -> int | None:
    """None for the -1 of the wire."""
    return None if number < 0 else number
