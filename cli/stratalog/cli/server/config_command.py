"""`stratalog server config`: the effective settings of a start, with their sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from stratalog.cli.options import json_option
from stratalog.cli.output import print_json, print_table
from stratalog.cli.server.settings_options import exit_for_faults, given_settings, settings_options
from stratalog.server.configuration.broker_config import UpdateMode
from stratalog.server.configuration.config_entry import ConfigLayers
from stratalog.server.configuration.setting import Value
from stratalog.server.configuration.settings_table import SETTINGS
from stratalog.server.configuration.start_settings import SettingSource, Sourced, StartSettings

_DEFAULT = Sourced("", SettingSource.DEFAULT, "")


class _Row(NamedTuple):
    """A setting, or a key of the broker, as it is shown."""

    name: str
    value: Value | None
    source: SettingSource
    place: str
    """The option, the variable or the file that sets it; empty for a default."""
    is_alterable: bool
    """Whether it may be altered while the server runs."""


@click.command()
@settings_options
@click.option("--example", is_flag=True, help="Print a file for --config-file with all defaults, and end.")
@json_option
def config(example: bool, as_json: bool, **given: Any) -> None:
    """Show the settings of a start, and their sources.

    They are those that `stratalog server start` would have with these options. It starts nothing and asks no
    server. A source is an option, a variable of the environment, the file of
    --config-file, or the default. Keys of the broker that may change at run time may have been altered:
    `stratalog config describe --broker` shows the values of a running server. Secrets are not shown.

    Exit code: 0 the settings are valid, 1 or 2 with one line for each fault.

    \b
    Examples:
      stratalog server config --config-file /etc/stratalog/stratalog.toml
      stratalog server config --example
    """
    if example:
        from stratalog.server.configuration.settings_example import settings_example

        click.echo(settings_example(), nl=False)
        return
    resolved = given_settings(given)
    exit_for_faults(resolved)
    rows = [*_settings(resolved), *_keys(resolved)]
    if as_json:
        print_json([{**row._asdict(), "source": row.source.value} for row in rows])
        return
    print_table(
        ("NAME", "VALUE", "SOURCE", "MAY CHANGE"),
        [
            (
                row.name,
                _cell(row.value),
                row.place or row.source.value,
                "at any time" if row.is_alterable else "at a start",
            )
            for row in rows
        ],
    )


def _settings(resolved: StartSettings) -> Iterator[_Row]:
    assert resolved.settings is not None, "there are no faults"
    for name, (value, source, place) in resolved.values.items():
        shown = resolved.settings.effective_store_url if name == "store" else value
        yield _Row(name, SETTINGS[name].shown(shown), source, place, is_alterable=False)


def _keys(resolved: StartSettings) -> Iterator[_Row]:
    """The keys of the broker. One that takes its value from another key has the source of that key."""
    for entry in ConfigLayers(resolved.config_texts, {}).entries():
        setter = entry.synonyms[0].name if entry.synonyms else entry.name
        _, source, place = resolved.config.get(setter, _DEFAULT)
        is_alterable = entry.update_mode is not UpdateMode.READ_ONLY
        yield _Row(entry.name, entry.value, source, place, is_alterable=is_alterable)


def _cell(value: Value | None) -> str | None:
    match value:
        case None | "" | ():
            return None
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)
