"""The effective settings of a start, each with its source, and all that is wrong with them.

Options are stronger than the environment, the environment is stronger than the file, and the file is stronger
than the defaults; the broker's keys are merged one by one in the same order. A value that is refused takes no
part, so that all others are judged, too: an operator sees every fault at once.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from stratalog.base.errors import InvalidConfigError
from stratalog.server.configuration.broker_config import BrokerConfig, broker_key
from stratalog.server.configuration.setting import Setting, Value
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.configuration.settings_file import NO_FILE, SettingsFile, read_settings_file
from stratalog.server.configuration.settings_table import SETTING_OF_FIELD, SETTINGS

CONFIG_OPTION = "--config"
CONFIG_VARIABLE = "STRATALOG_CONFIG"
CONFIG_FILE_VARIABLE = "STRATALOG_CONFIG_FILE"
READ_ONLY_PLACE = "stratalog-read-only"
"""Name of the directory, among the temporary files, of a read-only server without a data directory."""


class SettingSource(Enum):
    """The place of a value; the strongest first."""

    OPTION = "option"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


class Sourced(NamedTuple):
    """A value, and where it comes from."""

    value: Value
    source: SettingSource
    place: str
    """The option, the variable or the file; empty for a default."""


class SettingFault(NamedTuple):
    """One fault of a start."""

    error: InvalidConfigError
    is_usage: bool
    """Whether the command line, or the environment, cannot be understood."""


class Given(NamedTuple):
    """The sources of settings that a command has. Immutable."""

    options: Mapping[str, Sequence[str]]
    """The texts of options, by the names of settings."""
    config: Sequence[str]
    """KEY=VALUE of the broker's keys."""
    environment: Mapping[str, str]
    config_file: str
    """Path of the configuration file; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSettings:
    """The settings of a start. Immutable."""

    values: Mapping[str, Sourced]
    """Every setting by its name, in the order of the table."""
    config: Mapping[str, Sourced]
    """The broker's keys that are set."""
    config_file: str
    faults: tuple[SettingFault, ...]
    settings: ServerSettings | None
    """None if there are faults. Of a read-only server without a data directory it names a directory that is
    not there."""

    @property
    def config_texts(self) -> dict[str, str]:
        return {name: str(sourced.value) for name, sourced in self.config.items()}

    def shown(self) -> dict[str, Value]:
        """All settings, and the broker's keys that are set, by name. Secrets are hidden."""
        settings = {name: SETTINGS[name].shown(sourced.value) for name, sourced in self.values.items()}
        return settings | {name: sourced.value for name, sourced in self.config.items()}


def start_settings(given: Given) -> StartSettings:
    """Resolve what a command is given. Faults are in the result."""
    faults: list[SettingFault] = []
    file = NO_FILE
    if given.config_file:
        try:
            file = read_settings_file(given.config_file)
        except InvalidConfigError as fault:
            faults.append(SettingFault(fault, is_usage=False))
    faults += [SettingFault(fault, is_usage=False) for fault in file.faults]
    values = {name: _sourced(setting, given, file, faults) for name, setting in SETTINGS.items()}
    config = _config(given, file, faults)
    settings = _settings(values, config, faults)
    return StartSettings(
        values=values,
        config=config,
        config_file=given.config_file,
        faults=tuple(faults),
        settings=None if faults else settings,
    )


def _sourced(setting: Setting, given: Given, file: SettingsFile, faults: list[SettingFault]) -> Sourced:
    """The strongest value that the setting takes. Adds the faults of all of them."""
    found: list[Sourced] = []
    for texts, source, place in (
        (given.options.get(setting.name, ()), SettingSource.OPTION, setting.option),
        (_texts_of_variable(setting, given.environment), SettingSource.ENVIRONMENT, setting.variable),
    ):
        try:
            found += [Sourced(setting.of_texts(texts, place), source, place)] if texts else []
        except InvalidConfigError as fault:
            faults.append(SettingFault(fault, is_usage=True))
    if setting.name in file.values:
        found.append(Sourced(file.values[setting.name], SettingSource.FILE, file.path))
    return found[0] if found else Sourced(setting.default, SettingSource.DEFAULT, "")


