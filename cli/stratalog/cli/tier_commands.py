"""`stratalog tier`: what the object store holds, and uploading now."""

from __future__ import annotations

import click

from stratalog.cli.connection import json_option, server_option, with_client
from stratalog.cli.output import message_document, print_json, print_table


@click.group()
def tier() -> None:
    """Look at the object store, and upload now."""


@tier.command()
@json_option
@server_option
def status(as_json: bool, server: str) -> None:
    """Show what the object store holds and how far the uploader is."""
    answer = with_client(server, lambda client: client.admin.tier_status())
    if as_json:
        print_json(message_document(answer))
    else:
        rows = [(name.replace("_", " "), str(value)) for name, value in message_document(answer).items()]
        print_table(("WHAT", "VALUE"), rows)


@tier.command()
@click.argument("topics", nargs=-1)
@click.option(
    "--delete-local", is_flag=True, help="Also delete local segments that are committed in the object store."
)
@json_option
@server_option
def upload(topics: tuple[str, ...], delete_local: bool, as_json: bool, server: str) -> None:
    """Roll the active segments of the named topics, or of all, and upload what is rolled."""
    answer = with_client(server, lambda client: client.admin.upload(topics, delete_local=delete_local))
    if as_json:
        print_json(message_document(answer))
    else:
        click.echo(
            f"uploaded {answer.slices} slices in {answer.objects} objects, {answer.bytes} bytes; "
            f"deleted {answer.local_segments_deleted} local segments"
        )
