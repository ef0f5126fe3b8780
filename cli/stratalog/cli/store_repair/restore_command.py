"""`stratalog tier restore`: an earlier state of a store, as a new store."""

from __future__ import annotations

import dataclasses
import re
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.options import json_option
from stratalog.cli.output import counted, print_json, print_rest, print_table, utc_time, value_document
from stratalog.cli.positions import no_position, parse_position
from stratalog.cli.store_access.store_actor import store_actor
from stratalog.cli.store_repair.byte_progress import byte_progress
from stratalog.client.position import OffsetPosition, TimePosition

if TYPE_CHECKING:
    from stratalog.objectstore.protocol import ObjectStore
    from stratalog.remote.metadata.head.head_log import StoreActor
    from stratalog.remote.restore.store_cut import Until
    from stratalog.remote.restore.store_restore import RestorePlan, RestoreProgress, StoreRestore

_ALLOWED = (
    "a time in ISO 8601, such as 2013-01-01T05:00:00Z (UTC without a zone), or @MILLIS since 1970; a commit"
    " of the shard of a store that has one; SHARD:COMMIT, or catalog:COMMIT."
)
_MAX_NAMED_COUNT = 1000
_COMMIT_OF_LOG = re.compile(r"\A(catalog|[0-9]{1,4}):([0-9]{1,19})\Z")


def _parse_until(context: click.Context, parameter: click.Parameter, text: str | None) -> Until:
    from stratalog.remote.restore.store_cut import Until

    if text is None:
        return Until()
    of_log = _COMMIT_OF_LOG.match(text)
    if of_log is not None:
        return Until(seq=int(of_log[2]), shard=None if of_log[1] == "catalog" else int(of_log[1]))
    match parse_position(context, parameter, text, _ALLOWED):
        case OffsetPosition(offset):
            return Until(seq=offset, shard=0)
        case TimePosition(time_ms):
            return Until(time_ms=time_ms)
        case _:
            raise no_position(text, _ALLOWED)


@click.command()
@click.argument("source")
@click.argument("target", required=False)
@click.option("--until", callback=_parse_until, metavar="TIME|COMMIT", help=f"The moment: {_ALLOWED}")
@click.option("--plan", "is_plan", is_flag=True, help="Only show what would be copied, and what is gone.")
@click.option("--accept-loss", is_flag=True, help="Restore although objects are gone, with gaps for them.")
@json_option
def restore(
    source: str, target: str | None, until: Until, is_plan: bool, accept_loss: bool, as_json: bool
) -> None:
    """Restore an earlier state of SOURCE as a new store, TARGET.

    Needs no server, and only reads SOURCE: its servers may run on. Without --until the state is that of now.
    Catalog and shards are taken at one time, by the clocks of their writers; a COMMIT stands for its time.

    The state of a moment is built from the newest checkpoint before it and the history behind that, and
    copied with all objects that were live then. Deleted objects stay for 24 hours by default, so moments
    within that time can be restored, older ones as far as nothing that they need was collected.

    Objects are copied eight at a time, by the store itself if SOURCE and TARGET have one endpoint and the
    credentials may read SOURCE. Otherwise they come through this machine, with at most 9 MiB of each in
    memory, and their checksums are compared on the way. An object that is damaged in SOURCE is copied as it
    is, and said.

    TARGET is empty, or has the files of an earlier attempt, which goes on: without --until with the moment of
    that attempt, also if SOURCE has gone on. It becomes a store at the very end. It has an id of its own, so
    start its server with a new data directory, and run `stratalog tier verify` there.

    \b
    Examples:
      stratalog tier restore s3://bucket/prefix --until 1 --plan
      stratalog tier restore s3://bucket/prefix s3://bucket/restored
    """
    from stratalog.objectstore.open_store import open_store
    from stratalog.remote.restore.store_cut import StoreCutter
    from stratalog.remote.restore.store_restore import StoreRestore

    if target is None and not is_plan:
        raise click.UsageError("name the TARGET, or show the plan only with --plan")
    with store_actor(source, "restore") as actor, ExitStack() as stack:
        if until.shard == 0 and until.seq is not None and actor.identity.shard_count > 1:
            click.echo("the commit is one of shard 0; SHARD:COMMIT names another one's", err=True)
        written = None
        if target is not None and not is_plan:
            written = stack.enter_context(closing(open_store(target, clock=actor.clock, ids=actor.ids)))
            until = _going_on(until, actor, written)
        cut = StoreCutter(actor.store, actor.identity, written).cut(until)
        work = StoreRestore(actor.store, actor.identity, cut, actor.clock.now_ms(), written)
        plan, done = work.plan(), None
        if written is not None:
            done = _write(work, actor, written, accepts_loss=accept_loss)
    if as_json:
        copied = None if done is None else value_document(done)
        print_json({"written": not is_plan, "copied": copied, **value_document(plan)})
    else:
        _print_plan(plan, done)


