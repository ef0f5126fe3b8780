"""`stratalog compaction`: compact tiered data now."""

from __future__ import annotations

import click

from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import message_document, print_json, print_table
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
    jobs = with_client(server, lambda client: client.admin.run_compaction(topics))
    if as_json:
        print_json([message_document(job) for job in jobs])
    elif not jobs:
        click.echo("nothing to compact")
    else:
        header = "PARTITIONS,INPUTS,GETS,BYTES IN,BYTES READ,RECORDS IN,RECORDS OUT,OUTPUTS,BYTES OUT,REFUSED"
        rows = [
            (job.partition_count, job.input_count, job.get_request_count, job.input_bytes, job.read_bytes,
             job.input_record_count, job.output_record_count, job.output_count, job.output_bytes,
             _refusal(job))
            for job in jobs
        ]  # fmt: skip
        print_table(header.split(","), rows)


def _refusal(job: admin_pb2.CompactionJob) -> str | None:
    """The reason if the job was refused, or the reasons of the partitions that it left unchanged."""
    partitions = (f"{one.topic_id}:{one.partition}: {one.reason}" for one in job.refused_partitions)
    return job.reason or "; ".join(partitions) or None
