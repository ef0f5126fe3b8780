"""How long a thread of the server keeps the interpreter lock from another one that waits for it."""

from __future__ import annotations

import sys

SWITCH_INTERVAL_S = 0.0005
"""A tenth of what the interpreter does by itself. The event loop waits for the lock whenever a background
thread runs Python, be it a look at all logs; a switch costs some microseconds."""


def share_interpreter_lock() -> None:
    """Of this process, from now on. A single call of compiled code may still take longer."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
