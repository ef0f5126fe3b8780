"""The description of a configuration: the value of each key, its source, and the values behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from stratalog.base.errors import InvalidConfigError
from stratalog.log.log_config import LogConfig, topic_key
from stratalog.server.configuration.broker_config import (
    BROKER_KEY_OF_TOPIC_KEY,
    BROKER_KEYS,
    BrokerConfig,
    BrokerKey,
    UpdateMode,
    broker_key,
    value_text,
)


class ConfigSource(Enum):
    """Where a value comes from, in Kafka's words; the strongest first."""

    TOPIC = "DYNAMIC_TOPIC_CONFIG"
    DYNAMIC_BROKER = "DYNAMIC_BROKER_CONFIG"
    STATIC_BROKER = "STATIC_BROKER_CONFIG"
    DEFAULT = "DEFAULT_CONFIG"


class ConfigSynonym(NamedTuple):
    """A key that a value may come from, and its setting there."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One key in force. Immutable."""

    name: str
    value: str | None
    """None: nothing sets the key, and it has no default."""
    source: ConfigSource
    update_mode: UpdateMode
    allowed: str
    """The values that the key takes, in words."""
    synonyms: tuple[ConfigSynonym, ...]
    """All settings and defaults of the value; the first one is in force."""


class ConfigChange(NamedTuple):
    """A request to set a key to a value, or, with None, to remove its setting."""

    name: str
    value: str | None


def changed(overrides: Mapping[str, str], changes: tuple[ConfigChange, ...]) -> dict[str, str]:
    """The overrides after the changes, in their order. A key that is not set may be removed."""
    result = dict(overrides)
    for change in changes:
        if change.value is None:
            result.pop(change.name, None)
        else:
            result[change.name] = change.value
    return result


class ConfigLayers(NamedTuple):
    """The server's settings by source. Immutable."""

    static: Mapping[str, str]
    """From the command line, the environment and the file of the start."""
    dynamic: Mapping[str, str]
    """Altered at run time; stronger."""

    def resolve(self) -> BrokerConfig:
        """The configuration in force. Raises InvalidConfigError (fields name, value, allowed), also for a
        dynamic key that is read-only."""
        for name, text in self.dynamic.items():
            if broker_key(name, text).is_read_only:
                raise InvalidConfigError(
                    f"{name} is read-only, as in Kafka; give it to the start of the server",
                    name=name,
                    value=text,
                    allowed="at a start only",
                )
        return BrokerConfig.from_overrides({**self.static, **self.dynamic})

    def entries(self) -> list[ConfigEntry]:
        return [self.entry(name) for name in BROKER_KEYS]

    def entry(self, name: str) -> ConfigEntry:
        """Return the entry of a key. Raises InvalidConfigError for an unknown key."""
        key = broker_key(name)
        synonyms = tuple(self._synonyms(key))
        return ConfigEntry(
            name=name,
            value=value_text(name, {**self.static, **self.dynamic}),
            source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
            update_mode=key.update_mode,
            allowed=key.key.allowed,
            synonyms=synonyms,
        )

    def topic_entries(self, overrides: Mapping[str, str], config: LogConfig) -> list[ConfigEntry]:
        """The keys of a topic, sorted by name. `overrides`: the keys that it sets; `config`: all values."""
        return [
            self._topic_entry(name, overrides.get(name), value) for name, value in config.as_mapping().items()
        ]

    def _topic_entry(self, name: str, override: str | None, value: str) -> ConfigEntry:
        synonyms = [] if override is None else [ConfigSynonym(name, override, ConfigSource.TOPIC)]
        broker_name = BROKER_KEY_OF_TOPIC_KEY.get(name)
        if broker_name is None:
            default = LogConfig().as_mapping()[name]
            synonyms.append(ConfigSynonym(name, default, ConfigSource.DEFAULT))
        else:
            synonyms += self._synonyms(BROKER_KEYS[broker_name])
        return ConfigEntry(
            name=name,
            value=value,
            source=synonyms[0].source,
            update_mode=UpdateMode.CLUSTER_WIDE,
            allowed=topic_key(name).allowed,
            synonyms=tuple(synonyms),
        )

    def _synonyms(self, key: BrokerKey) -> Iterator[ConfigSynonym]:
        """Strongest first."""
        for source in key.sources:
            for text, kind in (
                (self.dynamic.get(source.name), ConfigSource.DYNAMIC_BROKER),
                (self.static.get(source.name), ConfigSource.STATIC_BROKER),
                (BROKER_KEYS[source.name].default, ConfigSource.DEFAULT),
            ):
                if text is not None:
                    yield ConfigSynonym(source.name, text, kind)
