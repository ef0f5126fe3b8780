"""The parts and locks of one log, which its classes share."""

from __future__ import annotations

import threading
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.patient_lock import PatientLock
from stratalog.log.local_log import LocalLog
from stratalog.log.log_availability import LogAvailability
from stratalog.log.log_offsets import LogOffsets
from stratalog.log.log_state import LogState


class LogParts(NamedTuple):
    """Made by UnifiedLog, and passed to each class that works on the log."""

    flush_lock: PatientLock
    """Held during a sync and during changes of sealed segments. Taken before `lock`."""
    lock: threading.RLock
    """`UnifiedLog.lock`. It guards the other parts, unless they say otherwise."""
    clock: Clock
    local_log: LocalLog
    state: LogState
    offsets: LogOffsets
    availability: LogAvailability
