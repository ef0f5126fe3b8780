"""`stratalog spark compact`: compaction whose jobs run on Spark's executors."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from stratalog.cli.commands.compaction_commands import (
    ASSUMPTION,
    config_of_servers,
    exit_unless_well,
    print_run,
    print_store_plan,
)
from stratalog.cli.interrupts import interrupted_by_signals
from stratalog.cli.options import config_option, json_option
from stratalog.cli.spark.options import spark_options
from stratalog.cli.spark.spark_job import spark_job
from stratalog.cli.store_access.store_compaction import (
    CompactionLayers,
    JobsElsewhere,
    StoreCompaction,
    StoreRun,
    store_compaction,
)
from stratalog.client import values

if TYPE_CHECKING:
    from stratalog.pipeline.jobs.task_place import ExecutorPlace

_PARTITION_BYTES = 256 << 30


@click.command()
@click.argument("topics", nargs=-1)
@spark_options
@click.option("--dry-run", is_flag=True, help="Show the jobs that it would run, as `compaction plan` does.")
@click.option(
    "--jobs-at-once",
    type=click.IntRange(1, 1024),
    metavar="NUMBER",
    help="Jobs at the same time. Default: the cores of the executors.",
)
@click.option(
    "--config-file",
    default="",
    metavar="FILE",
    help="The configuration file that the servers of the store are started with.",
)
@config_option(
    text="Set a key remote.compaction.* for this command, stronger than the servers' value; may be repeated."
)
@json_option
def compact(
    topics: tuple[str, ...],
    store_url: str,
    master: str,
    conf: Mapping[str, str],
    dry_run: bool,
    jobs_at_once: int | None,
    config_file: str,
    config: dict[str, str],
    as_json: bool,
) -> None:
    """Compact tiered data with all executors.

    It does what `stratalog compaction run --store` does, with the same plan, the same checks and the same
    commits, until nothing is left to do. Each job is a task, and many run at the same time. A partition with
    more data than a job may read (remote.compaction.job.max.bytes) is compacted by many tasks: they merge its
    keys by ranges of the hash, and then each writes one slice of the output. Executors need scratch space as
    a server does.

    Data of TOPICS are compacted whether it pays or not. Without TOPICS it does what is due.

    A task that fails or runs twice leaves objects that no commit names; the servers of the store collect
    them. Ctrl-C ends it: jobs that were committed stay, and those at work have not happened.

    Exit code: 0 done, 1 a job failed or could not be planned, 130 interrupted.

    \b
    Examples:
      stratalog spark compact orders --store s3://bucket/prefix --master local[4]
      stratalog spark compact --store s3://bucket/prefix --dry-run
    """
    from stratalog.pipeline.jobs.shard_view import open_view
    from stratalog.pipeline.jobs.task_place import ExecutorPlace

    if not config_file:
        click.echo(f"warning: {ASSUMPTION}", err=True)
    layers = CompactionLayers(config_of_servers(config_file), config)
    layers.check()
    if dry_run:
        with (
            interrupted_by_signals(),
            store_compaction(store_url, layers, JobsElsewhere(None, 1, _PARTITION_BYTES)) as store,
        ):
            print_store_plan(store.plan(topics), as_json=as_json)
        return
    place = ExecutorPlace(store_url)
    with place() as means:
        open_view(means).topics(topics)
    with _on_spark(place, layers, master, conf, jobs_at_once) as store:
        run = _run_to_end(store, topics)
        print_run(store, run.result, topics, is_idle_shown=True, as_json=as_json)
    exit_unless_well(run)


@contextmanager
def _on_spark(
    place: ExecutorPlace,
    layers: CompactionLayers,
    master: str,
    conf: Mapping[str, str],
    jobs_at_once: int | None,
) -> Generator[StoreCompaction]:
    """The compaction of a store whose jobs go to the executors."""
    from stratalog.pipeline.jobs.cluster_executions import ClusterExecutions

    with spark_job("compact", master, conf) as cluster:
        # Several threads use the cluster, so it starts here.
        lane_count = cluster.lane_count
        count = jobs_at_once or lane_count
        with ClusterExecutions(cluster, place, jobs_at_once=count) as executions:
            elsewhere = JobsElsewhere(executions.execution, count, _PARTITION_BYTES)
            with store_compaction(place.store_url, layers, elsewhere) as store:
                yield store


def _run_to_end(store: StoreCompaction, topics: Sequence[str]) -> StoreRun:
    """Compact again and again, because a plan takes each object once. Returns all jobs with the outcome of
    the last ones. It ends, too, if none is committed."""
    jobs: tuple[values.CompactionJob, ...] = ()
    job_count = 0
    while True:
        run = store.run(topics)
        jobs += run.result.jobs
        job_count += run.result.job_count
        if store.is_stopped:
            raise KeyboardInterrupt
        if not run.is_well or not any(job.partition_count for job in run.result.jobs):
            return run._replace(result=run.result._replace(jobs=jobs, job_count=job_count))
