"""One key of the server's own configuration: what it takes, and when it may change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from stratalog.log.config_key import ConfigKey


class UpdateMode(Enum):
    """When a key may change, in Kafka's words."""

    READ_ONLY = "read-only"
    """At a start only."""
    PER_BROKER = "per-broker"
    """At any time; of a cluster each broker has its own value."""
    CLUSTER_WIDE = "cluster-wide"
    """At any time; of a cluster all brokers may share the value."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """Another key that counts where one is not set, and how much one of its unit is."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerKey:
    """Immutable, hence thread-safe."""

    key: ConfigKey[Any]
    default: str | None
    """As text; None where the last fallback has it, or where it may be unset."""
    update_mode: UpdateMode
    topic_key: str | None = None
    """The topic's key for which this is the default."""
    fallbacks: tuple[Fallback, ...] = ()
    """Count where this is not set, the first one first."""

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def is_read_only(self) -> bool:
        return self.update_mode is UpdateMode.READ_ONLY
