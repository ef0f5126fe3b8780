"""`stratalog tier`: state of the object store; uploads, verification and collection at once."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stratalog.base.errors import DataDirectoryError, StoreCorruptError
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.long_work import long_work_options, run_long_work
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import (
    counted,
    print_json,
    print_offline,
    print_rest,
    print_table,
    utc_time,
    value_document,
)
from stratalog.client import values

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


@click.group()
def tier() -> None:
    """Show the object store; upload, verify and collect now."""


@tier.command()
@json_option
@server_option
def status(as_json: bool, server: str) -> None:
    """Show the objects by shard, and the lag of uploads by topic.

    \b
    EPOCH     how many times a server has claimed the shard
    SLICES    parts of partitions; one object has slices of many
    DROPPED   objects that are to be deleted; readers may still use them
    SKEW      the server's clock minus the store's; above five minutes nothing
              is deleted, and nothing expires by time
    WAITS     closed segments that are not yet in the store
    LAG       all local records that are not yet in the store, and the age of
              the oldest of them

    Where nothing was uploaded since the server started, the time is shown as a dash, or null in JSON.

    \b
    Example: stratalog tier status
    """
    answer = with_client(server, lambda client: client.admin.tier_status())
    if as_json:
        document = value_document(answer)
        if answer.last_successful_upload_ms < 0:
            document["last_successful_upload_ms"] = None
        print_json(document)
        return
    rows = [
        ("store", answer.store_url),
        ("id of the store", answer.store_id),
        ("last successful upload", utc_time(answer.last_successful_upload_ms)),
        ("last upload error", answer.last_upload_error or None),
        ("offline partitions", str(len(answer.offline_partitions))),
    ]
    print_table(("WHAT", "VALUE"), rows)
    _print_shards(answer.shards)
    _print_topics(answer.topics)
    print_offline(answer.offline_partitions)
    for shard in answer.shards:
        if shard.takeover is not None:
            _print_takeover(shard.shard, shard.takeover)


def _print_shards(shards: Sequence[values.ShardStatus]) -> None:
    print_table(
        ("SHARD", "EPOCH", "COMMITS", "OBJECTS", "SIZE", "SLICES", "DROPPED", "SIZE OF THESE", "SKEW"),
        [
            (
                shard.shard,
                shard.epoch,
                shard.commit_count,
                shard.live_object_count,
                str(ByteSize(shard.live_bytes)),
                shard.live_slice_count,
                shard.dropped_object_count,
                str(ByteSize(shard.dropped_bytes)),
                f"{shard.clock_skew_ms} ms",
            )
            for shard in shards
        ],
    )


def _print_topics(topics: Sequence[values.TieredTopicStatus]) -> None:
    if not topics:
        return
    print_table(
        ("TOPIC", "TIERED PARTITIONS", "SLICES", "SIZE", "WAITS", "LAG", "LAG RECORDS", "LAG AGE"),
        [
            (
                one.topic,
                one.tiered_partition_count,
                one.slice_count,
                str(ByteSize(one.tiered_bytes)),
                str(ByteSize(one.pending_upload_bytes)),
                str(ByteSize(one.lag_bytes)),
                one.lag_record_count,
                _age(one.lag_ms),
            )
            for one in topics
        ],
    )


def _print_takeover(shard: int, takeover: values.Takeover) -> None:
    at = f" at {takeover.endpoint}" if takeover.endpoint else ""
    click.echo(
        f"another server, {takeover.owner}{at}, has owned shard {shard} since epoch {takeover.epoch}"
        f" ({utc_time(takeover.time_ms) or 'no time'}): this one refuses all other requests with NOT_OWNER,"
        " and the numbers above are old; use that server, or restart this one, which takes the store back"
    )


def _age(age_ms: int) -> str | None:
    """An age in its largest unit; None if it is not known."""
    if age_ms < 0:
        return None
    for unit, unit_ms in _UNITS_MS:
        if age_ms >= unit_ms:
            return f"{age_ms / unit_ms:.1f}{unit}"
    return f"{age_ms}ms"


@tier.command()
@click.argument("topics", nargs=-1)
@click.option(
    "--delete-local", is_flag=True, help="Also delete local segments that are committed in the object store."
)
@long_work_options
def upload(topics: tuple[str, ...], delete_local: bool, no_wait: bool, as_json: bool, server: str) -> None:
    """Roll and upload the active segments of TOPICS, or of all.

    Uploads every partition that is online. If one of these topics has a partition that is offline, standard
    error names it, and the exit code is 1. Ctrl-C leaves the operation running.

    \b
    Examples:
      stratalog tier upload orders
      stratalog tier upload --delete-local --no-wait
    """
    result = run_long_work(
        server,
        lambda client: client.admin.start_upload(topics, delete_local=delete_local),
        values.UploadResult,
        _print_upload,
        no_wait=no_wait,
        as_json=as_json,
    )
    if result is not None and result.failed_partitions:
        for one in result.failed_partitions:
            click.echo(f"{one.topic}-{one.partition}: {one.reason}", err=True)
        print_rest(len(result.failed_partitions), result.failed_partition_count, "partition", err=True)
        raise DataDirectoryError(
            "offline partitions were not uploaded; mend the faults that are named above",
            partition_count=result.failed_partition_count,
            partitions=",".join(f"{one.topic}-{one.partition}" for one in result.failed_partitions),
        )


def _print_upload(result: values.UploadResult) -> None:
    click.echo(
        f"uploaded {counted(result.slice_count, 'slice')} in {counted(result.object_count, 'object')}, "
        f"{ByteSize(result.size_bytes)}; "
        f"deleted {counted(result.deleted_segment_count, 'local segment')}"
    )


@tier.command()
@click.argument("topics", nargs=-1)
@long_work_options
def verify(topics: tuple[str, ...], no_wait: bool, as_json: bool, server: str) -> None:
    """Compare tiered data of TOPICS, or all, with the metadata.

    Every checksum and every offset is compared. Damage is shown, and the exit code is 1 then. Ctrl-C leaves
    the operation running.

    \b
    Example: stratalog tier verify orders
    """
    result = run_long_work(
        server,
        lambda client: client.admin.start_verification(topics),
        values.VerificationResult,
        _print_verification,
        no_wait=no_wait,
        as_json=as_json,
    )
    if result is not None and result.finding_count:
        raise StoreCorruptError(
            "tiered data is damaged; restore the objects from a copy, and delete nothing",
            slices=result.finding_count,
        )


def _print_verification(result: values.VerificationResult) -> None:
    click.echo(
        f"read {counted(result.slice_count, 'slice')} in {counted(result.object_count, 'object')}, "
        f"{ByteSize(result.size_bytes)}, {counted(result.record_count, 'record')}: "
        f"{counted(result.finding_count, 'slice')} damaged"
    )
    for one in result.findings:
        click.echo(
            f"{one.topic}-{one.partition}, offsets {one.base_offset}-{one.end_offset}, object"
            f" {one.object_name}: {one.reason}"
        )
    print_rest(len(result.findings), result.finding_count, "slice")


@tier.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, and what waits.")
@long_work_options
def collect(dry_run: bool, no_wait: bool, as_json: bool, server: str) -> None:
    """Delete dropped objects whose grace is over.

    The server does so by itself, too. Ctrl-C leaves the operation running.

    \b
    Examples:
      stratalog tier collect --dry-run
      stratalog tier collect
    """
    run_long_work(
        server,
        lambda client: client.admin.start_collection(dry_run=dry_run),
        values.CollectionResult,
        _print_collection,
        no_wait=no_wait,
        as_json=as_json,
    )


def _print_collection(result: values.CollectionResult) -> None:
    verb = "would delete" if result.dry_run else "deleted"
    click.echo(
        f"{verb} {counted(result.deleted_count, 'file')}, {ByteSize(result.deleted_bytes)};"
        f" {counted(result.waiting_count, 'file')}, {ByteSize(result.waiting_bytes)}, stay for now"
    )
    if result.reason:
        click.echo(f"nothing is deleted: {result.reason}")
    if result.dry_run and (result.deleted_files or result.waiting_files):
        print_table(
            ("FILE", "SIZE", "DROPPED", "DUE", "NOW"),
            [
                (
                    one.name,
                    str(ByteSize(one.size_bytes)),
                    utc_time(one.dropped_time_ms),
                    utc_time(one.due_time_ms),
                    word,
                )
                for word, files in (("goes", result.deleted_files), ("stays", result.waiting_files))
                for one in files
            ],
        )


@tier.command()
@click.option("--empty", is_flag=True, help="Empty the caches first.")
@json_option
@server_option
def caches(empty: bool, as_json: bool, server: str) -> None:
    """Show the caches of tiered data in the server's memory.

    \b
    Examples:
      stratalog tier caches
      stratalog tier caches --empty
    """
    if empty:
        emptied_bytes = with_client(server, lambda client: client.admin.empty_caches())
        click.echo(f"emptied {ByteSize(emptied_bytes)}", err=True)
    found = with_client(server, lambda client: client.admin.describe_caches())
    if as_json:
        print_json([value_document(one) for one in found])
        return
    print_table(
        ("SHARD", "CACHE", "ENTRIES", "SIZE", "CAPACITY", "HITS", "MISSES"),
        [
            (
                one.shard,
                one.contents,
                one.entry_count,
                str(ByteSize(one.size_bytes)),
                str(ByteSize(one.capacity_bytes)),
                one.hit_count,
                one.miss_count,
            )
            for one in found
        ],
    )
