"""`stratalog config`: show the configuration of topics and of the server, and alter the server's."""

from __future__ import annotations

import click

from stratalog.cli.config_changes import change_options, changes_of
from stratalog.cli.config_entries import print_entries
from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, server_option


@click.group()
def config() -> None:
    """Show configurations, and alter the server's.

    A key may have several values. The first of these wins: the value of the topic; the value that was set for
    the running server; the value from the start of the server (--config, then STRATALOG_CONFIG, then
    --config-file); the default.
    `stratalog topic alter` alters a topic.
    """


@config.command()
@click.argument("names", nargs=-1, metavar="[TOPIC] [KEY]...")
@click.option("--broker", is_flag=True, help="Show the server's configuration, without a TOPIC.")
@click.option("--synonyms", is_flag=True, help="Also print the sources behind each value.")
@json_option
@server_option
def describe(names: tuple[str, ...], broker: bool, synonyms: bool, as_json: bool, server: str) -> None:
    """Show keys, or all: value, source, and when it may change.

    `describe TOPIC` shows a topic, `describe --broker` the server.

    \b
    Example: stratalog config describe orders retention.ms --synonyms
    """
    if not broker and not names:
        raise click.UsageError("give TOPIC, or --broker for the server's configuration")
    topic, keys = (None, names) if broker else (names[0], names[1:])
    entries = with_client(server, lambda client: client.admin.describe_configs(topic, keys))
    print_entries(entries, as_json=as_json, with_synonyms=synonyms)


@config.command()
@click.option("--broker", is_flag=True, help="Alter the server; required.")
@change_options
@json_option
@server_option
def alter(
    broker: bool,
    add: dict[str, str],
    deleted: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    server: str,
) -> None:
    """Change keys of the server, and show the result.

    The keys are kept in the object store, and change all or nothing. cordoned.log.dirs is kept in the log
    directories, and changes in one after the other: if a disk refuses it, the error names the directories
    that have changed. `stratalog topic alter TOPIC` changes a topic.

    \b
    Example: stratalog config alter --broker --add log.cleaner.threads=2
    """
    if not broker:
        raise click.UsageError("give --broker for the server; `stratalog topic alter TOPIC` alters a topic")
    changes = changes_of(add, deleted)
    entries = with_client(server, lambda client: client.admin.alter_configs(changes, validate_only=dry_run))
    print_entries(entries, as_json=as_json)
