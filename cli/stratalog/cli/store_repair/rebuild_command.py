"""`stratalog tier rebuild-head`: rebuilds the lost heads of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.options import json_option
from stratalog.cli.output import counted, print_json, value_document
from stratalog.cli.store_access.store_actor import store_actor

if TYPE_CHECKING:
    from stratalog.remote.restore.rebuild_report import RebuildReport


@click.command("rebuild-head")
@click.argument("store_url", metavar="STORE")
@click.option("--write", is_flag=True, help="Put the heads. Without it nothing is written.")
@json_option
def rebuild_head(store_url: str, write: bool, as_json: bool) -> None:
    """Rebuild the lost heads of STORE; needs no server.

    First put back the newest version of the key from the versions of the bucket or a backup, if there is
    one: that loses nothing. This command is for the other case. Stop every server and every job of the store
    before.

    A head is rebuilt from the newest checkpoint, the history, and the objects, which describe themselves. Its
    newest commits are lost: a shard's uploads and compactions are found again by their objects, but records
    that were deleted lately may be back. A topic that only the lost commits of the catalog know keeps all
    records then, whatever its configuration was: the command names it, and you alter it when the server runs.

    Without --write the command says what it finds and what it cannot know. Offsets that no object has are
    listed; with --write they become a gap, which readers pass. A head that is there is never replaced: move
    one that is damaged or went back to another key first. If the command is interrupted, run it again.

    \b
    Examples:
      stratalog tier rebuild-head s3://bucket/prefix
      stratalog tier rebuild-head s3://bucket/prefix --write
    """
    from stratalog.remote.restore.head_rebuild import HeadRebuild

    with store_actor(store_url, "rebuild") as actor:
        rebuild = HeadRebuild(actor)
        plan = rebuild.plan()
        if not as_json:
            for report in plan.reports:
                _print_report(report)
        if write:
            rebuild.write(plan)
    if as_json:
        print_json({"written": write, "heads": [value_document(report) for report in plan.reports]})
    elif write:
        click.echo(f"put {counted(len(plan.reports), 'head')}; `stratalog tier verify` compares the rest")
    else:
        click.echo("nothing is written; --write puts the heads")


def _print_report(report: RebuildReport) -> None:
    origin = f"known up to commit {report.known_seq}" if report.known_seq else "known by its objects alone"
    click.echo(
        f"{report.log}: {origin}; {counted(report.topic_count, 'topic')},"
        f" {counted(report.partition_count, 'partition')}"
    )
    if report.log != "catalog":
        click.echo(
            f"  {counted(report.slice_count, 'slice')} in {counted(report.live_object_count, 'object')},"
            f" {ByteSize(report.live_bytes)}; {report.added_object_count} of the objects are of lost commits"
        )
        click.echo(
            f"  {counted(report.unused_object_count, 'object')}, {ByteSize(report.unused_bytes)}, are not"
            " used; the server collects them later"
        )
    for lost in report.lost:
        tip = lost.partition
        why = "deleted by retention, or lost" if lost.is_start else "lost: no object has them"
        click.echo(
            f"  partition {tip.partition} of topic {tip.topic_id}, offsets {lost.base_offset}-"
            f"{lost.end_offset}: {why}"
        )
    for warning in report.warnings:
        click.echo(f"  {warning}")
