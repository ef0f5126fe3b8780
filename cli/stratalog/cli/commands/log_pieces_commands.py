"""`stratalog log segments` and `log slices`: the pieces of partitions on the local disk and in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, partitions_option, server_option
from stratalog.cli.output import print_json, print_table, utc_time, value_document

if TYPE_CHECKING:
    from stratalog.client import values
    from stratalog.client.client import Client

_Piece = TypeVar("_Piece", bound="values.Segment | values.Slice | values.ProducerState")


async def pieces_of(
    client: Client,
    topic: str,
    partitions: Sequence[int],
    list_of: Callable[[str, int], Awaitable[list[_Piece]]],
) -> dict[int, list[_Piece]]:
    """The lists of the partitions, or of all partitions of the topic."""
    numbers = sorted(set(partitions)) or [one.partition for one in await client.partitions(topic)]
    return {number: await list_of(topic, number) for number in numbers}


def print_pieces_json(pieces: Mapping[int, Sequence[_Piece]]) -> None:
    """Print one JSON array, in which each object has the number of its partition."""
    print_json(
        [{"partition": number, **value_document(one)} for number, many in pieces.items() for one in many]
    )


@click.command()
@click.argument("topic")
@partitions_option
@json_option
@server_option
def segments(topic: str, partitions: tuple[int, ...], as_json: bool, server: str) -> None:
    """List the local segments of the partitions of TOPIC.

    The active segment takes the next record. A dash is a time that no record has.

    \b
    Example: stratalog log segments orders --partition 0
    """
    found = with_client(
        server, lambda client: pieces_of(client, topic, partitions, client.admin.list_segments)
    )
    if as_json:
        print_pieces_json(found)
        return
    print_table(
        ("PARTITION", "BASE", "END", "SIZE", "NEWEST", "STATE"),
        [
            (
                number,
                one.base_offset,
                one.end_offset,
                ByteSize(one.size_bytes),
                utc_time(one.max_timestamp_ms),
                "active" if one.active else "closed",
            )
            for number, many in found.items()
            for one in many
        ],
    )


@click.command()
@click.argument("topic")
@partitions_option
@json_option
@server_option
def slices(topic: str, partitions: tuple[int, ...], as_json: bool, server: str) -> None:
    """List the slices of the partitions of TOPIC in the store.

    A slice is the part of an object that has the records of one partition. One without an object stands for
    records that never reached the store and are lost, with the reason.

    \b
    Example: stratalog log slices orders --partition 0
    """
    found = with_client(server, lambda client: pieces_of(client, topic, partitions, client.admin.list_slices))
    if as_json:
        print_pieces_json(found)
        return
    print_table(
        ("PARTITION", "BASE", "END", "SIZE", "RECORDS", "NEWEST", "OBJECT"),
        [
            (
                number,
                one.base_offset,
                one.end_offset,
                ByteSize(one.size_bytes),
                one.record_count,
                utc_time(one.max_timestamp_ms),
                f"none: {one.gap_reason}" if one.gap_reason else one.object_name,
            )
            for number, many in found.items()
            for one in many
        ],
    )
