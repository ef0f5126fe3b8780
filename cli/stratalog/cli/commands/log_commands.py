"""`stratalog log`: offsets, segments and slices of partitions, and the contents of log files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.lazy_group import LazyGroup
from stratalog.cli.options import json_option, partitions_option, server_option
from stratalog.cli.output import Cell, print_json, print_offline, print_table, value_document

if TYPE_CHECKING:
    from stratalog.client import values

_COLUMNS = (
    ("PARTITION", "partition"),
    ("START", "log_start_offset"),
    ("LOCAL START", "local_log_start_offset"),
    ("TIERED END", "tiered_end_offset"),
    ("COMPACTED", "compacted_upto"),
    ("HIGH WATERMARK", "high_watermark"),
    ("END", "log_end_offset"),
    ("RECOVERY", "recovery_point"),
    ("LAG", "pending_upload_record_count"),
    ("LAG SIZE", "pending_upload_bytes"),
    ("LOCAL", "local_size_bytes"),
    ("TIERED", "tiered_size_bytes"),
    ("SEGMENTS", "segment_count"),
    ("SLICES", "slice_count"),
)
_COMMANDS = {
    "dump": (
        "log_dump.dump_command:dump",
        "Print the files of a log or of a store; needs no server.",
    ),
    "offsets": (
        "commands.log_offsets_command:offsets",
        "Show an offset of each partition of TOPIC, by name or time.",
    ),
    "segments": (
        "commands.log_pieces_commands:segments",
        "List the local segments of the partitions of TOPIC.",
    ),
    "slices": (
        "commands.log_pieces_commands:slices",
        "List the slices of the partitions of TOPIC in the store.",
    ),
    "roll": (
        "commands.log_control_commands:roll",
        "Close the active segments of the partitions of TOPIC.",
    ),
    "flush": (
        "commands.log_control_commands:flush",
        "Make all records of TOPIC durable on the server's disk.",
    ),
}


@click.group(cls=LazyGroup, commands_by_name=_COMMANDS)
def log() -> None:
    """Show partitions and their files, and roll and flush them."""


@log.command()
@click.argument("topic")
@partitions_option
@json_option
@server_option
def describe(topic: str, partitions: tuple[int, ...], as_json: bool, server: str) -> None:
    """Show the offsets and sizes of the partitions of TOPIC.

    \b
    START           the first record that readers see, in either tier
    LOCAL START     the first record on the local disk
    TIERED END      the first record that is not in the object store
    COMPACTED       below it the object store (for a topic that is not tiered,
                    the local log) has one record of each key; for readers of
                    both tiers, `log offsets --at compacted-upto` is the end
    HIGH WATERMARK  consumers see the records below it
    END             where the next record goes
    RECOVERY        records below it are on the disk for certain
    LAG, LAG SIZE   what is not in the object store yet: offsets up to END, and
                    the size of their segments; dashes if the topic is not tiered
    LOCAL, TIERED   sizes on the local disk and in the object store
    SEGMENTS        files on the local disk; `log segments` lists them
    SLICES          parts of objects in the store; `log slices` lists them

    A dash is also an unknown number, because the partition is offline. JSON has -1 for both.

    \b
    Example: stratalog log describe orders
    """
    logs = with_client(server, lambda client: client.admin.describe_log(topic, partitions))
    if as_json:
        print_json([value_document(entry) for entry in logs])
        return
    rows = [[_cell(entry, field) for _, field in _COLUMNS] for entry in logs]
    print_table([title for title, _ in _COLUMNS], rows)
    print_offline(entry.offline for entry in logs if entry.offline is not None)


def _cell(entry: values.PartitionLog, field: str) -> Cell:
    """The number in the field; None for the -1 of the wire."""
    value = getattr(entry, field)
    assert isinstance(value, int)
    if value < 0:
        return None
    return ByteSize(value) if field.endswith("_bytes") else value