def _texts_of_variable(setting: Setting, environment: Mapping[str, str]) -> Sequence[str]:
    """The parts of the variable; none if it is empty or not set."""
    text = environment.get(setting.variable, "")
    if setting.kind.is_repeatable:
        return text.split()
    return [text] if text else []


def _config(given: Given, file: SettingsFile, faults: list[SettingFault]) -> dict[str, Sourced]:
    """The broker's keys that are set, the strongest value of each."""
    config = {name: Sourced(text, SettingSource.FILE, file.path) for name, text in file.config.items()}
    for pairs, source, place in (
        (given.environment.get(CONFIG_VARIABLE, "").split(), SettingSource.ENVIRONMENT, CONFIG_VARIABLE),
        (given.config, SettingSource.OPTION, CONFIG_OPTION),
    ):
        for pair in pairs:
            name, separator, text = (part.strip() for part in pair.partition("="))
            if not separator or not name:
                fault = InvalidConfigError(
                    "a key of the broker needs a value; write KEY=VALUE",
                    name=place,
                    value=pair,
                    allowed="KEY=VALUE, for example log.cleaner.threads=2",
                )
                faults.append(SettingFault(fault, is_usage=True))
                continue
            try:
                broker_key(name, text).key.parse(text)
                config[name] = Sourced(text, source, place)
            except InvalidConfigError as fault:
                refusal = InvalidConfigError(fault.message, **fault.fields, source=place)
                faults.append(SettingFault(refusal, is_usage=False))
    try:
        BrokerConfig.from_overrides({name: str(sourced.value) for name, sourced in config.items()})
    except InvalidConfigError as fault:
        faults.append(SettingFault(fault, is_usage=False))
        return {}
    return config


def _settings(
    values: Mapping[str, Sourced], config: Mapping[str, Sourced], faults: list[SettingFault]
) -> ServerSettings | None:
    """The settings of a server. Adds the faults that values have beside each other; each of these takes its
    default then, and the others are tried again.
    """
    fields: dict[str, Any] = {
        setting.field_name: setting.field_value(values[name].value)
        for name, setting in SETTINGS.items()
        if values[name].source is not SettingSource.DEFAULT
    }
    is_read_only = bool(fields.get("read_only"))
    if is_read_only and not fields.get("store_url"):
        faults.append(_missing("store", "--read-only needs --store: the URL of the owner's store"))
    if not fields.get("data_dir"):
        if not is_read_only:
            faults.append(
                _missing(
                    "data-dir", "the data directory is missing; give --data-dir, or data-dir in the file"
                )
            )
        fields["data_dir"] = os.path.join(tempfile.gettempdir(), READ_ONLY_PLACE)
    while True:
        try:
            settings = ServerSettings(
                **fields, config={name: str(sourced.value) for name, sourced in config.items()}
            )
        except InvalidConfigError as refusal:
            setting = _setting_named(refusal)
            faults.append(SettingFault(_explained(refusal, setting, values), is_usage=False))
            if setting is None or fields.pop(setting.field_name, None) is None or "data_dir" not in fields:
                return None
            continue
        return _following(settings) if is_read_only else settings


def _following(settings: ServerSettings) -> ServerSettings:
    """The settings of a read-only server."""
    return dataclasses.replace(
        settings, log_dirs=(), read_only=True, head_refresh_ms=settings.follow_ms, max_silence_ms=0
    )


def _missing(name: str, message: str) -> SettingFault:
    setting = SETTINGS[name]
    fault = InvalidConfigError(message, name=name, allowed=setting.kind.allowed)
    return SettingFault(fault, is_usage=True)


def _setting_named(refusal: InvalidConfigError) -> Setting | None:
    name = str(refusal.fields.get("name"))
    return SETTINGS.get(name) or SETTING_OF_FIELD.get(name)


def _explained(
    refusal: InvalidConfigError, setting: Setting | None, values: Mapping[str, Sourced]
) -> InvalidConfigError:
    """The refusal under the name and with the value that an operator has given, and its source."""
    if setting is None:
        return refusal
    value, source, place = values[setting.name]
    fields = {**refusal.fields, "name": setting.name, "source": place or source.value}
    if source is not SettingSource.DEFAULT:
        fields["value"] = setting.shown(value)
    return InvalidConfigError(refusal.message, **fields)