def _going_on(until: Until, actor: StoreActor, target: ObjectStore) -> Until:
    """The moment of an interrupted restore of this source, if no other one is asked for."""
    from stratalog.remote.restore.restore_note import RestoreNote
    from stratalog.remote.restore.store_cut import Until

    note = RestoreNote.find(target) if until == Until() else None
    if note is None or note.source_id != actor.identity.store_id:
        return until
    click.echo("goes on with the restore that was interrupted, and with its moment", err=True)
    return Until(seqs=note.seqs)


def _write(
    work: StoreRestore, actor: StoreActor, target: ObjectStore, *, accepts_loss: bool
) -> RestoreProgress:
    """Make the new store, with its progress on standard error."""
    writer = dataclasses.replace(actor, store=target, identity=work.identity_for(target))
    with byte_progress(actor.clock, work.plan().object_bytes, "copies objects") as show_bytes:

        def show(progress: RestoreProgress) -> None:
            count = progress.server_count + progress.through_here_count + progress.there_count
            show_bytes(f"copied {counted(count, 'object')}", progress.done_bytes)

        return work.write(writer, show, accepts_loss=accepts_loss)


def _print_plan(plan: RestorePlan, done: RestoreProgress | None) -> None:
    commits = ", ".join(f"shard {shard}: {seq}" for shard, seq in enumerate(plan.shard_seqs))
    click.echo(
        f"the state of {utc_time(plan.time_ms) or 'no time'}; commits: catalog: {plan.catalog_seq}, {commits}"
    )
    verb = "would copy" if done is None else "copied"
    click.echo(f"{verb} {counted(plan.object_count, 'object')}, {ByteSize(plan.object_bytes)}")
    if done is not None:
        click.echo(
            f"  {done.server_count} by the store itself, {done.through_here_count} through this machine,"
            f" {done.there_count} by an earlier attempt"
        )
        for damage in done.damages:
            click.echo(f"copied with its damage: {damage}")
    print_table(
        ("TOPIC", "PARTITION", "LOG START", "TIERED END", "SIZE"),
        [
            (
                one.topic,
                one.partition,
                one.log_start_offset,
                one.tiered_end_offset,
                None if one.size_bytes is None else str(ByteSize(one.size_bytes)),
            )
            for one in plan.partitions
        ],
    )
    for lost in plan.lost:
        click.echo(
            f"no longer there: partition {lost.partition} of topic {lost.topic}, offsets"
            f" {lost.base_offset}-{lost.end_offset}"
        )
    for one in plan.partitions:
        if one.tiered_end_offset is None:
            click.echo(
                f"no longer there: partition {one.partition} of topic {one.topic}; nothing tells which"
                " offsets it had, if any, and the restored one begins empty at offset 0"
            )
    for name in plan.gone:
        click.echo(f"no longer there: object {name}; offsets that only it had are missing in the plan")
    if done is None:
        for key in plan.archived[:_MAX_NAMED_COUNT]:
            click.echo(f"archived: object {key}; restore it first (`aws s3api restore-object`)")
        print_rest(_MAX_NAMED_COUNT, len(plan.archived), "archived object")
    for problem in plan.problems:
        click.echo(problem)
