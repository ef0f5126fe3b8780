"""`stratalog log-dirs`: the directories of local logs, and moves between them."""

from __future__ import annotations

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION
from stratalog.cli.long_work import long_work_options, run_long_work
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import print_json, print_rest, print_table, value_document
from stratalog.client import values


@click.group(name="log-dirs")
def log_dirs() -> None:
    """Show the directories of local logs, and move partitions."""


@log_dirs.command()
@json_option
@server_option
def describe(as_json: bool, server: str) -> None:
    """Show the log directories, and the last move of partitions.

    \b
    Example: stratalog log-dirs describe
    """
    response = with_client(server, lambda client: client.admin.describe_log_dirs())
    if as_json:
        print_json(value_document(response))
        return
    print_table(
        ("PATH", "STATE", "PARTITIONS", "SIZE", "FREE", "TO OPEN", "ID"),
        [
            (
                found.path,
                found.state,
                found.partition_count,
                ByteSize(found.size_bytes),
                ByteSize(found.free_bytes) if found.free_bytes >= 0 else None,
                found.remaining_log_count,
                found.directory_id or None,
            )
            for found in response.log_dirs
        ],
    )
    for found in response.log_dirs:
        if found.reason:
            click.echo(f"{found.path} is {found.state}: {found.reason}")
        if found.missing_free_bytes:
            click.echo(
                f"{found.path} is below its floor of free space, so appends to its partitions are refused by"
                " their topics' backlog policy; free space, or see to the uploads:"
                f" {ByteSize(found.missing_free_bytes)} are missing"
            )
        for path in found.set_aside_paths:
            click.echo(f"{path} belongs to no topic, or was set aside: look at it, then move or remove it")
        print_rest(len(found.set_aside_paths), found.set_aside_count, "path")
    if response.moves:
        print_table(
            ("MOVE", "TO", "STATE", "COPIED", "REMAINING", "OPERATION", "REASON"),
            [
                (
                    f"{move.topic}-{move.partition}",
                    move.target_path,
                    move.state,
                    ByteSize(move.copied_bytes),
                    ByteSize(move.remaining_bytes),
                    move.operation_id or None,
                    move.reason or None,
                )
                for move in response.moves
            ],
        )


@log_dirs.command()
@click.argument("path")
@server_option
def cordon(path: str, server: str) -> None:
    """Keep new partitions out of the log directory PATH. Its partitions stay.

    \b
    Example: stratalog log-dirs cordon /disk2
    """
    cordoned = with_client(server, lambda client: client.admin.cordon_log_dir(path))
    click.echo(f"{cordoned} takes no new partitions")


@log_dirs.command()
@click.argument("path")
@server_option
def uncordon(path: str, server: str) -> None:
    """Let new partitions go to the log directory PATH again.

    \b
    Example: stratalog log-dirs uncordon /disk2
    """
    uncordoned = with_client(server, lambda client: client.admin.cordon_log_dir(path, is_cordoned=False))
    click.echo(f"{uncordoned} takes new partitions")


@log_dirs.command()
@click.argument("directory_id", metavar="ID")
@server_option
def forget(directory_id: str, server: str) -> None:
    """Give up the missing log directory ID for good.

    Partitions that may be in it stay offline until the server has it again. Once it is forgotten, those that
    are in no other directory begin anew at the next start: tiered ones where their tiered data ends, others
    empty.

    \b
    Example: stratalog log-dirs forget 46547c5d-2ae2-49a5-a6f4-ecee1421e8c7
    """
    path = with_client(server, lambda client: client.admin.forget_log_dir(directory_id))
    click.echo(
        f"forgot {directory_id}, which was at {path}; partitions that are in no other log directory begin"
        " anew when the server is started again: tiered ones where their tiered data ends, others empty"
    )


@log_dirs.command()
@click.argument("topic")
@click.option("--partition", type=PARTITION, required=True)
@click.option("--to", "target_path", required=True, metavar="PATH", help="The log directory to move it to.")
@long_work_options
def move(topic: str, partition: int, target_path: str, no_wait: bool, as_json: bool, server: str) -> None:
    """Move a partition of TOPIC to another log directory.

    The partition stays in use meanwhile. Ctrl-C leaves the move running, and a restarted server resumes it;
    `operation cancel` ends it, with the partition where it was.

    \b
    Example: stratalog log-dirs move orders --partition 0 --to /disk2
    """
    run_long_work(
        server,
        lambda client: client.admin.move_partition(topic, partition, target_path),
        values.MoveResult,
        lambda moved: click.echo(f"{topic}-{partition} has moved to {moved.target_path}"),
        no_wait=no_wait,
        as_json=as_json,
    )
