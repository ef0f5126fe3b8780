"""`stratalog tier`: state of the object store; uploads, verification, collection now; pauses; versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from stratalog.base.errors import DataDirectoryError, LogStoreError, StoreCorruptError
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.error_line import print_error
from stratalog.cli.lazy_group import LazyGroup
from stratalog.cli.long_work import long_work_options, require_all_done, run_long_work
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import (
    Cell,
    age,
    clock_difference,
    counted,
    document_or_object,
    print_json,
    print_offline,
    print_rest,
    print_table,
    utc_time,
    value_document,
)
from stratalog.client import values

if TYPE_CHECKING:
    from stratalog.client.client import Client
    from stratalog.client.values.store_status import StoreStatus

_EXIT_UNFINISHED = 2
_NAMED_COUNT = 10
_MAX_NAMED_ORPHANS = 1000
"""Orphans that an answer of the server names."""
"""Names in one line about faults."""
_OFFLINE = {
    "rebuild-head": (
        "store_repair.rebuild_command:rebuild_head",
        "Rebuild the lost heads of STORE; needs no server.",
    ),
    "restore": (
        "store_repair.restore_command:restore",
        "Restore an earlier state of SOURCE as a new store, TARGET.",
    ),
}


@click.group(cls=LazyGroup, commands_by_name=_OFFLINE)
def tier() -> None:
    """Show the object store; upload, verify, collect, pause."""


@tier.command()
@json_option
@server_option
def status(as_json: bool, server: str) -> None:
    """Show faults, shards, background passes and topics.

    The lines before the first table say what is wrong now, and what to do; there are none if all is well.
    Where the shards have several owners, each is asked about its own. The exit code is 1 if one of them does
    not answer; its shard's row is of this server's last look then.

    \b
    SERVER    the server that says so, where there are several
    OWNER     the server that takes calls that change the shard
    EPOCH     how many times a server has claimed the shard
    SINCE     how long ago its owner has claimed it
    SLICES    parts of partitions; one object has slices of many
    DROPPED   objects that are to be deleted; readers may still use them
    SKEW      the server's clock minus the store's; above five minutes nothing
              is deleted, and nothing expires by time
    ANSWERED  how long ago the store last answered
    BEGUN     how long ago the last turn of the pass began
    SUCCESS   how long ago a turn last ended without a failure
    FAILED    failures since then
    LEFT      work that is left for later turns: pieces, size, age of the oldest
    REFUSED   work of the last turn that a rule refused, by reason
    WAITS     closed segments that are not yet in the store
    LAG       all local records that are not yet in the store, and how long
              the oldest of them have waited
    OLDEST    the partition that has these
    UPLOADED  how long ago something of it, or else of the topic, was last
              committed since the start of the server; or paused, disabled

    A dash stands for never, and for nothing. --json has all fields: times in milliseconds since 1970, -1 for
    never.

    \b
    Example: stratalog tier status
    """
    found = with_client(server, lambda client: client.admin.store_status())
    if as_json:
        others = [value_document(one) for one in found.others]
        print_json(value_document(found.status) | {"other_servers": others})
    else:
        _print_status(found)
    silent = [one.server for one in found.others if one.error is not None]
    if silent:
        # Not above: `--help` needs no client.
        from stratalog.client.errors import ServerUnavailableError

        raise ServerUnavailableError(
            "owners of shards do not answer; see to their servers, or start others with --own-shards",
            servers=",".join(silent),
        )


def _print_status(found: StoreStatus) -> None:
    answers = [(found.server, found.status)]
    answers += [(one.server, one.status) for one in found.others if one.status is not None]
    is_one = not found.others
    for server, answer in answers:
        for line in _complaints(answer):
            click.echo(line if is_one else f"{server}: {line}")
    for one in found.others:
        if one.error is not None:
            click.echo(f"{one.server}: {one.error}")
    for _, answer in answers:
        print_offline(answer.offline_partitions)
    first = found.status
    rows = [("store", first.store_url), ("id of the store", first.store_id)]
    print_table(("WHAT", "VALUE"), rows + [("about the store", remark) for remark in first.store_remarks])
    _print_shards(_owned_shards(found))
    servers = [("" if is_one else server, answer) for server, answer in answers]
    _print_passes(servers)
    _print_topics(servers)


def _owned_shards(found: StoreStatus) -> Iterator[_ShardRow]:
    """Each shard as its owner describes it, or else as the first server does."""
    owned: dict[int, _ShardRow] = {}
    for one in found.others:
        for shard in () if one.status is None else one.status.shards:
            if shard.takeover is None and one.status is not None:
                owned[shard.shard] = _ShardRow(one.server, shard, one.status.time_ms)
    for shard in found.status.shards:
        owner = "this server" if not found.others else found.server
        if shard.takeover is not None:
            owner = shard.takeover.endpoint or "none"
        yield owned.get(shard.shard, _ShardRow(owner, shard, found.status.time_ms))


def _complaints(answer: values.TierStatus) -> Iterator[str]:
    """Lines about faults, the worst first. A fault of several shards has one line."""
    yield from _takeover_lines(answer.shards)
    unowned = [shard for shard in answer.shards if shard.claim_time_ms < 0]
    if unowned:
        numbers = ",".join(str(shard.shard) for shard in unowned)
        yield f"{_shards(unowned)}: no server owns it; start one with --own-shards {numbers}"
    for short in answer.short_log_dirs:
        yield (
            f"{short.path} has {ByteSize(short.free_bytes)} of free space, so appends to its partitions are"
            f" refused by their topics' backlog policy until it has {ByteSize(short.enough_bytes)}; free"
            " space, or see to the uploads"
        )
    yield from _store_lines(answer.shards)
    skewed = [shard for shard in answer.shards if shard.deletion_stopped]
    if skewed:
        skew_ms = max((shard.clock_skew_ms for shard in skewed), key=abs)
        yield (
            f"{_shards(skewed)}: {clock_difference(skew_ms)}, so nothing is deleted and nothing expires by"
            " time; correct the clock that is wrong"
        )
    for one in answer.passes:
        if one.consecutive_failure_count:
            times = counted(one.consecutive_failure_count, "time")
            since = _ago(one.last_success_ms, answer.time_ms)
            last = f"its last success was {since} ago" if since else "it has not succeeded since the start"
            yield f"{one.name} has failed {times} in a row, {last}: {one.last_error}"
    paused = [topic for topic in answer.topics if topic.paused and topic.lag_record_count]
    if paused:
        longest = age(max(topic.lag_ms for topic in paused))
        records = counted(sum(topic.lag_record_count for topic in paused), "record")
        yield (
            f"uploads of {_named([topic.topic for topic in paused])} are paused, with {records} on the local"
            f" disk only{f', the oldest for {longest}' if longest else ''}; `stratalog tier resume` ends the"
            " pause"
        )
    for path in sorted({path for topic in answer.topics for path in topic.silent_log_dirs}):
        yield (
            f"the disk of {path} does not answer, so that nothing is uploaded from there; find out why, or"
            " restart the server without it"
        )
    if answer.excluded_partition_count:
        yield (
            f"compaction leaves {counted(answer.excluded_partition_count, 'partition')} alone;"
            " `stratalog compaction excluded` says why and since when"
        )


_APPENDS_REFUSED = ", so appends at `disk` to tiered topics are refused"
_STORE_ANSWERS = {
    "store-refuses": "the store answers, and has refused this server for",
    "bucket-gone": "the store answers, and the bucket has been gone for",
    "unreadable": "the store answers, and its metadata could not be read for",
}


def _store_lines(shards: Sequence[values.ShardStatus]) -> Iterator[str]:
    """Lines about a store that does not answer for too long, that refuses the server, or whose metadata
    cannot be read."""
    for trouble, words in _STORE_ANSWERS.items():
        some = [shard for shard in shards if shard.store_trouble == trouble]
        if some:
            are_refused = any(shard.disk_appends_refused for shard in some)
            yield (
                f"{_shards(some)}: {words} {age(max(shard.silence_ms for shard in some))}"
                f"{_APPENDS_REFUSED if are_refused else ''}: {some[0].store_failure}"
            )
    silent = [
        shard for shard in shards if shard.disk_appends_refused and shard.store_trouble not in _STORE_ANSWERS
    ]
    if silent:
        yield (
            f"{_shards(silent)}: the store has not answered for"
            f" {age(max(shard.silence_ms for shard in silent))}{_APPENDS_REFUSED}; check that the store runs"
            " and can be reached"
        )


def _shards(shards: Sequence[values.ShardStatus]) -> str:
    """The numbers of the shards, for people."""
    numbers = [str(shard.shard) for shard in shards]
    return f"shard {numbers[0]}" if len(numbers) == 1 else f"shards {_named(numbers)}"


def _named(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are."""
    rest_count = len(names) - _NAMED_COUNT
    return ", ".join(names[:_NAMED_COUNT]) + (f" and {rest_count:,} more" if rest_count > 0 else "")


