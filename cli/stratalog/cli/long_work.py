"""Commands that start long work: they follow its operation to the end, or leave it to the server.

A terminal shows the progress on standard error. Ctrl-C leaves the operation running and says how to cancel
it. With `--no-wait` the command prints the operation's id and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import enum_word, message_document, print_json
from stratalog.v1 import operation_pb2

if TYPE_CHECKING:
    from stratalog.client.client import Client

Show = Callable[[operation_pb2.Operation], None]
Start = Callable[["Client"], Awaitable[operation_pb2.Operation]]


no_wait_option: Callable[[Any], Any] = click.option(
    "--no-wait", is_flag=True, help="Print the id of the operation, and leave it to the server."
)


def long_work_options(command: Any) -> Any:
    """Adds `--no-wait`, `--json` and `--server`."""
    return no_wait_option(json_option(server_option(command)))


def run_long_work(
    server: str, start: Start, *, no_wait: bool, as_json: bool
) -> operation_pb2.Operation | None:
    """Start the operation and follow it to its end; returns it if it succeeded. None with `no_wait`, once its
    id is printed. Raises LogStoreError for one that failed or was cancelled.
    """
    # Not above: `--help` of a command needs no client.
    from stratalog.client.operations import require_success

    started: list[str] = []

    async def run(client: Client) -> operation_pb2.Operation:
        operation = await start(client)
        started.append(operation.operation_id)
        return operation if no_wait else await follow(client, operation.operation_id)

    try:
        operation = with_client(server, run)
    except KeyboardInterrupt:
        if started:
            click.echo(
                f"operation {started[0]} goes on; `stratalog operation watch {started[0]}` shows it, and"
                f" `stratalog operation cancel {started[0]}` ends it",
                err=True,
            )
        raise
    if not no_wait:
        require_success(operation)
        return operation
    if as_json:
        print_json(operation_document(operation))
    else:
        click.echo(operation.operation_id)
    return None


async def follow(client: Client, operation_id: str) -> operation_pb2.Operation:
    """Show the operation until it has ended; returns it then."""
    operation = operation_pb2.Operation()
    with _progress() as show:
        async with aclosing(client.operations.watch(operation_id)) as watched:
            async for operation in watched:
                show(operation)
    return operation


def kind_word(operation: operation_pb2.Operation) -> str:
    """The kind as the command line has it."""
    return enum_word(operation_pb2.OperationKind.DESCRIPTOR, operation.kind)


def state_word(operation: operation_pb2.Operation) -> str:
    """The state as the command line has it."""
    return enum_word(operation_pb2.OperationState.DESCRIPTOR, operation.state)


def operation_document(operation: operation_pb2.Operation) -> dict[str, object]:
    """The operation as a JSON object; its error with the code and the fields."""
    without_error = operation_pb2.Operation()
    without_error.CopyFrom(operation)
    without_error.ClearField("error")
    document = message_document(without_error)
    if operation.HasField("error"):
        from stratalog.client.errors import error_of_status

        error = error_of_status(operation.error)
        document["error"] = {
            "code": error.code,
            "message": error.message,
            "fields": {name: str(value) for name, value in error.fields.items()},
        }
    return document


@contextmanager
def _progress() -> Generator[Show]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    # Only here: a command in a script does without it.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(operation: operation_pb2.Operation) -> None:
            progress = operation.progress
            counts = f" {progress.done_count}/{progress.total_count}" if progress.total_count else ""
            bar.update(
                task,
                description=f"{kind_word(operation)}: {progress.phase}{counts}",
                completed=progress.done_bytes,
                total=progress.total_bytes or None,
            )

        yield show
