"""The configuration file of a server, in TOML: settings by name, and the broker's keys in the table `config`.

    data-dir = "/var/lib/stratalog/data"
    max-silence = 30

    [config]
    log.retention.hours = 48
    "log.cleaner.threads" = 2

A dotted key of TOML is a table in a table; that is joined again, so a broker's key may have quotes or not.
All faults of a file are found at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from stratalog.base.errors import InvalidConfigError
from stratalog.log.config_key import unknown_key
from stratalog.server.configuration.broker_config import broker_key
from stratalog.server.configuration.setting import Value, toml_text
from stratalog.server.configuration.settings_table import SETTINGS

CONFIG_TABLE = "config"
"""The table of the broker's keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """The settings in a file, and its faults. Immutable."""

    path: str
    """Empty without a file."""
    values: Mapping[str, Value]
    """By the names of settings, in their units."""
    config: Mapping[str, str]
    """The broker's keys."""
    faults: tuple[InvalidConfigError, ...]
    """Keys and values that are refused, each with its name and the file; they are in none of the others."""


NO_FILE = SettingsFile(path="", values={}, config={}, faults=())


def read_settings_file(path: str) -> SettingsFile:
    """Read the file. Raises InvalidConfigError if it cannot be read or is not TOML."""
    try:
        with open(path, "rb") as file:
            document = tomllib.loads(file.read().decode())
    except (OSError, UnicodeDecodeError) as failure:
        raise InvalidConfigError(
            "the configuration file cannot be read; correct its name, or the file",
            name="config-file",
            value=path,
            reason=str(failure),
        ) from None
    except tomllib.TOMLDecodeError as failure:
        raise InvalidConfigError(
            "the configuration file is not TOML; correct the line that the reason names",
            name="config-file",
            value=path,
            reason=str(failure),
            allowed='lines of name = value, text in quotes, for example listen = "127.0.0.1:9190"',
        ) from None
    return parse_settings(document, path)


def parse_settings(document: Mapping[str, Any], path: str) -> SettingsFile:
    """The settings in a document of TOML that was read from `path`."""
    values: dict[str, Value] = {}
    config: dict[str, str] = {}
    faults: list[InvalidConfigError] = []
    for name, value in document.items():
        try:
            if name == CONFIG_TABLE:
                faults += _read_config(value, path, config)
            elif name in SETTINGS:
                values[name] = SETTINGS[name].of_file(value, path)
            else:
                raise _unknown(name, value, path)
        except InvalidConfigError as fault:
            faults.append(fault)
    return SettingsFile(path=path, values=values, config=config, faults=tuple(faults))


def _unknown(name: str, value: object, path: str) -> InvalidConfigError:
    dotted = [key for key, _ in _flat(value, name)]
    remedy = "`stratalog server config` lists the settings"
    if isinstance(value, dict):
        remedy = f"write keys such as `{dotted[0] if dotted else name}` below the line [{CONFIG_TABLE}]"
    near = unknown_key(name, None, "is not a setting of the server", (*SETTINGS, CONFIG_TABLE), remedy=remedy)
    return InvalidConfigError(near.message, **near.fields, source=path)


def _read_config(table: object, path: str, config: dict[str, str]) -> Iterator[InvalidConfigError]:
    """Add the keys of the table to `config`. Yields the faults."""
    if not isinstance(table, dict):
        raise InvalidConfigError(
            "the broker's keys are a table; write them below its name",
            name=CONFIG_TABLE,
            value=toml_text(table),
            allowed=f"a line [{CONFIG_TABLE}], and lines of key = value below it",
            source=path,
        )
    for name, value in _flat(cast("dict[str, object]", table)):
        try:
            text = _broker_text(name, value)
            if name in config:
                raise InvalidConfigError(
                    "a key is given with and without quotes; keep one", name=name, value=text
                )
        except InvalidConfigError as fault:
            yield InvalidConfigError(fault.message, **fault.fields, source=path)
        else:
            config[name] = text


def _flat(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """The values of a table and of the tables in it, by their joined names."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, part in cast("dict[str, object]", value).items():
        yield from _flat(part, f"{name}.{key}" if name else key)


def is_bare(value: object) -> bool:
    """Whether TOML has the value of a broker's key without quotes. Members of an enumeration are words."""
    return type(value) in (bool, int, float)


def _broker_text(name: str, value: object) -> str:
    """The value of a broker's key as its text. Raises InvalidConfigError."""
    match value:
        case str():
            text = value
        case list():
            text = ",".join(map(str, cast("list[object]", value)))
        case _:
            text = toml_text(value)
    key = broker_key(name, text).key
    if is_bare(key.parse(text)) and isinstance(value, str):
        raise InvalidConfigError(
            f"{name} does not take text; write the value without quotes",
            name=name,
            value=toml_text(value),
            allowed=key.allowed,
        )
    return text
