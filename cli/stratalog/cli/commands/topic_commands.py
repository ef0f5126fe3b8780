"""`stratalog topic`: create, list, describe and delete topics."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION_COUNT
from stratalog.cli.options import config_option, json_option, server_option
from stratalog.cli.output import counted, message_document, print_json, print_offline, print_table
from stratalog.v1 import admin_pb2

if TYPE_CHECKING:
    from stratalog.client.client import Client

_FROM = {
    admin_pb2.CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG: "topic",
    admin_pb2.CONFIG_SOURCE_DYNAMIC_BROKER_CONFIG: "server",
    admin_pb2.CONFIG_SOURCE_STATIC_BROKER_CONFIG: "server",
    admin_pb2.CONFIG_SOURCE_DEFAULT_CONFIG: "default",
}
"""The sources of a value, for people."""
_DEFAULT = _FROM[admin_pb2.CONFIG_SOURCE_DEFAULT_CONFIG]


@click.group()
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", type=PARTITION_COUNT, help="Number of partitions. Default: the server's.")
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is, without an error.")
@config_option()
@json_option
@server_option
def create(
    name: str,
    partitions: int | None,
    if_not_exists: bool,
    config: dict[str, str],
    as_json: bool,
    server: str,
) -> None:
    """Create TOPIC."""
    created = with_client(
        server,
        lambda client: client.admin.create_topic(name, partitions or 0, config, exists_ok=if_not_exists),
    )
    if as_json:
        print_json(message_document(created))
    else:
        partition_text = counted(created.partition_count, "partition")
        click.echo(f"{created.name} {'exists' if if_not_exists else 'is created'} with {partition_text}")


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
@click.argument("names", nargs=-1, metavar="[TOPIC]...")
@click.option("--all", "shows_defaults", is_flag=True, help="Also show the keys that have their defaults.")
@json_option
@server_option
def describe(names: tuple[str, ...], shows_defaults: bool, as_json: bool, server: str) -> None:
    """Show the configuration of topics and the source of values.

    Shows these topics, or all of them: the keys that were set for the topic or the server, then, with --all,
    those that have their defaults. JSON always has all keys.
    """
    if as_json:
        topics = with_client(server, lambda client: client.admin.describe_topics(names))
        print_json([message_document(entry) for entry in topics])
        return
    described = with_client(server, lambda client: _with_sources(client, names))
    for entry, sources in described:
        click.echo(f"{entry.name}  id {entry.topic_id}  {counted(entry.partition_count, 'partition')}")
        print_offline(entry.offline_partitions)
        rows = [
            ("  " + name, value, sources.get(name, _DEFAULT)) for name, value in sorted(entry.config.items())
        ]
        set_rows = [row for row in rows if row[2] != _DEFAULT]
        defaults = [row for row in rows if row[2] == _DEFAULT]
        shown = [*set_rows, *defaults] if shows_defaults else set_rows
        if shown:
            print_table(("  KEY", "VALUE", "FROM"), shown)
        if defaults and not shows_defaults:
            click.echo(f"  {counted(len(defaults), 'more key')}, with defaults; --all shows them")


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--yes", is_flag=True, help="Do not ask. Required if standard input is no terminal.")
@server_option
def delete(name: str, yes: bool, server: str) -> None:
    """Delete TOPIC and all its records, in every tier."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"deleting {name} needs a confirmation; give --yes if you are sure")
        if not click.confirm(f"Delete {name} and all its records, in every tier?"):
            raise click.ClickException(f"not confirmed, {name} is not deleted")
    left_over = with_client(server, lambda client: client.admin.delete_topic(name))
    click.echo(f"deleted {name}")
    for path in left_over:
        click.echo(f"note: {path} cannot be deleted now; a later start of the server deletes it")


async def _with_sources(
    client: Client, names: Sequence[str]
) -> list[tuple[admin_pb2.Topic, Mapping[str, str]]]:
    """The topics, and for each of their keys who set it. One that is offline for its configuration has none
    in force.
    """
    described: list[tuple[admin_pb2.Topic, Mapping[str, str]]] = []
    for topic in await client.admin.describe_topics(names):
        entries = await client.admin.describe_configs(topic.name) if topic.config else []
        described.append((topic, {entry.name: _FROM[entry.source] for entry in entries}))
    return described


def _config_text(config: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(config.items())) or "-"
