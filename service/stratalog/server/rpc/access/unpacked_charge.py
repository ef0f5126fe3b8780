"""Charges a principal for what the batches of its appends become.

A quota of bytes is charged when a request comes, by its size on the wire. A compressed batch takes processor
time and memory by its size without compression, which only the writer finds out. So the rest is charged with
the answer, and the next request waits for it. The gate sets the account for each call, before its handler.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from stratalog.server.append.pending_append import PendingAppend

_charge: ContextVar[Callable[[int], None] | None] = ContextVar("charge", default=None)
"""Charges bytes to the principal of the call that the task handles; None where it has no quota of bytes."""


def set_charge(charge: Callable[[int], None] | None) -> None:
    """Note the account of the call that the current task handles."""
    _charge.set(charge)


def charge_unpacked(append: PendingAppend) -> None:
    """Charge what the append has become beyond its size on the wire, also where it was refused. In the task
    of the call, once it has its answer."""
    charge = _charge.get()
    more_bytes = append.memory.unpacked_bytes - append.size_bytes
    if charge is not None and more_bytes > 0:
        charge(more_bytes)


def charge_copied(append: PendingAppend) -> None:
    """Charge an append whose batch was on the server already. In the task of the call."""
    charge = _charge.get()
    if charge is not None:
        charge(append.size_bytes)
