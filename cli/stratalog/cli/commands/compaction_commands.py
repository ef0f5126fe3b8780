"""`stratalog compaction`: compact tiered data now, plan, watch and end it, and show what it leaves alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.error_line import print_error
from stratalog.cli.int_ranges import PARTITION, SECONDS
from stratalog.cli.interrupts import interrupted_by_signals
from stratalog.cli.log_lines import log_to_stderr
from stratalog.cli.long_work import (
    follow,
    long_work_options,
    operation_document,
    require_all_done,
    run_long_work,
)
from stratalog.cli.options import (
    config_option,
    environment_option,
    json_option,
    require_unicode,
    server_option,
)
from stratalog.cli.output import (
    Cell,
    counted,
    duration,
    print_json,
    print_rest,
    print_table,
    utc_time,
    value_document,
)
from stratalog.cli.store_access.compactor_state import CompactorState, FailedShard
from stratalog.cli.store_access.standing_compactor import StandingCompactor, serving_metrics
from stratalog.cli.store_access.store_compaction import (
    CompactionLayers,
    StoreCompaction,
    StorePlan,
    StoreRun,
    store_compaction,
)
from stratalog.client import values

if TYPE_CHECKING:
    from stratalog.client.client import Client

_EXIT_FAILED = 1
_SHOWN_COUNT = 5
"""Excluded partitions that the status shows."""
ASSUMPTION = (
    "without --config-file this assumes that no server of the store is started with defaults of topics, such"
    " as log.cleanup.policy or log.cleaner.min.compaction.lag.ms; if one is, name its file"
)

_NEED_STORE = (
    "--interval, --config-file, --config, --state-dir, --metrics-listen and --insecure need --store: a"
    " server has its own"
)


class _Unserved(NamedTuple):
    """The options of a compactor without a server. Immutable."""

    interval_s: int | None
    """The pause between its turns; None for one turn."""
    config_file: str
    state_dir: str
    metrics_listen: str
    is_insecure: bool
    config: dict[str, str]

    @property
    def has_any(self) -> bool:
        return any(self)

    @property
    def layers(self) -> CompactionLayers:
        """The configuration. Without a file of the servers a warning says what is assumed."""
        if not self.config_file:
            click.echo(f"warning: {ASSUMPTION}", err=True)
        return CompactionLayers(config_of_servers(self.config_file), self.config)

    @property
    def state(self) -> CompactorState | None:
        """The state that outlives the process, if it has any."""
        return _state_in(self.state_dir) if self.state_dir else None


def _state_option(text: str) -> Callable[[Any], Any]:
    return click.option("--state-dir", callback=require_unicode, default="", metavar="DIR", help=text)


compactor_option = _state_option(
    "Ask the state of a compactor that runs without a server, in place of a server: its --state-dir."
)


@click.group()
def compaction() -> None:
    """Compact tiered data now."""


@compaction.command()
@click.argument("topics", nargs=-1)
@environment_option(
    "--store",
    "store_url",
    callback=require_unicode,
    default="",
    metavar="URL",
    help="Compact this store here, without a server: file:///dir or s3://bucket/prefix; credentials, region"
    " and endpoint as boto3 finds them.",
)
@click.option("--dry-run", is_flag=True, help="Show the jobs that it would run, as `compaction plan` does.")
@click.option(
    "--interval",
    "interval_s",
    type=SECONDS,
    metavar="SECONDS",
    help="With --store: compact again and again what is due, with this pause, until Ctrl-C.",
)
@click.option(
    "--config-file",
    default="",
    metavar="FILE",
    help="With --store: the configuration file that its servers are started with.",
)
@_state_option(
    "With --store: a directory of this compactor alone, so that what it leaves alone outlives it, and"
    " `compaction status`, `excluded` and `reset` work; scratch files of jobs lie there, too. Created"
    " if it is missing."
)
@click.option(
    "--metrics-listen",
    default="",
    metavar="HOST:PORT",
    help="With --interval: serve metrics for Prometheus, /healthz and /readyz at this address, over HTTP.",
)
@click.option(
    "--insecure",
    "is_insecure",
    is_flag=True,
    help="Let other machines read the metrics, without TLS and authentication.",
)
@config_option(
    text="With --store: set a key remote.compaction.* for this command, stronger than the servers' value;"
    " may be repeated."
)
@long_work_options
def run(
    topics: tuple[str, ...],
    store_url: str,
    dry_run: bool,
    no_wait: bool,
    as_json: bool,
    server: str,
    **unserved: Any,
) -> None:
    """Compact the tiered data of TOPICS, or of all topics.

    Data of TOPICS are compacted whether it pays or not. Without TOPICS it does what is due.

    Ctrl-C ends it: jobs that were committed stay, and the one at work has not happened. With --no-wait it is
    left to the server.

    With --store it needs no server, and may go on beside the servers of the store, and beside other
    compactors: the first commit wins, and the work of the others on these objects is lost. So one machine may
    compact a store with --interval, and its servers run with --compaction-interval 0. Keys that
    `stratalog config alter --broker` has set hold here, too; those of the servers' start have to be named
    with --config-file; without it a warning says what is assumed.

    With --interval the log is on standard error, and --metrics-listen has the metrics of compaction that a
    server has. Partitions that are left alone after a failure are remembered in --state-dir.

    Exit code: 0 done, 1 a job or a shard failed, has no plan, or is another server's, 130 interrupted.

    \b
    Examples:
      stratalog compaction run orders --no-wait
      stratalog compaction run --store s3://bucket/prefix --dry-run
      stratalog compaction run --store s3://bucket/prefix --interval 60
    """
    options = _Unserved(**unserved)
    if store_url:
        if no_wait:
            raise click.UsageError("--no-wait is for a server")
        _run_on_store(store_url, topics, options, dry_run=dry_run, as_json=as_json)
        return
    if options.has_any:
        raise click.UsageError(_NEED_STORE)
    if dry_run:
        print_plan(with_client(server, lambda client: client.admin.plan_compaction(topics)), as_json=as_json)
        return
    result = run_long_work(
        server,
        lambda client: client.admin.start_compaction(topics),
        values.CompactionResult,
        _print_jobs,
        no_wait=no_wait,
        as_json=as_json,
        document=lambda result: [value_document(job) for job in result.jobs],
        ends_on_interrupt=True,
    )
    if result is not None and not result.jobs and not as_json:
        planned = with_client(server, lambda client: client.admin.plan_compaction(topics))
        _print_idle(planned.idle_topics)
    if result is not None:
        require_all_done(result.left_out_shards)


def config_of_servers(path: str) -> Mapping[str, str]:
    """The broker's keys in the configuration file of the store's servers; none without a path. Prints all
    faults but the last, which it raises: InvalidConfigError."""
    from stratalog.server.configuration.settings_file import read_settings_file

    if not path:
        return {}
    file = read_settings_file(path)
    for fault in file.faults[:-1]:
        print_error(str(fault))
    for fault in file.faults[-1:]:
        raise fault
    return file.config


def _run_on_store(
    url: str, topics: tuple[str, ...], options: _Unserved, *, dry_run: bool, as_json: bool
) -> None:
    """Compact a store here, once or again and again."""
    if options.interval_s and (topics or dry_run):
        raise click.UsageError("--interval is for what is due in all topics")
    if options.metrics_listen and not options.interval_s:
        raise click.UsageError("--metrics-listen is for --interval")
    layers = options.layers
    with interrupted_by_signals():
        if options.interval_s is not None:
            _compact_again_and_again(url, layers, options, options.interval_s, as_json=as_json)
        with store_compaction(url, layers, state=None if dry_run else options.state) as store:
            if dry_run:
                print_store_plan(store.plan(topics), as_json=as_json)
                return
            run = store.run(topics)
            print_run(store, run.result, topics, is_idle_shown=True, as_json=as_json)
    exit_unless_well(run)


def print_store_plan(plan: StorePlan, *, as_json: bool) -> None:
    """Print the plan of a store. Ends the command with an exit code if a shard could not be planned."""
    print_plan(plan.planned, as_json=as_json)
    for number, failure in sorted(plan.failed_shards.items()):
        print_error(f"shard {number} is not planned: {failure}")
    if plan.failed_shards:
        raise click.exceptions.Exit(_EXIT_FAILED)


def exit_unless_well(run: StoreRun) -> None:
    """End the command with an exit code, and say why, if a shard or a job has failed."""
    for number, failure in sorted(run.outcome.failed_shards.items()):
        print_error(f"shard {number} is not compacted: {failure}")
    if run.outcome.failures:
        print_error("a job has failed and changed nothing; the next compaction tries it again")
    if not run.is_well:
        raise click.exceptions.Exit(_EXIT_FAILED)


def _compact_again_and_again(
    url: str, layers: CompactionLayers, options: _Unserved, interval_s: int, *, as_json: bool
) -> NoReturn:
    """Compact what is due until a signal ends it. The turns are in the log. Raises KeyboardInterrupt, and
    what the opening of the store does."""
    from stratalog.base.clock import SystemClock

    log_to_stderr("info", click.get_current_context().find_root().params["log_format"])
    compactor = StandingCompactor(SystemClock())
    with (
        serving_metrics(compactor, options.metrics_listen, is_insecure=options.is_insecure),
        store_compaction(url, layers, state=options.state) as store,
    ):
        compactor.metrics.compaction = store
        while not store.is_stopped:
            run = compactor.turn(partial(store.run, ()))
            # The log says once what is left alone.
            if run is not None and any(job.input_count for job in run.result.jobs):
                print_run(store, run.result, (), is_idle_shown=False, as_json=as_json)
            if not store.is_stopped:
                store.clock.sleep(interval_s)
    raise KeyboardInterrupt


def print_run(
    store: StoreCompaction,
    result: values.CompactionResult,
    topics: tuple[str, ...],
    *,
    is_idle_shown: bool,
    as_json: bool,
) -> None:
    """Print the jobs that ran; without any why there is none, if that is asked for."""
    if as_json and (result.jobs or is_idle_shown):
        print_json([value_document(job) for job in result.jobs])
    elif result.jobs:
        _print_jobs(result)
    elif is_idle_shown:
        _print_idle(store.plan(topics).planned.idle_topics)


def _print_jobs(result: values.CompactionResult) -> None:
    if result.jobs:
        header = "PARTITIONS,INPUTS,GETS,RESUMED,IN,READ,RECORDS IN,RECORDS OUT,OUTPUTS,PUTS,OUT,REFUSED"
        rows = [
            (job.partition_count, job.input_count, job.get_request_count, job.resumed_get_request_count,
             ByteSize(job.input_bytes), ByteSize(job.read_bytes), job.input_record_count,
             job.output_record_count, job.output_count, job.put_request_count,
             ByteSize(job.output_bytes), _refusal(job))
            for job in result.jobs
        ]  # fmt: skip
        print_table(header.split(","), rows)
        print_rest(len(result.jobs), result.job_count, "job")


class _Price(click.FloatRange):
    """A price in US dollars."""

    name = "dollars"

    def __init__(self) -> None:
        super().__init__(min=0.0, max=1e6)


@compaction.command()
@click.argument("topics", nargs=-1)
@click.option("--runs", "shows_runs", is_flag=True, help="Show the partitions of each job.")
@click.option("--get-price", type=_Price(), help="1,000 GET requests; default: the server's setting.")
@click.option("--put-price", type=_Price(), help="1,000 PUT requests; default: the server's setting.")
@click.option("--storage-price", type=_Price(), help="A GiB in a month; default: the server's setting.")
@json_option
@server_option
def plan(
    topics: tuple[str, ...],
    shows_runs: bool,
    get_price: float | None,
    put_price: float | None,
    storage_price: float | None,
    as_json: bool,
    server: str,
) -> None:
    """Show the jobs that a compaction would run.

    Each has its requests, bytes and price; topics without a job have the reason.

    Prices are US dollars. Those of requests are without the few of each commit. WRITTEN is an estimate: of a
    compacted partition as many records stay for each offset as in its first slice, but of no slice more than
    it has keys. SAVED is the price of the freed bytes in a month.

    \b
    Examples:
      stratalog compaction plan orders
      stratalog compaction plan --get-price 0 --put-price 0.0045
    """
    planned = with_client(server, lambda client: client.admin.plan_compaction(topics))
    prices = planned.prices._replace(
        **{
            name: price
            for name, price in (
                ("get_dollars", get_price),
                ("put_dollars", put_price),
                ("storage_dollars", storage_price),
            )
            if price is not None
        }
    )
    print_plan(planned._replace(prices=prices), shows_runs=shows_runs, as_json=as_json)


def print_plan(planned: values.CompactionPlan, *, as_json: bool, shows_runs: bool = False) -> None:
    """Print the jobs with their costs, and why the other topics have none."""
    prices = planned.prices
    costs = [job.cost for job in planned.jobs]
    if as_json:
        document = value_document(planned)
        total = values.CompactionCost(*map(sum, zip(*costs, strict=True))) if costs else None
        print_json(
            {
                **document,
                "job_prices": [_price_document(cost, prices) for cost in costs],
                "total": None if total is None else value_document(total),
                "total_price": None if total is None else _price_document(total, prices),
            }
        )
        return
    if planned.jobs:
        _print_costs(planned, prices)
        if shows_runs:
            _print_runs(planned)
    _print_idle(planned.idle_topics, is_idle=not planned.jobs)


def _print_costs(planned: values.CompactionPlan, prices: values.StorePrices) -> None:
    costs = [job.cost for job in planned.jobs]
    total = values.CompactionCost(*map(sum, zip(*costs, strict=True)))
    rows = [
        (str(number), str(job.reason), len(job.input_names), len(job.runs), job.cost)
        for number, job in enumerate(planned.jobs, 1)
    ]
    rows.append(("all", "", sum(row[2] for row in rows), sum(row[3] for row in rows), total))
    print_table(
        ("JOB", "WHY", "OBJECTS", "PARTITIONS", "GETS", "PUTS", "READ", "WRITTEN", "FREED", "PRICE", "SAVED"),
        [
            (
                job,
                why,
                object_count,
                partition_count,
                cost.get_request_count,
                cost.put_request_count,
                ByteSize(cost.read_bytes),
                ByteSize(cost.written_bytes),
                _signed(cost.freed_bytes),
                f"${_request_dollars(cost, prices):.6f}",
                f"${_saved_dollars(cost, prices):.6f}",
            )
            for job, why, object_count, partition_count, cost in rows
        ],
    )


def _print_runs(planned: values.CompactionPlan) -> None:
    print_table(
        ("JOB", "PARTITION", "OFFSETS", "SLICES", "SIZE OF THESE", "RECORDS"),
        [
            (
                number,
                f"{one.topic}-{one.partition}",
                f"{one.base_offset}-{one.end_offset}",
                one.slice_count,
                ByteSize(one.size_bytes),
                "last of each key" if one.compacted else "all",
            )
            for number, job in enumerate(planned.jobs, 1)
            for one in job.runs
        ],
    )


def _price_document(cost: values.CompactionCost, prices: values.StorePrices) -> dict[str, float]:
    return {
        "request_dollars": _request_dollars(cost, prices),
        "saved_dollars_a_month": _saved_dollars(cost, prices),
    }


def _request_dollars(cost: values.CompactionCost, prices: values.StorePrices) -> float:
    gets, puts = cost.get_request_count, cost.put_request_count
    return (gets * prices.get_dollars + puts * prices.put_dollars) / 1000


def _saved_dollars(cost: values.CompactionCost, prices: values.StorePrices) -> float:
    return cost.freed_bytes * prices.storage_dollars / (1 << 30)


def _signed(size_bytes: int) -> str:
    return str(ByteSize(size_bytes)) if size_bytes >= 0 else f"-{ByteSize(-size_bytes)}"


@compaction.command()
@click.option("--follow", "follows", is_flag=True, help="Show the progress of the first one until its end.")
@compactor_option
@json_option
@server_option
def status(follows: bool, state_dir: str, as_json: bool, server: str) -> None:
    """Show running compactions and the partitions left alone.

    Of these the first ones are shown, the longest left alone first; `stratalog compaction excluded` shows
    all. --json has the compactions only.

    \b
    Examples:
      stratalog compaction status
      stratalog compaction status --follow
      stratalog compaction status --state-dir /srv/compactor
    """
    if follows and state_dir:
        raise click.UsageError("--follow is for a server")

    async def status_(client: Client) -> tuple[list[values.Operation], Sequence[values.ExcludedPartition]]:
        running = await _running(client)
        shown = [await follow(client, one) for one in running[:1]] if follows else running
        return shown, () if as_json else await client.admin.excluded_partitions()

    left_alone: Sequence[values.ExcludedPartition]
    found: Sequence[values.Operation]
    failed: Sequence[FailedShard] = ()
    if state_dir:
        state = _state_in(state_dir)
        found, left_alone = state.operations(), () if as_json else state.excluded()
        failed = state.failed_shards()
    else:
        found, left_alone = with_client(server, status_)
    if as_json:
        print_json([operation_document(one) for one in found])
    elif found:
        print_table(
            ("ID", "STATE", "STARTED", "TOPICS", "JOBS", "PARTITIONS", "READ", "OF", "WRITTEN", "KEPT",
             "DROPPED", "GETS", "RESUMED", "PUTS", "ELAPSED", "LEFT"),
            [(one.operation_id, one.state, utc_time(one.start_time_ms), ",".join(one.topics) or None,
              *_cells(one.progress.compaction)) for one in found],
        )  # fmt: skip
    else:
        click.echo("no compaction runs")
    if left_alone:
        longest = sorted(left_alone, key=lambda one: one.since_ms)[:_SHOWN_COUNT]
        _print_exclusions(longest)
        print_rest(len(longest), len(left_alone), "partition")
    _print_failed_shards(failed, as_json=as_json)


def _cells(found: values.CompactionProgress | None) -> Sequence[Cell]:
    """The progress as cells of a table."""
    if found is None:
        return [None] * 12
    return [
        f"{found.done_job_count:,} of {found.job_count:,}",
        f"{found.done_partition_count:,} of {found.partition_count:,}",
        str(ByteSize(found.read_bytes)),
        str(ByteSize(found.planned_read_bytes)),
        str(ByteSize(found.written_bytes)),
        found.kept_record_count,
        found.dropped_record_count,
        found.get_request_count,
        found.resumed_get_request_count,
        found.put_request_count,
        duration(found.elapsed_ms),
        duration(found.remaining_ms) if found.remaining_ms >= 0 else None,
    ]


@compaction.command()
@json_option
@server_option
def cancel(as_json: bool, server: str) -> None:
    """End the compactions that run or wait, periodic ones included.

    Jobs that were committed stay, and the one at work has not happened. The next periodic compaction of the
    shard comes after `remote.compaction.retry.backoff.ms`.

    \b
    Example: stratalog compaction cancel
    """

    async def cancel_(client: Client) -> list[values.Operation]:
        return [await client.operations.cancel(one.operation_id) for one in await _running(client)]

    asked = with_client(server, cancel_)
    if as_json:
        print_json([operation_document(one) for one in asked])
    else:
        for one in asked:
            click.echo(f"operation {one.operation_id} was asked to end")
        if not asked:
            click.echo("no compaction runs")


async def _running(client: Client) -> list[values.Operation]:
    """The compactions that run or wait, the first one first."""
    kinds, states = [values.OperationKind.COMPACTION], [values.OperationState.RUNNING]
    return (await client.operations.list(kinds, states))[::-1]


@compaction.command()
@compactor_option
@json_option
@server_option
def excluded(state_dir: str, as_json: bool, server: str) -> None:
    """Show partitions that are left alone, and why.

    Each compactor has its own, and a server is one. One without a server has them in its --state-dir, with
    the shards that it cannot compact.

    \b
    Examples:
      stratalog compaction excluded
      stratalog compaction excluded --state-dir /srv/compactor
    """
    failed: Sequence[FailedShard] = ()
    if state_dir:
        state = _state_in(state_dir)
        found, failed = state.excluded(), state.failed_shards()
    else:
        found = with_client(server, lambda client: client.admin.excluded_partitions())
    if as_json:
        print_json([value_document(one) for one in found])
    elif found:
        _print_exclusions(found)
    elif not failed:
        click.echo("no partition is excluded")
    _print_failed_shards(failed, as_json=as_json)


def _print_failed_shards(failed: Sequence[FailedShard], *, as_json: bool) -> None:
    """Print the shards that are not compacted; beside JSON, which has partitions alone, as lines on standard
    error."""
    if as_json:
        for one in failed:
            print_error(f"shard {one.shard} is not compacted since {utc_time(one.since_ms)}: {one.reason}")
    elif failed:
        print_table(
            ("SHARD", "SINCE", "REASON"), [(one.shard, utc_time(one.since_ms), one.reason) for one in failed]
        )


def _print_exclusions(found: Iterable[values.ExcludedPartition]) -> None:
    print_table(
        ("EXCLUDED", "FAILURES", "SINCE", "UNTIL", "REASON"),
        [
            (
                f"{one.topic or one.topic_id}-{one.partition}",
                one.failure_count,
                utc_time(one.since_ms),
                utc_time(one.until_ms),
                one.reason,
            )
            for one in found
        ],
    )


@compaction.command()
@click.argument("topic")
@click.option("--partition", type=PARTITION, required=True)
@compactor_option
@json_option
@server_option
def reset(topic: str, partition: int, state_dir: str, as_json: bool, server: str) -> None:
    """Let compaction try a partition of TOPIC again that failed.

    \b
    Examples:
      stratalog compaction reset orders --partition 0
      stratalog compaction reset orders --partition 0 --state-dir /srv/compactor
    """

    async def reset_(client: Client) -> bool:
        return await client.admin.reset_excluded_partition(topic, partition)

    if state_dir:
        was_excluded = _state_in(state_dir).reset(topic, partition)
    else:
        was_excluded = with_client(server, reset_)
    if as_json:
        print_json({"was_excluded": was_excluded})
    elif was_excluded:
        click.echo(f"the next compaction tries {topic}-{partition} again")
    else:
        click.echo(f"{topic}-{partition} was not excluded because of a failure")


def _state_in(directory: str) -> CompactorState:
    """The state of a compactor without a server."""
    from stratalog.base.clock import SystemClock
    from stratalog.base.posix_filesystem import PosixFileSystem

    return CompactorState(PosixFileSystem(), SystemClock(), os.path.abspath(directory))


def _refusal(job: values.CompactionJob) -> str | None:
    """The reason if the job was refused, or the reasons of the partitions that it left unchanged."""
    partitions = [f"{one.topic_id}:{one.partition}: {one.reason}" for one in job.refused_partitions]
    left_count = job.refused_partition_count - len(partitions)
    more = [f"{counted(left_count, 'partition')} more"] if left_count else []
    return job.reason or "; ".join([*partitions, *more]) or None


def _print_idle(topics: Iterable[values.IdleTopic], *, is_idle: bool = True) -> None:
    """Print the topics without a job, by the reason."""
    names_by_reason: dict[str, list[str]] = {}
    for one in topics:
        names_by_reason.setdefault("; ".join(one.reasons), []).append(one.topic)
    if is_idle:
        click.echo("nothing to compact")
    for reason, names in names_by_reason.items():
        click.echo(f"  {', '.join(names)}: {reason}")
