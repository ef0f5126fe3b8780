"""`stratalog topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from stratalog.cli.config_changes import change_options, changes_of
from stratalog.cli.config_entries import print_entries
from stratalog.cli.connection import with_client
from stratalog.cli.int_ranges import PARTITION_COUNT
from stratalog.cli.options import config_option, json_option, server_option
from stratalog.cli.output import counted, print_json, print_offline, print_table, value_document
from stratalog.cli.partition_skew import skew_text

if TYPE_CHECKING:
    from stratalog.client import values
    from stratalog.client.client import Client

_FROM = {"DYNAMIC_TOPIC_CONFIG": "topic", "DYNAMIC_BROKER_CONFIG": "server", "STATIC_BROKER_CONFIG": "server"}
"""The sources of a value, for people. All others are defaults."""
_DEFAULT = "default"


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


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
    """Create TOPIC.

    \b
    Example: stratalog topic create orders --partitions 12 --config retention.ms=-1
    """
    created = with_client(
        server,
        lambda client: client.admin.create_topic(name, partitions or 0, config, exists_ok=if_not_exists),
    )
    if as_json:
        print_json(value_document(created))
    else:
        partition_text = counted(created.partition_count, "partition")
        click.echo(f"{created.name} {'exists' if if_not_exists else 'is created'} with {partition_text}")


@topic.command(name="list")
@json_option
@server_option
def list_topics(as_json: bool, server: str) -> None:
    """List all topics.

    CONFIG has the keys that are set for the topic.

    \b
    Example: stratalog topic list
    """
    topics = with_client(server, lambda client: client.admin.list_topics())
    if as_json:
        print_json([value_document(entry) for entry in topics])
        return
    rows = [
        (entry.name, entry.partition_count, _config_text(entry.config_overrides), entry.topic_id)
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
    those that have their defaults. JSON always has all keys. The skew compares the largest partition with the
    mean.

    \b
    Example: stratalog topic describe orders --all
    """
    if as_json:
        topics = with_client(server, lambda client: client.admin.describe_topics(names))
        print_json([value_document(entry) for entry in topics])
        return
    for described in with_client(server, lambda client: _described(client, names)):
        entry, sources = described.topic, described.sources
        click.echo(f"{entry.name}  id {entry.topic_id}  {counted(entry.partition_count, 'partition')}")
        print_offline(entry.offline_partitions)
        if left_count := entry.offline_partition_count - len(entry.offline_partitions):
            click.echo(f"  {left_count} more are offline; `stratalog log describe {entry.name}` has all")
        if text := skew_text(described.logs):
            click.echo(f"  {text}")
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
@change_options
@json_option
@server_option
def alter(
    name: str, add: dict[str, str], deleted: tuple[str, ...], dry_run: bool, as_json: bool, server: str
) -> None:
    """Set and remove keys of TOPIC, and show the result.

    The keys change all or nothing, and are in force when the command ends.

    \b
    Example: stratalog topic alter orders --add retention.ms=86400000 --delete segment.ms
    """
    changes = changes_of(add, deleted)
    entries = with_client(
        server, lambda client: client.admin.alter_configs(changes, name, validate_only=dry_run)
    )
    print_entries(entries, as_json=as_json)


@topic.command(name="add-partitions")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--partitions", type=PARTITION_COUNT, required=True, help="All partitions that TOPIC has afterwards."
)
@json_option
@server_option
def add_partitions(name: str, partitions: int, as_json: bool, server: str) -> None:
    """Raise the number of partitions of TOPIC.

    Records stay where they are. A key may get another partition from then on, so records of one key may lie
    in two. Partitions are never removed.

    \b
    Example: stratalog topic add-partitions orders --partitions 24
    """
    altered = with_client(server, lambda client: client.admin.add_partitions(name, partitions))
    if as_json:
        print_json(value_document(altered))
    else:
        click.echo(f"{altered.name} has {counted(altered.partition_count, 'partition')}")


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--yes", is_flag=True, help="Do not ask. Required if standard input is no terminal.")
@server_option
def delete(name: str, yes: bool, server: str) -> None:
    """Delete TOPIC and all its records, in every tier.

    \b
    Example: stratalog topic delete orders --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"deleting {name} needs a confirmation; give --yes if you are sure")
        if not click.confirm(f"Delete {name} and all its records, in every tier?"):
            raise click.ClickException(f"not confirmed, {name} is not deleted")
    left_over = with_client(server, lambda client: client.admin.delete_topic(name))
    click.echo(f"deleted {name}")
    for path in left_over:
        click.echo(f"note: {path} cannot be deleted now; a later start of the server deletes it")


class _Described(NamedTuple):
    """A topic, for each of its keys who set it, and its partitions. A topic that is offline for its
    configuration has no key in force."""

    topic: values.Topic
    sources: Mapping[str, str]
    logs: Sequence[values.PartitionLog]


async def _described(client: Client, names: Sequence[str]) -> list[_Described]:
    described: list[_Described] = []
    for topic in await client.admin.describe_topics(names):
        entries = await client.admin.describe_configs(topic.name) if topic.config else []
        sources = {entry.name: _FROM.get(entry.source.name, _DEFAULT) for entry in entries}
        described.append(_Described(topic, sources, await client.admin.describe_log(topic.name)))
    return described


def _config_text(config: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(config.items())) or "-"
