"""The topics that the caller of a list may see. The gate sets it for each call, before its handler."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextvars import ContextVar
from typing import TypeAlias

from stratalog.server.access.access_policy import Principal
from stratalog.server.access.permissions import Operation

_caller: ContextVar[Principal | None] = ContextVar("caller", default=None)
"""The principal of the call that the task handles; None without access control."""

IsShown: TypeAlias = "Callable[[str], bool]"


def set_caller(principal: Principal) -> None:
    """Note the principal of the call that the current task handles."""
    _caller.set(principal)


def shown_topics() -> IsShown:
    """A function that says whether the caller may describe a topic. Ask for it in the task of the call; any
    thread may call it then."""
    principal = _caller.get()
    if principal is None:
        return lambda _topic: True
    permissions = principal.permissions
    return lambda topic: permissions.allow(Operation.DESCRIBE, topic)


def shows_work() -> Callable[[Collection[str]], bool]:
    """A function that says whether the caller may describe long work over these topics; none stands for all.
    Use it as that of `shown_topics`."""
    principal = _caller.get()
    if principal is None:
        return lambda _topics: True
    is_shown = shown_topics()
    sees_cluster = Operation.DESCRIBE in principal.permissions.cluster
    return lambda topics: all(map(is_shown, topics)) if topics else sees_cluster
