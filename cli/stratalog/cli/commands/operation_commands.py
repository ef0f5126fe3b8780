"""`stratalog operation`: the long work of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.long_work import follow, operation_document
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import print_json, print_table, utc_time
from stratalog.client import values

if TYPE_CHECKING:
    from stratalog.client.client import Client

_KINDS = ("upload", "compaction", "retention", "verification", "collection", "move")
_STATES = ("running", "succeeded", "failed", "cancelled")


@click.group()
def operation() -> None:
    """Show, watch and cancel the long work of a server.

    Uploads, compactions, retention, verification, collection and moves are operations. The server remembers
    the newest, until it is restarted.
    """


@operation.command(name="list")
@click.option("--kind", "kinds", type=click.Choice(_KINDS), multiple=True, help="May be repeated.")
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="May be repeated.")
@json_option
@server_option
def list_(kinds: tuple[str, ...], states: tuple[str, ...], as_json: bool, server: str) -> None:
    """List operations, the newest first.

    \b
    Examples:
      stratalog operation list
      stratalog operation list --kind upload --state running
    """
    wanted_kinds = [values.OperationKind(kind) for kind in kinds]
    wanted_states = [values.OperationState(state) for state in states]
    found = with_client(server, lambda client: client.operations.list(wanted_kinds, wanted_states))
    if as_json:
        print_json([operation_document(one) for one in found])
        return
    print_table(
        ("ID", "KIND", "STATE", "TOPICS", "STARTED", "DONE", "SIZE", "PHASE"),
        [
            (
                one.operation_id,
                one.kind,
                one.state,
                ",".join(one.topics) or None,
                utc_time(one.start_time_ms),
                _share(one.progress.done_count, one.progress.total_count),
                str(ByteSize(one.progress.done_bytes)),
                one.progress.phase or None,
            )
            for one in found
        ],
    )


@operation.command()
@click.argument("operation_id", metavar="ID")
@json_option
@server_option
def show(operation_id: str, as_json: bool, server: str) -> None:
    """Show an operation as it is now.

    \b
    Example: stratalog operation show 0a9d6313-d4c4-4148-b3a6-ed203eb844a2
    """
    _print(with_client(server, lambda client: client.operations.get(operation_id)), as_json=as_json)


@operation.command()
@click.argument("operation_id", metavar="ID")
@json_option
@server_option
def watch(operation_id: str, as_json: bool, server: str) -> None:
    """Follow an operation to its end, and show it then.

    The exit code is 1 if it failed or was cancelled. Ctrl-C leaves it running.

    \b
    Example: stratalog operation watch 0a9d6313-d4c4-4148-b3a6-ed203eb844a2
    """
    # Not above: `--help` needs no client.
    from stratalog.client.operations import require_success

    async def watch_(client: Client) -> values.Operation:
        return await follow(client, await client.operations.get(operation_id))

    ended = with_client(server, watch_)
    _print(ended, as_json=as_json)
    require_success(ended)


@operation.command()
@click.argument("operation_id", metavar="ID")
@json_option
@server_option
def cancel(operation_id: str, as_json: bool, server: str) -> None:
    """Ask an operation to end.

    It ends between two steps, and what it has done stays. It may be complete by then.

    \b
    Example: stratalog operation cancel 0a9d6313-d4c4-4148-b3a6-ed203eb844a2
    """
    asked = with_client(server, lambda client: client.operations.cancel(operation_id))
    if as_json:
        print_json(operation_document(asked))
    elif asked.state is values.OperationState.RUNNING:
        click.echo(f"operation {operation_id} was asked to end")
    else:
        click.echo(f"operation {operation_id} has ended: {asked.state}")


def _print(found: values.Operation, *, as_json: bool) -> None:
    if as_json:
        print_json(operation_document(found))
        return
    progress = found.progress
    rows = [
        ("id", found.operation_id),
        ("kind", found.kind),
        ("state", found.state),
        ("topics", ",".join(found.topics) or None),
        ("started", utc_time(found.start_time_ms)),
        ("ended", utc_time(found.end_time_ms)),
        ("phase", progress.phase or None),
        ("done", _share(progress.done_count, progress.total_count)),
        ("size", str(ByteSize(progress.done_bytes))),
        ("size of all", str(ByteSize(progress.total_bytes)) if progress.total_bytes else None),
        ("asked to end", "yes" if found.cancel_requested else "no"),
        ("error", str(found.error) if found.error is not None else None),
    ]
    print_table(("WHAT", "VALUE"), rows)


def _share(done_count: int, total_count: int) -> str:
    return f"{done_count:,} of {total_count:,}" if total_count else f"{done_count:,}"
