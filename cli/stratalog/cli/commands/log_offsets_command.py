"""`stratalog log offsets`: offsets of partitions by name or by time, in both tiers."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stratalog.base.types import TopicPartition
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION, TIMESTAMP_MS
from stratalog.cli.left_out import LeftOut
from stratalog.cli.options import isolation_option, json_option, server_option
from stratalog.cli.output import print_json, print_table, utc_time
from stratalog.client.client import Client
from stratalog.client.isolation_level import IsolationLevel
from stratalog.v1 import log_pb2

_SPECS = {
    "earliest": log_pb2.OFFSET_SPEC_EARLIEST,
    "latest": log_pb2.OFFSET_SPEC_LATEST,
    "earliest-local": log_pb2.OFFSET_SPEC_EARLIEST_LOCAL,
    "latest-tiered": log_pb2.OFFSET_SPEC_LATEST_TIERED,
    "earliest-pending-upload": log_pb2.OFFSET_SPEC_EARLIEST_PENDING_UPLOAD,
    "compacted-upto": log_pb2.OFFSET_SPEC_COMPACTED_UPTO,
    "max-timestamp": log_pb2.OFFSET_SPEC_MAX_TIMESTAMP,
}
_Place = tuple[log_pb2.OffsetSpec.ValueType | None, int | None]
"""A name or a time, as a query has it."""


def _parse_place(context: click.Context, parameter: click.Parameter, text: str) -> _Place:
    if text in _SPECS:
        return _SPECS[text], None
    if text.isdecimal():
        return None, int(TIMESTAMP_MS(text, parameter, context))
    raise click.BadParameter(f"use one of {', '.join(_SPECS)}, or a time in milliseconds")


@click.command()
@click.argument("topic")
@click.option(
    "--partition", "wanted", type=PARTITION, multiple=True, help="Only this partition; may be repeated."
)
@click.option(
    "--at",
    "place",
    callback=_parse_place,
    default="latest",
    show_default=True,
    metavar="NAME|MILLIS",
    help=f"The offset to show: {', '.join(_SPECS)}, or that of the first record with this time, in"
    " milliseconds since 1970, or a later one.",
)
@isolation_option
@json_option
@server_option
def offsets(
    topic: str, wanted: tuple[int, ...], place: _Place, isolation: IsolationLevel, as_json: bool, server: str
) -> None:
    """Show an offset of each partition of TOPIC, by name or time.

    Also shows the time of the record there. `latest` is the offset of the next record; `latest-tiered` is the
    last offset in the object store. An offset that does not exist is null in JSON, and a dash in the table.
    If a partition cannot be read, standard error names it, and the exit code is 1.
    """
    spec, timestamp_ms = place
    left_out = LeftOut()

    async def look_up(client: Client) -> list[log_pb2.OffsetAnswer]:
        partitions: Sequence[TopicPartition] = [
            TopicPartition(topic, number) for number in sorted(set(wanted))
        ]
        queries = [(one, spec, timestamp_ms) for one in partitions or await client.partitions(topic)]
        return await left_out.answers(client, queries, isolation)

    rows = [
        (answer.partition, _known(answer.offset), _known(answer.timestamp_ms))
        for answer in with_client(server, look_up)
    ]
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
