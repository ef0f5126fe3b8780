"""What a key is set to, and by whom: the answer to whoever describes a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from stratalog.server.configuration.broker_key import UpdateMode


class ConfigSource(Enum):
    """Who set a value, in Kafka's words; the strongest first."""

    TOPIC = "DYNAMIC_TOPIC_CONFIG"
    DYNAMIC_BROKER = "DYNAMIC_BROKER_CONFIG"
    STATIC_BROKER = "STATIC_BROKER_CONFIG"
    DEFAULT = "DEFAULT_CONFIG"


class ConfigSynonym(NamedTuple):
    """A key that a value may come from, and what it is set to there."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One key in force. Immutable."""

    name: str
    value: str | None
    """None: nothing is set, and nothing is the default."""
    source: ConfigSource
    update_mode: UpdateMode
    allowed: str
    synonyms: tuple[ConfigSynonym, ...]
    """All that were set, or stand by as the default; the first one is in force."""


class ConfigChange(NamedTuple):
    """A wish: give the key this value, or, with None, take back what was set."""

    name: str
    value: str | None


def changed(overrides: Mapping[str, str], changes: tuple[ConfigChange, ...]) -> dict[str, str]:
    """The overrides after the changes, in their order. Taking back what is not set is no mistake."""
    result = dict(overrides)
    for change in changes:
        if change.value is None:
            result.pop(change.name, None)
        else:
            result[change.name] = change.value
    return result
