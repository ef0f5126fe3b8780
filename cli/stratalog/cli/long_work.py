"""Commands that start long work: they follow its operation to the end, or leave it to the server.

A terminal shows the progress on standard error. Ctrl-C leaves the operation running and says how to cancel
it, or ends it where the command says so. With `--no-wait` the command prints the operation's id and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stratalog.base.errors import LogStoreError, NotOwnerError
from stratalog.cli.connection import with_client
from stratalog.cli.error_line import print_error
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import counted, duration, print_json, value_document
from stratalog.client import values

if TYPE_CHECKING:
    from stratalog.client.client import Client

Show = Callable[["values.Operation"], None]
Start = Callable[["Client"], Awaitable["values.Operation"]]
_BAR_WIDTH = 16
"""Characters, so that bytes and times have room beside it in 80."""
_Result = TypeVar("_Result", bound="values.OperationResult")


no_wait_option: Callable[[Any], Any] = click.option(
    "--no-wait", is_flag=True, help="Print the id of the operation, and leave it to the server."
)


def long_work_options(command: Any) -> Any:
    """Adds `--no-wait`, `--json` and `--server`."""
    return no_wait_option(json_option(server_option(command)))


def run_long_work(
    server: str,
    start: Start,
    result_class: type[_Result],
    print_result: Callable[[_Result], None],
    *,
    no_wait: bool,
    as_json: bool,
    document: Callable[[_Result], object] = value_document,
    ends_on_interrupt: bool = False,
) -> _Result | None:
    """Start the operation, follow it to its end, and print its result, in JSON as its `document`. Returns the
    result; None with `no_wait`, once the operation's id is printed. Raises the error of the operation.
    `ends_on_interrupt`: Ctrl-C cancels it, and waits for its end.
    """
    # Not above: `--help` needs no client.
    from stratalog.client.operations import result_of

    operation = _operation(server, start, no_wait=no_wait, ends_on_interrupt=ends_on_interrupt)
    if no_wait:
        if as_json:
            print_json(operation_document(operation))
        else:
            click.echo(operation.operation_id)
        return None
    result = result_of(operation, result_class)
    if as_json:
        print_json(document(result))
    else:
        print_result(result)
    return result


def require_all_done(left_out: Sequence[values.LeftOutShard], failure: LogStoreError | None = None) -> None:
    """Raise NotOwnerError, which names them, if the work left out shards of other servers. A failure that is
    given is raised in its place, behind a line about the shards."""
    error: NotOwnerError | None = None
    if left_out:
        error = NotOwnerError(
            "other servers own shards of the store, which were left out; ask each owner, by --server",
            left_out=", ".join(f"shard {one.shard} of {one.endpoint or 'no server'}" for one in left_out),
        )
    if error is not None and failure is not None:
        print_error(str(error))
    if (raised := failure or error) is not None:
        raise raised


def _operation(server: str, start: Start, *, no_wait: bool, ends_on_interrupt: bool) -> values.Operation:
    """The operation at its end; with `no_wait` as it was started."""
    started: list[str] = []

    async def run(client: Client) -> values.Operation:
        operation = await start(client)
        started.append(operation.operation_id)
        return operation if no_wait else await follow(client, operation)

    try:
        return with_client(server, run)
    except KeyboardInterrupt:
        if started and ends_on_interrupt:
            _end(server, started[0])
        elif started:
            click.echo(
                f"operation {started[0]} goes on; `stratalog operation watch {started[0]}` shows it, and"
                f" `stratalog operation cancel {started[0]}` ends it",
                err=True,
            )
        raise


def _end(server: str, operation_id: str) -> None:
    """Cancel the operation, wait for its end, and say what it was."""

    async def cancel(client: Client) -> values.Operation:
        await client.operations.cancel(operation_id)
        return await client.operations.wait(operation_id)

    click.echo(f"operation {operation_id} ends behind its step; Ctrl-C again does not wait", err=True)
    ended = with_client(server, cancel)
    done = counted(ended.progress.done_count, "step")
    click.echo(f"operation {operation_id} has ended: {ended.state}; {done} of it stay", err=True)


async def follow(client: Client, operation: values.Operation) -> values.Operation:
    """Show the operation until it has ended; returns it then."""
    latest = operation
    with progress_bar() as show:
        async with aclosing(client.operations.watch(operation.operation_id)) as watched:
            async for latest in watched:
                show(latest)
    return latest


def operation_document(operation: values.Operation) -> dict[str, object]:
    """The operation as a JSON object. Its result is under the name of its kind; the other kinds are null."""
    document = value_document(operation)
    result = document.pop("result")
    kinds = [kind for kind in values.OperationKind if kind is not values.OperationKind.UNKNOWN]
    return {**document, **{kind.value: result if kind is operation.kind else None for kind in kinds}}


@contextmanager
def progress_bar() -> Generator[Show]:
    """Shows operations as a bar on standard error, if that is a terminal."""
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
    from rich.table import Column

    # The short columns come first, because a narrow terminal cuts off the end of the line.
    columns = (SpinnerColumn(), BarColumn(_BAR_WIDTH), DownloadColumn(), TimeElapsedColumn())
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    with Progress(*columns, text, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task("", total=None)

        def show(operation: values.Operation) -> None:
            progress = operation.progress
            bar.update(
                task,
                description=_text_of(operation),
                completed=progress.done_bytes,
                total=progress.total_bytes or None,
            )

        yield show


def _text_of(operation: values.Operation) -> str:
    """The progress in words, without the bytes that the bar shows. What matters most comes first."""
    progress = operation.progress
    found = progress.compaction
    if found is None:
        counts = f" {progress.done_count}/{progress.total_count}" if progress.total_count else ""
        return f"{operation.kind}: {progress.phase}{counts}"
    gets = counted(found.get_request_count, "GET")
    resumed = f" ({found.resumed_get_request_count:,} resumed)" if found.resumed_get_request_count else ""
    rest = f"{duration(found.remaining_ms)} left, " if found.remaining_ms >= 0 else ""
    return (
        f"{rest}{found.done_job_count}/{found.job_count} jobs,"
        f" {found.done_partition_count:,}/{found.partition_count:,} partitions,"
        f" {found.kept_record_count:,} kept, {found.dropped_record_count:,} dropped,"
        f" {gets}{resumed}, {counted(found.put_request_count, 'PUT')}"
    )
