"""`stratalog retention`: delete what retention does not keep, or explain what that is."""

from __future__ import annotations

from collections.abc import Iterable

import click

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.long_work import long_work_options, require_all_done, run_long_work
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import (
    clock_difference,
    counted,
    print_json,
    print_rest,
    print_table,
    utc_time,
    value_document,
)
from stratalog.client import values


@click.group()
def retention() -> None:
    """Apply the retention of topics now, or explain it.

    The server applies it by itself, too.
    """


@retention.command()
@click.argument("topics", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted now.")
@long_work_options
def run(topics: tuple[str, ...], dry_run: bool, no_wait: bool, as_json: bool, server: str) -> None:
    """Delete records that retention does not keep.

    Moves the log start of tiered topics, and deletes old segments on local disks. Objects are deleted later,
    by `tier collect`. While the clocks of the server and of the store differ by more than five minutes, no
    log start of a tiered topic moves by time, and the first line says so.

    A server looks at the shards that it owns. If TOPICS have partitions in others, standard error names these
    shards, and the exit code is 1; a dry run asks their owners. Ctrl-C leaves the operation running.

    \b
    Examples:
      stratalog retention run orders --dry-run
      stratalog retention run
    """
    if dry_run:
        _print_expired(_explained(server, topics), as_json=as_json)
        return
    result = run_long_work(
        server,
        lambda client: client.admin.start_retention(topics),
        values.RetentionResult,
        _print_result,
        no_wait=no_wait,
        as_json=as_json,
    )
    if result is None:
        return
    failure: LogStoreError | None = None
    if result.failed_partitions:
        failure = DataDirectoryError(
            "retention left partitions out; see to the reasons that are named above",
            partition_count=result.failed_partition_count,
            partitions=",".join(f"{one.topic}-{one.partition}" for one in result.failed_partitions),
        )
    require_all_done(result.left_out_shards, failure)


@retention.command()
@click.argument("topics", nargs=-1)
@json_option
@server_option
def explain(topics: tuple[str, ...], as_json: bool, server: str) -> None:
    """Explain what retention deletes now and next.

    The first table shows what `retention run` would delete, and the rule. The second one shows the oldest
    data that stays in each tier: why, the time from which on it is too old, and the size of further records
    with which it is too much. The owner of each partition is asked. A line before them says if a wrong clock
    keeps tiered partitions from going by time.

    \b
    Example: stratalog retention explain orders
    """
    explained = _explained(server, topics)
    _print_expired(explained, as_json=as_json)
    if as_json:
        return
    rows = [
        (
            f"{one.topic}-{one.partition}",
            kept.tier,
            f"{kept.base_offset}-{kept.end_offset}",
            str(ByteSize(kept.size_bytes)),
            utc_time(kept.time_ms),
            str(ByteSize(kept.missing_bytes)) if kept.missing_bytes >= 0 else None,
            kept.reason,
        )
        for one in explained
        for kept in one.next
    ]
    print_table(("NEXT", "TIER", "OFFSETS", "SIZE", "TOO OLD FROM", "TOO MUCH WITH", "STAYS BECAUSE"), rows)


def _explained(server: str, topics: tuple[str, ...]) -> list[values.ExplainedPartition]:
    return with_client(server, lambda client: client.admin.explain_retention(topics))


def _print_expired(explained: Iterable[values.ExplainedPartition], *, as_json: bool) -> None:
    partitions = list(explained)
    if as_json:
        print_json([value_document(one) for one in partitions])
        return
    refused = [one.clock_skew_ms for one in partitions if one.clock_refused]
    _print_clock(len(refused), max(refused, key=abs, default=0))
    rows = [
        (
            f"{one.topic}-{one.partition}",
            expired.tier,
            f"{expired.base_offset}-{expired.end_offset}",
            expired.unit_count,
            str(ByteSize(expired.size_bytes)),
            _rule(expired.rule),
        )
        for one in partitions
        for expired in one.expired
    ]
    if rows:
        print_table(("EXPIRED", "TIER", "OFFSETS", "PARTS", "SIZE", "BY"), rows)
    else:
        click.echo("nothing has expired")
    for one in partitions:
        if one.reason:
            click.echo(f"{one.topic}-{one.partition} is left out: {one.reason}")


def _print_clock(refused_count: int, skew_ms: int) -> None:
    """Print a line if a wrong clock keeps partitions from going by time."""
    if refused_count:
        click.echo(
            f"{clock_difference(skew_ms)}, so nothing of {counted(refused_count, 'tiered partition')} goes by"
            " retention.ms; correct the clock that is wrong"
        )


def _print_result(result: values.RetentionResult) -> None:
    _print_clock(result.clock_refused_count, result.clock_skew_ms)
    if result.partitions:
        print_table(
            ("PARTITION", "LOG START", "BEFORE", "SLICES", "SIZE", "LOCAL SEGMENTS", "SIZE"),
            [
                (
                    f"{one.topic}-{one.partition}",
                    one.new_log_start_offset,
                    one.old_log_start_offset,
                    one.dropped_slice_count,
                    str(ByteSize(one.dropped_slice_bytes)),
                    one.deleted_segment_count,
                    str(ByteSize(one.deleted_segment_bytes)),
                )
                for one in result.partitions
            ],
        )
        print_rest(len(result.partitions), result.partition_count, "partition")
    else:
        click.echo("nothing had expired")
    for one in result.failed_partitions:
        click.echo(f"{one.topic}-{one.partition} was left out: {one.reason}", err=True)
    print_rest(len(result.failed_partitions), result.failed_partition_count, "partition", err=True)


def _rule(rule: values.RetentionRule) -> str:
    return "log start" if rule is values.RetentionRule.LOG_START else rule.replace("-", ".")
