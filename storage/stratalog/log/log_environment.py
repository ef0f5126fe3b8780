"""The seams of the engine that a log uses besides its files."""

from __future__ import annotations

import random
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.log.producers.producer_room import ProducerRoom
from stratalog.log.retention.late_removal import LateRemovals


class LogEnvironment(NamedTuple):
    """One for all logs of a process; each field is thread-safe."""

    clock: Clock
    removals: LateRemovals
    random_source: random.Random
    producer_room: ProducerRoom