class _ShardRow(NamedTuple):
    """A shard, its owner, and the time of the answer about it."""

    owner: str
    shard: values.ShardStatus
    now_ms: int


def _print_shards(rows: Iterable[_ShardRow]) -> None:
    header = (
        "SHARD",
        "OWNER",
        "EPOCH",
        "SINCE",
        "COMMITS",
        "OBJECTS",
        "SIZE",
        "DEAD",
        "SLICES",
        "DROPPED",
        "SIZE OF THESE",
        "SKEW",
    )
    print_table(
        (*header, "ANSWERED"),
        [
            (
                shard.shard,
                owner,
                shard.epoch if shard.takeover is None else shard.takeover.epoch,
                _ago(shard.claim_time_ms, now_ms),
                shard.commit_count,
                shard.live_object_count,
                str(ByteSize(shard.live_bytes)),
                str(ByteSize(shard.dead_bytes)),
                shard.live_slice_count,
                shard.dropped_object_count,
                str(ByteSize(shard.dropped_bytes)),
                f"{shard.clock_skew_ms} ms",
                age(shard.silence_ms),
            )
            for owner, shard, now_ms in rows
        ],
    )


def _print_passes(servers: Sequence[tuple[str, values.TierStatus]]) -> None:
    """Print a row for each pass, those that fail or refuse work first. A single server has no name."""
    passes = [(server, one, answer.time_ms) for server, answer in servers for one in answer.passes]
    if not passes:
        return
    _print_by_server(
        ("PASS", "BEGUN", "SUCCESS", "FAILED", "LEFT", "SIZE", "OLDEST", "REFUSED", "LAST OUTCOME"),
        [
            (
                server,
                one.name,
                _ago(one.last_begin_ms, now_ms),
                _ago(one.last_success_ms, now_ms),
                one.consecutive_failure_count,
                one.backlog.piece_count,
                str(ByteSize(one.backlog.size_bytes)),
                _ago(one.backlog.oldest_ms, now_ms),
                _refusals(one.last_refusals),
                one.last_outcome or None,
            )
            for server, one, now_ms in sorted(passes, key=lambda row: _is_well(row[1]))
        ],
    )


