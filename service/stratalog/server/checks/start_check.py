"""One check of a start, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.objectstore.protocol import ObjectStore
from stratalog.server.checks.machine import Machine
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.settings import ServerSettings


class Verdict(Enum):
    """The outcome of a check; the worst last."""

    OK = "ok"
    SKIPPED = "skipped"
    """It was not tried."""
    WARNING = "warning"
    """A server starts, and something should be changed."""
    ERROR = "error"
    """A server does not start, or cannot serve."""


class Finding(NamedTuple):
    """The outcome of one check, in one line."""

    check: str
    verdict: Verdict
    text: str
    """The fact that was found, and the remedy if it is not fine."""


class CheckSeams(NamedTuple):
    """The components that checks work with. Immutable."""

    filesystem: FileSystem
    clock: Clock
    ids: IdGenerator
    store: ObjectStore | None = None
    """None: the one that the settings name."""


class CheckedStart(NamedTuple):
    """The start that is checked, and the seams of its checks. Immutable."""

    settings: ServerSettings
    config: BrokerConfig
    seams: CheckSeams
    machine: Machine
    environment: Mapping[str, str]
    probes_store: bool
    """Whether the store may be written to: four small writes of an object that is deleted again."""
