"""`stratalog compaction`: compact tiered data now."""

from __future__ import annotations

import click

from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import message_document, print_json, print_table


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
            (job.partitions, job.inputs, job.get_requests, job.input_bytes, job.bytes_read, job.records_in,
             job.records_out, job.outputs, job.output_bytes, job.refused or None)
            for job in jobs
        ]  # fmt: skip
        print_table(header.split(","), rows)