def _print_by_server(header: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> None:
    """Print the table without its first column, the server, if that has no name."""
    if any(row[0] for row in rows):
        print_table(("SERVER", *header), rows)
    else:
        print_table(header, [row[1:] for row in rows])


def _is_well(one: values.PassStatus) -> tuple[bool, bool]:
    return one.consecutive_failure_count == 0, _refusals(one.last_refusals) is None


def _refusals(counts: Mapping[str, int]) -> str | None:
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count) or None


def _print_topics(servers: Sequence[tuple[str, values.TierStatus]]) -> None:
    topics = [(server, one, answer.time_ms) for server, answer in servers for one in answer.topics]
    if not topics:
        return
    _print_by_server(
        (
            "TOPIC",
            "TIERED PARTITIONS",
            "SLICES",
            "SIZE",
            "WAITS",
            "LAG",
            "LAG RECORDS",
            "LAG AGE",
            "OLDEST",
            "UPLOADED",
        ),
        [
            (
                server,
                one.topic,
                one.tiered_partition_count,
                one.slice_count,
                str(ByteSize(one.tiered_bytes)),
                str(ByteSize(one.pending_upload_bytes)),
                str(ByteSize(one.lag_bytes)),
                one.lag_record_count,
                age(one.lag_ms),
                None if one.oldest_partition < 0 else one.oldest_partition,
                _uploaded(one, now_ms),
            )
            for server, one, now_ms in sorted(topics, key=lambda row: row[1].topic)
        ],
    )


def _uploaded(topic: values.TieredTopicStatus, now_ms: int) -> str | None:
    """How long ago the partition that waits longest, or else the topic, was uploaded, or why it is not."""
    if topic.copy_disabled:
        return "disabled"
    if topic.paused:
        return "paused"
    waits = topic.oldest_partition >= 0
    return _ago(topic.oldest_partition_upload_ms if waits else topic.last_upload_ms, now_ms)


