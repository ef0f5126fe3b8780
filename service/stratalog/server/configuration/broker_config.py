"""The server's own configuration, resolved: what was altered at run time, over what the start was given,
over defaults.

Keys that are defaults of topics' keys come together in `topic_defaults`, from which every topic's own
configuration starts. A key that has several names (Kafka's hours, minutes and milliseconds of a retention)
goes by the finest unit that is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from stratalog.base.errors import InvalidConfigError
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.log.log_config import LogConfig, topic_key
from stratalog.server.configuration.broker_key import BrokerKey, UpdateMode
from stratalog.server.configuration.broker_keys import BROKER_KEY_OF_TOPIC_KEY, BROKER_KEYS, broker_key
from stratalog.server.configuration.config_entry import ConfigEntry, ConfigSource, ConfigSynonym


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Immutable, hence thread-safe."""

    static: Mapping[str, str]
    """From the command line, the environment and files."""
    dynamic: Mapping[str, str]
    """Altered at run time."""
    values: Mapping[str, Any]
    """Of every key, in force; None where it is not set and has no default."""
    topic_defaults: LogConfig
    cleaner_settings: CleanerSettings

    @staticmethod
    def of(static: Mapping[str, str], dynamic: Mapping[str, str] | None = None) -> BrokerConfig:
        """Raises InvalidConfigError (fields name, value, allowed) for an unknown key, a value that its key
        does not take, values that contradict each other, and a dynamic one whose key is read-only."""
        dynamic = dynamic or {}
        for layer in (static, dynamic):
            for name, text in layer.items():
                broker_key(name, text).key.parse(text)
        for name, text in dynamic.items():
            if BROKER_KEYS[name].is_read_only:
                raise InvalidConfigError(
                    f"{name} is read-only, as in Kafka; give it to the start of the server",
                    name=name,
                    value=text,
                    allowed="at a start only",
                )
        values = {name: _value_of(key, static, dynamic) for name, key in BROKER_KEYS.items()}
        defaults = {
            name: topic_key(name).format(values[broker_name])
            for name, broker_name in BROKER_KEY_OF_TOPIC_KEY.items()
        }
        cleaner_settings = _cleaner_settings(values)
        cleaner_settings.require_consistent()
        return BrokerConfig(
            MappingProxyType(dict(static)),
            MappingProxyType(dict(dynamic)),
            MappingProxyType(values),
            _topic_defaults(defaults),
            cleaner_settings,
        )

    def number(self, name: str) -> int:
        """The value of a key that is a whole number."""
        value = self.values[name]
        assert isinstance(value, int), name
        return value

    def decimal(self, name: str) -> float:
        """The value of a key that is a decimal number."""
        value = self.values[name]
        assert isinstance(value, float), name
        return value

    def flag(self, name: str) -> bool:
        """The value of a key that is true or false."""
        value = self.values[name]
        assert isinstance(value, bool), name
        return value

    def entries(self) -> list[ConfigEntry]:
        """All keys, in order."""
        return [self.entry(name) for name in BROKER_KEYS]

    def entry(self, name: str) -> ConfigEntry:
        """Raises InvalidConfigError for an unknown key."""
        key = broker_key(name)
        synonyms = tuple(_synonyms(key, self.static, self.dynamic))
        value = self.values[name]
        return ConfigEntry(
            name=name,
            value=None if value is None else key.key.format(value),
            source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
            update_mode=key.update_mode,
            allowed=key.key.allowed,
            synonyms=synonyms,
        )

    def topic_entries(self, overrides: Mapping[str, str], config: LogConfig) -> list[ConfigEntry]:
        """The keys of a topic that sets `overrides` and goes by `config`, in order."""
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
            synonyms += _synonyms(BROKER_KEYS[broker_name], self.static, self.dynamic)
        return ConfigEntry(
            name=name,
            value=value,
            source=synonyms[0].source,
            update_mode=UpdateMode.CLUSTER_WIDE,
            allowed=topic_key(name).allowed,
            synonyms=tuple(synonyms),
        )


def _topic_defaults(defaults: Mapping[str, str]) -> LogConfig:
    """Raises InvalidConfigError, which names the server's keys."""
    try:
        return LogConfig.from_overrides(defaults)
    except InvalidConfigError as refusal:
        name = BROKER_KEY_OF_TOPIC_KEY[str(refusal.fields["name"])]
        raise InvalidConfigError(
            f"{name} is no default for topics: {refusal.message}", **{**refusal.fields, "name": name}
        ) from None


def _value_of(key: BrokerKey, static: Mapping[str, str], dynamic: Mapping[str, str]) -> Any:
    """The value in force. No limit (-1) is none in every unit."""
    for name, factor in _names(key):
        text = dynamic.get(name, static.get(name, BROKER_KEYS[name].default))
        if text is not None:
            value = BROKER_KEYS[name].key.parse(text)
            return value if factor == 1 or value < 0 else value * factor
    return None


def _synonyms(
    key: BrokerKey, static: Mapping[str, str], dynamic: Mapping[str, str]
) -> Iterator[ConfigSynonym]:
    """Where the value can come from, the strongest first."""
    for name, _ in _names(key):
        default = BROKER_KEYS[name].default
        for text, source in (
            (dynamic.get(name), ConfigSource.DYNAMIC_BROKER),
            (static.get(name), ConfigSource.STATIC_BROKER),
            (default, ConfigSource.DEFAULT),
        ):
            if text is not None:
                yield ConfigSynonym(name, text, source)


def _names(key: BrokerKey) -> tuple[tuple[str, int], ...]:
    """The key's name and those of its fallbacks, and how much one of each one's unit is."""
    return (key.name, 1), *((fallback.name, fallback.factor) for fallback in key.fallbacks)


def _cleaner_settings(values: Mapping[str, Any]) -> CleanerSettings:
    return CleanerSettings(
        is_enabled=values["log.cleaner.enable"],
        thread_count=values["log.cleaner.threads"],
        map_bytes=values["log.cleaner.dedupe.buffer.size"],
        map_load_factor=values["log.cleaner.io.buffer.load.factor"],
        io_buffer_bytes=values["log.cleaner.io.buffer.size"],
        max_bytes_per_s=values["log.cleaner.io.max.bytes.per.second"],
        backoff_ms=values["log.cleaner.backoff.ms"],
    )
