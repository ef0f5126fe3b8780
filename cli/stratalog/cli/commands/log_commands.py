"""`stratalog log`: offsets, segments and slices of partitions, and the contents of log files."""

from __future__ import annotations

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION
from stratalog.cli.lazy_group import LazyGroup
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import Cell, message_document, print_json, print_offline, print_table
from stratalog.cli.topic_traits import is_tiered
from stratalog.client.client import Client
from stratalog.v1 import admin_pb2

_OFFSETS = (
    ("PARTITION", "partition"),
    ("START", "log_start_offset"),
    ("LOCAL START", "local_log_start_offset"),
    ("TIERED END", "tiered_end_offset"),
    ("COMPACTED", "compacted_upto"),
    ("HIGH WATERMARK", "high_watermark"),
    ("END", "log_end_offset"),
    ("RECOVERY", "recovery_point"),
)
_SIZES = (("LOCAL", "local_size_bytes"), ("TIERED", "tiered_size_bytes"))
_COMMANDS = {
    "dump": (
        "log_dump.dump_command:dump",
        "Print the files of a log; needs no server.",
    ),
    "offsets": (
        "commands.log_offsets_command:offsets",
        "Show an offset of each partition of TOPIC, by name or time.",
    ),
}


@click.group(cls=LazyGroup, commands_by_name=_COMMANDS)
def log() -> None:
    """Show partitions and their files."""


@log.command()
@click.argument("topic")
@click.option(
    "--partition",
    "partitions",
    type=PARTITION,
    multiple=True,
    help="Only this partition; may be repeated.",
)
@click.option("--segments", is_flag=True, help="Also list local segments and tiered slices.")
@json_option
@server_option
def describe(topic: str, partitions: tuple[int, ...], segments: bool, as_json: bool, server: str) -> None:
    """Show the offsets and sizes of the partitions of TOPIC.

    \b
    START           the first record that readers see, in either tier
    LOCAL START     the first record on the local disk
    TIERED END      the first record that is not in the object store
    COMPACTED       below it the object store has one record for each key
    HIGH WATERMARK  consumers see the records below it
    END             where the next record goes
    RECOVERY        records below it are on the disk for certain
    LAG             records that consumers see and the object store has not;
                    a dash if the topic is not tiered
    LOCAL, TIERED   sizes on the local disk and in the object store

    A dash is also an unknown number, because the partition is offline.
    """
    if as_json:
        logs = with_client(server, lambda client: client.admin.describe_log(topic, partitions))
        print_json([message_document(entry) for entry in logs])
        return
    logs, has_tier = with_client(server, lambda client: _with_tiering(client, topic, partitions))
    rows = [
        [
            *(_number(entry, field) for _, field in _OFFSETS),
            _lag(entry) if has_tier else None,
            *(_size(entry, field) for _, field in _SIZES),
        ]
        for entry in logs
    ]
    print_table([title for title, _ in (*_OFFSETS, ("LAG", ""), *_SIZES)], rows)
    print_offline(entry.offline for entry in logs if entry.HasField("offline"))
    if segments:
        _print_pieces(logs)


async def _with_tiering(
    client: Client, topic: str, partitions: tuple[int, ...]
) -> tuple[list[admin_pb2.PartitionLog], bool]:
    """The logs, and whether the topic is tiered."""
    logs = await client.admin.describe_log(topic, partitions)
    [described] = await client.admin.describe_topics([topic])
    return logs, is_tiered(described)


def _lag(entry: admin_pb2.PartitionLog) -> int | None:
    """Records between the tiered end and the high watermark; None if the partition is offline."""
    high_watermark = _number(entry, "high_watermark")
    return None if high_watermark is None else max(0, high_watermark - entry.tiered_end_offset)


def _size(entry: admin_pb2.PartitionLog, field: str) -> ByteSize | None:
    number = _number(entry, field)
    return None if number is None else ByteSize(number)


def _number(entry: admin_pb2.PartitionLog, field: str) -> int | None:
    """The number in the field; None if it is unknown, because the partition is offline."""
    value = getattr(entry, field)
    assert isinstance(value, int)
    return None if value < 0 and entry.HasField("offline") else value


def _print_pieces(logs: list[admin_pb2.PartitionLog]) -> None:
    rows: list[tuple[Cell, ...]] = []
    for entry in logs:
        number = entry.partition
        rows += [
            (number, "slice", it.base_offset, it.end_offset, ByteSize(it.size_bytes), it.object_name)
            for it in entry.slices
        ]
        rows += [
            (
                number,
                "segment",
                it.base_offset,
                it.end_offset,
                ByteSize(it.size_bytes),
                "active" if it.active else "",
            )
            for it in entry.segments
        ]
    click.echo()
    print_table(("PARTITION", "KIND", "BASE", "END", "SIZE", "WHERE"), rows)