def _takeover_lines(shards: Sequence[values.ShardStatus]) -> Iterator[str]:
    """A line for each server that has taken shards over from this one."""
    by_owner: dict[tuple[str, str], list[values.ShardStatus]] = {}
    for shard in shards:
        if shard.takeover is not None and not shard.foreign:
            by_owner.setdefault((shard.takeover.owner, shard.takeover.endpoint), []).append(shard)
    for (owner, endpoint), lost in by_owner.items():
        claims = [shard.takeover for shard in lost if shard.takeover is not None]
        epochs = sorted({claim.epoch for claim in claims})
        since = utc_time(min(claim.time_ms for claim in claims)) or "no time"
        yield (
            f"another server, {owner}{f' at {endpoint}' if endpoint else ''}, has owned {_shards(lost)} since"
            f" epoch {', '.join(map(str, epochs))} ({since}): this one refuses requests about"
            f" {'it' if len(lost) == 1 else 'them'} with NOT_OWNER, and its numbers below are old; use that"
            " server, or restart this one, which takes back what it owns by --own-shards"
        )


def _ago(time_ms: int, now_ms: int) -> str | None:
    """The time since then; None for never."""
    return None if time_ms < 0 else age(max(0, now_ms - time_ms))


@tier.command()
@click.argument("topics", nargs=-1)
@click.option(
    "--delete-local", is_flag=True, help="Also delete local segments that are committed in the object store."
)
@long_work_options
def upload(topics: tuple[str, ...], delete_local: bool, no_wait: bool, as_json: bool, server: str) -> None:
    """Roll and upload the active segments of TOPICS, or of all.

    Uploads every partition that is online, of the shards that the server owns. If one of these topics has a
    partition that is offline, or in a shard that another server owns, standard error names the partition or
    the shard, and the exit code is 1. --delete-local leaves the segments of a shard where the bucket is gone,
    or a head is lost or damaged, with exit code 1. Ctrl-C leaves the operation running.

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
    if result is None:
        return
    failure: LogStoreError | None = None
    if result.failed_partitions:
        for one in result.failed_partitions:
            click.echo(f"{one.topic}-{one.partition}: {one.reason}", err=True)
        print_rest(len(result.failed_partitions), result.failed_partition_count, "partition", err=True)
        failure = DataDirectoryError(
            "offline partitions were not uploaded; mend the faults that are named above",
            partition_count=result.failed_partition_count,
            partitions=",".join(f"{one.topic}-{one.partition}" for one in result.failed_partitions),
        )
    require_all_done(result.left_out_shards, failure)


def _print_upload(result: values.UploadResult) -> None:
    click.echo(
        f"uploaded {counted(result.slice_count, 'slice')} in {counted(result.object_count, 'object')}, "
        f"{ByteSize(result.size_bytes)}; "
        f"deleted {counted(result.deleted_segment_count, 'local segment')}"
    )


_PAUSE = "remote.copy.pause"


@tier.command()
@click.argument("topics", nargs=-1)
@server_option
def pause(topics: tuple[str, ...], server: str) -> None:
    """Stop uploads of TOPICS, or of all, for a while.

    What is on its way to the store still arrives. Records that are not in the store stay on the local disk,
    also those beyond local retention, so watch its free space. The pause outlasts a restart; `tier resume`
    ends it. A topic whose own remote.copy.pause is false goes on where all are paused.

    \b
    Examples:
      stratalog tier pause orders
      stratalog tier pause
    """
    _alter_pause(server, topics, value=True)


@tier.command()
@click.argument("topics", nargs=-1)
@server_option
def resume(topics: tuple[str, ...], server: str) -> None:
    """End the pause of uploads of TOPICS, or that of all.

    Without TOPICS, topics that were paused by name stay paused.

    \b
    Examples:
      stratalog tier resume orders
      stratalog tier resume
    """
    _alter_pause(server, topics, value=None)


def _alter_pause(server: str, topics: Sequence[str], *, value: bool | None) -> None:
    """Set the key of the topics, or of the server, and show its value in force."""

    async def alter(client: Client) -> None:
        for topic in dict.fromkeys(topics) or (None,):
            name = _PAUSE if topic else f"log.{_PAUSE}"
            [entry] = await client.admin.alter_configs({name: value}, topic)
            word = "are paused" if entry.value == "true" else "are not paused"
            click.echo(f"uploads of {topic or 'all topics'} {word}")
            if value is None and entry.value == "true":
                click.echo(
                    "they are paused for all topics; `stratalog tier resume` ends that"
                    if topic
                    else "the configuration that the server was started with pauses them; alter that"
                )

    with_client(server, alter)


@tier.command()
@click.argument("topics", nargs=-1)
@click.option("--quick", is_flag=True, help="Read no data: check the metadata, and list the objects.")
@long_work_options
def verify(topics: tuple[str, ...], quick: bool, no_wait: bool, as_json: bool, server: str) -> None:
    """Check metadata, objects, and the data of TOPICS or all.

    \b
    damaged  a slice or a document of the metadata is not what was written
    missing  an object or a document is not in the store
    hole     offsets that no slice has
    overlap  offsets that two slices have
    catalog  a partition that the catalog does not know

    Every checksum and every offset of the data is compared. With --quick the data stays unread: objects are
    listed, and their sizes compared, so damage in their contents is not found. Recorded losses and files that
    no commit refers to are counted; they are no findings. A server looks at its own shards. Standard error
    names those that others own. Ctrl-C leaves the operation running.

    Exit code: 0 all is well, 1 there are findings or shards that were not looked at, 2 the verification could
    not finish.

    \b
    Examples:
      stratalog tier verify orders
      stratalog tier verify --quick
    """
    try:
        result = run_long_work(
            server,
            lambda client: client.admin.start_verification(topics, metadata_only=quick),
            values.VerificationResult,
            _print_verification,
            no_wait=no_wait,
            as_json=as_json,
        )
    except LogStoreError as error:
        print_error(str(error))
        raise click.exceptions.Exit(_EXIT_UNFINISHED) from None
    if result is None:
        return
    failure: LogStoreError | None = None
    if result.finding_count:
        failure = StoreCorruptError(
            "the store is not as its commits say; restore what is damaged or missing from a copy, and delete"
            " nothing",
            findings=result.finding_count,
        )
    require_all_done(result.left_out_shards, failure)


def _print_verification(result: values.VerificationResult) -> None:
    if result.metadata_only:
        click.echo(
            "read the metadata, and compared names and sizes of the objects; nothing of their contents was"
            f" compared: {counted(result.finding_count, 'finding')}"
        )
    else:
        click.echo(
            f"read {counted(result.slice_count, 'slice')} in {counted(result.object_count, 'object')}, "
            f"{ByteSize(result.size_bytes)}, {counted(result.record_count, 'record')}: "
            f"{counted(result.finding_count, 'finding')}"
        )
    for one in result.findings:
        click.echo(f"{one.kind.value}: {_place_of(one)}: {one.reason}")
    print_rest(len(result.findings), result.finding_count, "finding")
    for loss in result.losses:
        click.echo(
            f"recorded gap: partition {loss.partition} of topic {loss.topic_id}, offsets {loss.base_offset}-"
            f"{loss.end_offset}, {loss.reason}, {utc_time(loss.time_ms) or 'no time'}"
        )
    print_rest(len(result.losses), result.loss_count, "recorded gap")
    if result.unreferenced_count:
        click.echo(
            f"no commit refers to {counted(result.unreferenced_count, 'file')},"
            f" {ByteSize(result.unreferenced_bytes)}; `stratalog tier collect --dry-run` lists them"
        )
    if result.waiting_unreferenced_count:
        click.echo(
            f"{counted(result.waiting_unreferenced_count, 'file')} of these,"
            f" {ByteSize(result.waiting_unreferenced_bytes)}, waiting, deleted not before"
            f" {utc_time(result.unreferenced_due_time_ms)}: uploads under way, and what dead ones have left"
        )


def _place_of(finding: values.VerificationFinding) -> str:
    if not finding.topic:
        return document_or_object(finding.object_name)
    offsets = f"{finding.topic}-{finding.partition}, offsets {finding.base_offset}-{finding.end_offset}"
    return f"{offsets}, object {finding.object_name}" if finding.object_name else offsets


@tier.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, and what waits.")
@long_work_options
def collect(dry_run: bool, no_wait: bool, as_json: bool, server: str) -> None:
    """Delete dropped objects and orphans whose grace is over.

    Orphans are files that no commit refers to: of uploads, compactions and
    folds that a crash or a lost race has ended, probes, unfinished multipart
    uploads. The server does so by itself, too. It looks at its own
    shards; standard error names those that others own, and the exit code is 1.
    Ctrl-C leaves the operation running.

    \b
    Examples:
      stratalog tier collect --dry-run
      stratalog tier collect
    """
    result = run_long_work(
        server,
        lambda client: client.admin.start_collection(dry_run=dry_run),
        values.CollectionResult,
        print_collection,
        no_wait=no_wait,
        as_json=as_json,
    )
    if result is not None:
        require_all_done(result.left_out_shards)


def print_collection(result: values.CollectionResult) -> None:
    """Print what was deleted, or would be, and what stays."""
    verb = "would delete" if result.dry_run else "deleted"
    click.echo(
        f"{verb} {counted(result.deleted_count, 'dropped file')}, {ByteSize(result.deleted_bytes)};"
        f" {counted(result.waiting_count, 'dropped file')}, {ByteSize(result.waiting_bytes)},"
        f" {'stays' if result.waiting_count == 1 else 'stay'} for now"
    )
    for total in result.orphans:
        count = counted(total.orphan_count, "orphan")
        click.echo(f"{verb} {count} ({total.kind.value}), {ByteSize(total.size_bytes)}")
    _print_waiting_orphans(len(result.waiting_orphan_files))
    if result.trimmed_history_count:
        trims = "would drop" if result.dry_run else "dropped"
        click.echo(f"{trims} {counted(result.trimmed_history_count, 'history file')} that hold old commits")
    if result.expired_pin_count:
        ends = "would end" if result.dry_run else "ended"
        click.echo(f"{ends} {counted(result.expired_pin_count, 'pin')} whose time is over")
    if result.pinned_count:
        click.echo(f"pins hold {counted(result.pinned_count, 'file')} whose grace is over")
    for problem in result.problems:
        click.echo(problem)
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
                    "pinned" if one.pinned else word,
                )
                for word, files in (("goes", result.deleted_files), ("stays", result.waiting_files))
                for one in files
            ],
        )
    if result.dry_run and (result.orphan_files or result.waiting_orphan_files):
        print_table(
            ("ORPHAN", "KIND", "SIZE", "WRITTEN", "NOT BEFORE", "NOW"),
            [
                (
                    one.name,
                    one.kind.value,
                    str(ByteSize(one.size_bytes)),
                    utc_time(one.write_time_ms),
                    utc_time(one.due_time_ms),
                    word,
                )
                for word, files in (("goes", result.orphan_files), ("stays", result.waiting_orphan_files))
                for one in files
            ],
        )


def _print_waiting_orphans(named_count: int) -> None:
    if named_count:
        # An answer names so many at most.
        is_all = named_count < _MAX_NAMED_ORPHANS
        waiting = counted(named_count, "orphan") if is_all else f"{named_count} orphans or more"
        click.echo(f"{waiting} {'stays' if named_count == 1 else 'stay'} for now")


@tier.command()
@click.option("--dry-run", is_flag=True, help="Only show the versions.")
@json_option
@server_option
def finalize(dry_run: bool, as_json: bool, server: str) -> None:
    """Finalize the metadata version: there is no way back.

    After an upgrade the server does without the new actions of the metadata, so that the former version of
    Stratalog may come back. This ends that: the server uses all that it knows, and older software, Spark jobs
    and compactors among it, can neither read nor write the store any more.

    \b
    Examples:
      stratalog tier finalize --dry-run
      stratalog tier finalize
    """
    answer = with_client(server, lambda client: client.admin.finalize_metadata(dry_run=dry_run))
    if as_json:
        print_json(value_document(answer))
        return
    click.echo(f"the server supports metadata version {answer.supported_metadata_version}")
    print_table(
        ("HEAD", "WAS", "WOULD BE" if dry_run else "IS", "WAITS BECAUSE"),
        [
            (
                "catalog" if one.shard < 0 else f"shard {one.shard}",
                one.old_metadata_version,
                one.new_metadata_version,
                one.reason or None,
            )
            for one in answer.heads
        ],
    )


@tier.command()
@click.option("--empty", is_flag=True, help="Empty the caches first.")
@json_option
@server_option
def caches(empty: bool, as_json: bool, server: str) -> None:
    """Show the caches of tiered data.

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
        ("SHARD", "CACHE", "ENTRIES", "SIZE", "CAPACITY", "HITS", "MISSES", "EVICTIONS"),
        [
            (
                "all" if one.shard < 0 else one.shard,
                one.contents,
                one.entry_count,
                str(ByteSize(one.size_bytes)),
                str(ByteSize(one.capacity_bytes)),
                one.hit_count,
                one.miss_count,
                one.eviction_count,
            )
            for one in found
        ],
    )
