"""`stratalog spark staging`: the staging topics of Spark's writes."""

from __future__ import annotations

from functools import partial

import click

from stratalog.base.clock import SystemClock
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import duration, print_json, print_table


@click.group()
def staging() -> None:
    """List and delete the staging topics of Spark's writes.

    A stream that writes exactly once has one for as long as its checkpoint is used, and so has a job with a
    jobId: it says which batches are written. That of a query that is gone for good may be deleted.
    """


@staging.command(name="list")
@json_option
@server_option
def list_staged(as_json: bool, server: str) -> None:
    """List queries and jobs that have a staging topic.

    \b
    QUERY     Spark's id of a stream, or the jobId of a job
    AGE       the time since its last write
    DECISION  pending: some of its rows may be appended, and the query
              has to append the others

    \b
    Example: stratalog spark staging list
    """
    from stratalog.pipeline.sink.staged_queries import staged_queries

    found = with_client(server, staged_queries)
    if as_json:
        print_json([{**one._asdict(), "decision": one.decision.value} for one in found])
        return
    now_ms = SystemClock().now_ms()
    print_table(
        ("QUERY", "AGE", "SIZE", "DECISION", "BATCH"),
        [
            (
                one.query,
                None if one.written_ms is None else duration(max(0, now_ms - one.written_ms)),
                ByteSize(one.size_bytes),
                one.decision.value,
                one.batch,
            )
            for one in found
        ],
    )


@staging.command()
@click.argument("queries", nargs=-1, required=True, metavar="QUERY...")
@click.option("--force", is_flag=True, help="Delete it though a decision is pending.")
@server_option
def delete(queries: tuple[str, ...], force: bool, server: str) -> None:
    """Delete the staging topics of queries that are gone for good.

    If such a query, or a job with the same jobId, goes on nevertheless, it writes its last batch once more.
    While a decision is pending, the command refuses: start the query again, and it appends what is missing.

    \b
    Example: stratalog spark staging delete 5f0c9e1a-8f5e-4f5e-9a7e-2f6f0c1d7b11
    """
    from stratalog.pipeline.sink.staged_queries import delete_staged

    for query in queries:
        found = with_client(server, partial(delete_staged, query=query, is_forced=force))
        click.echo(f"deleted {found.topic} with {ByteSize(found.size_bytes)}")
