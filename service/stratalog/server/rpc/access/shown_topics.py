"""The topics that the caller of a list may see.

The gate sets the caller for each call, before its handler; without access control `showing_all` does so for
the calls that ask. A task, or a thread, for which neither has done it shows nothing: it raises.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import Any, TypeAlias, cast

import grpc

from stratalog.server.access.access_policy import Principal
from stratalog.server.access.permissions import Operation
from stratalog.server.rpc.access.call_permissions import CALL_PERMISSIONS, Scope
from stratalog.server.rpc.call_guard import Context
from stratalog.server.rpc.method_handlers import SHAPES, Handlers

_caller: ContextVar[Principal | None] = ContextVar("caller")
"""The principal of the call that the task handles; None without access control. Not set elsewhere."""

IsShown: TypeAlias = "Callable[[str], bool]"
_Handler = Callable[[Any, Context], Awaitable[Any]]


def set_caller(principal: Principal | None) -> None:
    """Note the principal of the call that the current task handles; None for one who may see everything."""
    _caller.set(principal)


def showing_all(service: str, handlers: Handlers) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """The handlers of a service without access control, whose lists show everything."""
    return {
        name: _showing_all(handler)
        if (permission := CALL_PERMISSIONS.get(f"/{service}/{name}")) and permission.scope is Scope.SHOWN
        else handler
        for name, handler in handlers.items()
    }


def _showing_all(handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    # gRPC's handlers are named tuples, which its stubs do not say.
    one = cast(Any, handler)
    shape = next(shape for shape in SHAPES if getattr(one, shape) is not None)
    call: _Handler = getattr(one, shape)

    @functools.wraps(call)
    async def handling(request: Any, context: Context) -> Any:
        set_caller(None)
        return await call(request, context)

    return cast("grpc.RpcMethodHandler[Any, Any]", one._replace(**{shape: handling}))


def shown_topics() -> IsShown:
    """A function that says whether the caller may describe a topic. Ask for it in the task of the call; any
    thread may call it then. Raises LookupError elsewhere, because the caller is not known there."""
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
