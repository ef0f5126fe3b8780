"""`stratalog log`: offsets, segments and slices of partitions, and the contents of log files."""

from __future__ import annotations

import click

from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION
from stratalog.cli.lazy_group import LazyGroup
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import Cell, message_document, print_json, print_offline, print_table
from stratalog.v1 import admin_pb2

_COLUMNS = (
    ("PARTITION", "partition"),
    ("START", "log_start_offset"),
    ("LOCAL START", "local_log_start_offset"),
    ("TIERED END", "tiered_end_offset"),
    ("COMPACTED", "compacted_upto"),
    ("HIGH WATERMARK", "high_watermark"),
    ("END", "log_end_offset"),
    ("RECOVERY", "recovery_point"),
    ("LOCAL BYTES", "local_size_bytes"),
    ("TIERED BYTES", "tiered_size_bytes"),
)
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
    """Show the offsets and sizes of the partitions of TOPIC. Offsets called END are exclusive."""
    logs = with_client(server, lambda client: client.admin.describe_log(topic, partitions))
    if as_json:
        print_json([message_document(entry) for entry in logs])
        return
    rows = [[_number(entry, field) for _, field in _COLUMNS] for entry in logs]
    print_table([title for title, _ in _COLUMNS], rows)
    print_offline(entry.offline for entry in logs if entry.HasField("offline"))
    if segments:
        _print_pieces(logs)


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
            (number, "slice", it.base_offset, it.end_offset, it.size_bytes, it.object_name)
            for it in entry.slices
        ]
        rows += [
            (number, "segment", it.base_offset, it.end_offset, it.size_bytes, "active" if it.active else "")
            for it in entry.segments
        ]
    click.echo()
    print_table(("PARTITION", "KIND", "BASE", "END", "BYTES", "WHERE"), rows)
