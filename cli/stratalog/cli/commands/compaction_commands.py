"""`stratalog compaction`: compact tiered data now."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import message_document, print_json, print_table
from stratalog.cli.topic_traits import is_compacted, is_tiered
from stratalog.client.client import Client
from stratalog.v1 import admin_pb2


@click.group()
def compaction() -> None:
    """Compact tiered data now."""


@compaction.command()
@click.argument("topics", nargs=-1)
@json_option
@server_option
def run(topics: tuple[str, ...], as_json: bool, server: str) -> None:
    """Compact the tiered data of TOPICS, or of all topics."""
    if as_json:
        jobs = with_client(server, lambda client: client.admin.run_compaction(topics))
        print_json([message_document(job) for job in jobs])
        return
    jobs, idle = with_client(server, lambda client: _run(client, topics))
    if jobs:
        header = "PARTITIONS,INPUTS,GETS,IN,READ,RECORDS IN,RECORDS OUT,OUTPUTS,OUT,REFUSED"
        rows = [
            (job.partition_count, job.input_count, job.get_request_count, ByteSize(job.input_bytes),
             ByteSize(job.read_bytes), job.input_record_count, job.output_record_count, job.output_count,
             ByteSize(job.output_bytes), _refusal(job))
            for job in jobs
        ]  # fmt: skip
        print_table(header.split(","), rows)
        return
    click.echo("nothing to compact")
    for reason, names in idle.items():
        click.echo(f"  {', '.join(names)}: {reason}")


def _refusal(job: admin_pb2.CompactionJob) -> str | None:
    """The reason if the job was refused, or the reasons of the partitions that it left unchanged."""
    partitions = (f"{one.topic_id}:{one.partition}: {one.reason}" for one in job.refused_partitions)
    return job.reason or "; ".join(partitions) or None


async def _run(
    client: Client, topics: Sequence[str]
) -> tuple[list[admin_pb2.CompactionJob], dict[str, list[str]]]:
    """The jobs that were done; without any, the topics by the reason why there is nothing to do."""
    jobs = await client.admin.run_compaction(topics)
    names_by_reason: dict[str, list[str]] = {}
    for topic in [] if jobs else await client.admin.describe_topics(topics):
        logs = await client.admin.describe_log(topic.name) if is_tiered(topic) else []
        reason = _reason(topic, logs, is_named=topic.name in topics)
        names_by_reason.setdefault(reason, []).append(topic.name)
    return jobs, names_by_reason


def _reason(topic: admin_pb2.Topic, logs: Sequence[admin_pb2.PartitionLog], *, is_named: bool) -> str:
    """Why there is nothing to compact in a topic."""
    if not is_tiered(topic):
        return "not tiered; the log cleaner of the server cleans it if it is compacted"
    if not any(log.slice_count for log in logs):
        return "no records in the object store; `stratalog tier upload` uploads them now"
    if not is_compacted(topic):
        return "cleanup.policy is delete; only small objects are merged, and there are too few"
    if not is_named:
        return "compacted already, or not due; a topic that is named is compacted whether it pays or not"
    return "compacted already"
