"""`stratalog config`: show and alter the configuration of topics and of the server."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stratalog.cli.connection import with_client
from stratalog.cli.options import config_option, json_option, server_option
from stratalog.cli.output import enum_word, kafka_word, message_document, print_json, print_table
from stratalog.v1 import admin_pb2

broker_option = click.option(
    "--broker", is_flag=True, help="Use the server's configuration, without a TOPIC."
)


@click.group()
def config() -> None:
    """Show and alter the configuration of topics and of the server.

    A key may have several values. The first of these wins: the value of the topic; the value that was set for
    the running server; the value from the start of the server (--config, then --config-file); the default.
    """


@config.command()
@click.argument("names", nargs=-1, metavar="[TOPIC] [KEY]...")
@broker_option
@click.option("--synonyms", is_flag=True, help="Also print the sources behind each value.")
@json_option
@server_option
def describe(names: tuple[str, ...], broker: bool, synonyms: bool, as_json: bool, server: str) -> None:
    """Show keys, or all: value, source, and when it may change.

    `describe TOPIC` shows a topic, `describe --broker` the server.
    """
    topic, keys = (None, names) if broker else (_required(names[0] if names else None), names[1:])
    entries = with_client(server, lambda client: client.admin.describe_configs(topic, keys))
    _print(entries, as_json, synonyms)


@config.command()
@click.argument("topic", required=False)
@broker_option
@config_option("--add", text="Set this; may be repeated.")
@click.option(
    "--delete", "deleted", multiple=True, metavar="KEY", help="Remove the value that is set; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Only check the changes.")
@json_option
@server_option
def alter(
    topic: str | None,
    broker: bool,
    add: dict[str, str],
    deleted: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    server: str,
) -> None:
    """Change keys of TOPIC, or of the server, and show the result.

    Keys of topics and of the server are kept in the object store, and change all or nothing.
    cordoned.log.dirs is kept in the log directories, and changes in one after the other: if a disk refuses
    it, the error names the directories that have changed.
    """
    if broker and topic is not None:
        raise click.UsageError("give TOPIC or --broker, not both")
    topic = None if broker else _required(topic)
    changes: dict[str, str | None] = {**add, **dict.fromkeys(deleted)}
    if not changes or set(add) & set(deleted):
        raise click.UsageError("give --add KEY=VALUE or --delete KEY, each key once")
    entries = with_client(
        server, lambda client: client.admin.alter_configs(changes, topic, validate_only=dry_run)
    )
    _print(entries, as_json, is_long=False)


def _required(topic: str | None) -> str:
    if topic is None:
        raise click.UsageError("give TOPIC, or --broker for the server's configuration")
    return topic


def _print(entries: Sequence[admin_pb2.ConfigEntry], as_json: bool, is_long: bool) -> None:
    if as_json:
        print_json([_document(entry) for entry in entries])
        return
    rows = [
        (
            entry.name,
            entry.value if entry.HasField("value") else None,
            _source(entry.source),
            _update_mode(entry),
        )
        for entry in entries
    ]
    if not is_long:
        print_table(("KEY", "VALUE", "SOURCE", "UPDATE"), rows)
        return
    chains = [
        " > ".join(
            f"{synonym.name}={synonym.value} ({_source(synonym.source)})" for synonym in entry.synonyms
        )
        for entry in entries
    ]
    print_table(
        ("KEY", "VALUE", "SOURCE", "UPDATE", "SYNONYMS"),
        [(*row, chain) for row, chain in zip(rows, chains, strict=True)],
    )


def _update_mode(entry: admin_pb2.ConfigEntry) -> str:
    return enum_word(admin_pb2.ConfigUpdateMode.DESCRIPTOR, entry.update_mode)


def _source(source: admin_pb2.ConfigSource.ValueType) -> str:
    return kafka_word(admin_pb2.ConfigSource.DESCRIPTOR, source)


def _document(entry: admin_pb2.ConfigEntry) -> dict[str, object]:
    """The entry as JSON, with the sources in Kafka's words."""
    document = message_document(entry)
    document["value"] = entry.value if entry.HasField("value") else None
    document["source"] = _source(entry.source)
    document["synonyms"] = [
        {
            "name": synonym.name,
            "value": synonym.value,
            "source": _source(synonym.source),
        }
        for synonym in entry.synonyms
    ]
    return document
