"""What the classes share that work on one log together, each in its own field."""

from __future__ import annotations

import threading
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.log.local_log import LocalLog
from stratalog.log.log_availability import LogAvailability
from stratalog.log.log_offsets import LogOffsets
from stratalog.log.log_state import LogState


class LogParts(NamedTuple):
    """Of one log; UnifiedLog puts them together."""

    flush_lock: threading.RLock
    """Held while the disk syncs, and by whatever changes sealed segments. Taken before `lock`."""
    lock: threading.RLock
    """`UnifiedLog.lock`, which guards the others, but for what they say themselves."""
    clock: Clock
    local_log: LocalLog
    state: LogState
    offsets: LogOffsets
    availability: LogAvailability
