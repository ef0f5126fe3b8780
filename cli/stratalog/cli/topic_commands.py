"""`stratalog topic`: create, list, describe and delete topics."""

from __future__ import annotations

import click

from stratalog.cli.config_option import config_option
from stratalog.cli.connection import json_option, server_option, with_client
from stratalog.cli.int_ranges import PARTITION_COUNT
from stratalog.cli.output import counted, message_document, print_json, print_offline, print_table


@click.group()
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--partitions", type=PARTITION_COUNT, help="Default: as the server says.")
@config_option()
@json_option
@server_option
def create(name: str, partitions: int | None, config: dict[str, str], as_json: bool, server: str) -> None:
    """Create the topic NAME."""
    created = with_client(server, lambda client: client.admin.create_topic(name, partitions or 0, config))
    if as_json:
        print_json(message_document(created))
    else:
        click.echo(f"created {created.name} with {counted(created.partition_count, 'partition')}")


@topic.command(name="list")
@json_option
@server_option
def list_topics(as_json: bool, server: str) -> None:
    """List all topics."""
    topics = with_client(server, lambda client: client.admin.list_topics())
    if as_json:
        print_json([message_document(entry) for entry in topics])
        return
    rows = [
        (entry.name, entry.partition_count, _config_text(dict(entry.config_overrides)), entry.topic_id)
        for entry in topics
    ]
    print_table(("TOPIC", "PARTITIONS", "CONFIG", "ID"), rows)


@topic.command()
@click.argument("names", nargs=-1)
@json_option
@server_option
def describe(names: tuple[str, ...], as_json: bool, server: str) -> None:
    """Show the configuration in force of the named topics, or of all."""
    topics = with_client(server, lambda client: client.admin.describe_topics(names))
    if as_json:
        print_json([message_document(entry) for entry in topics])
        return
    for entry in topics:
        click.echo(f"{entry.name}  id {entry.topic_id}  {counted(entry.partition_count, 'partition')}")
        print_offline(entry.offline_partitions)
        rows = [
            (name, value, "set" if name in entry.config_overrides else "default")
            for name, value in sorted(entry.config.items())
        ]
        print_table(
            ("  KEY", "VALUE", "FROM"), [("  " + name, value, source) for name, value, source in rows]
        )


@topic.command()
@click.argument("name")
@server_option
def delete(name: str, server: str) -> None:
    """Delete the topic NAME and all its records, in every tier."""
    left_over = with_client(server, lambda client: client.admin.delete_topic(name))
    click.echo(f"deleted {name}")
    for path in left_over:
        click.echo(f"note: {path} cannot be deleted now; a start of the server that can do so deletes it")


def _config_text(config: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(config.items())) or "-"
