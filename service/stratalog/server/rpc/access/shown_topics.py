"""The topics that the caller of a list, of a plan or of long work may see.

The gate sets the caller for each call, before its handler; without access control `showing_all` does so for
the calls that ask. A task, or a thread, for which neither has done it shows nothing: it raises.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import Any, TypeAlias, cast
from uuid import UUID

import grpc

from stratalog.server.access.access_policy import Principal
from stratalog.server.access.permissions import Operation
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.rpc.access.call_permissions import CALL_PERMISSIONS, Scope
from stratalog.server.rpc.call_guard import Context
from stratalog.server.rpc.method_handlers import SHAPES, Handlers

_caller: ContextVar[Principal | None] = ContextVar("caller")
"""The principal of the call that the task handles; None without access control. Not set elsewhere."""

IsShown: TypeAlias = "Callable[[str], bool]"
IsIdShown: TypeAlias = "Callable[[UUID], bool]"
_Handler = Callable[[Any, Context], Awaitable[Any]]


_OF_TOPICS = (Scope.TOPICS, Scope.SOME_TOPIC)


def is_anything_shown(_topic: object) -> bool:
    """Shows every topic, by its name or by its id: to one who is at the store itself."""
    return True


def set_caller(principal: Principal | None) -> None:
    """Note the principal of the call that the current task handles; None for one who may see everything."""
    _caller.set(principal)


def showing_all(service: str, handlers: Handlers) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """The handlers of a service without access control, whose answers show everything. Those of calls about
    named topics alone are left as they are: they need not ask, and are many."""
    return {
        name: _showing_all(handler)
        if (permission := CALL_PERMISSIONS.get(f"/{service}/{name}")) and permission.scope not in _OF_TOPICS
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
        return is_anything_shown
    permissions = principal.permissions
    return lambda topic: permissions.allow(Operation.DESCRIBE, topic)


def shown_in_work() -> IsShown:
    """A function that says whether a plan, or the result of long work, may name a topic to the caller: one
    that it may describe, or any, if it may describe the server as a whole, whose status names all. Objects
    hold several topics, so work on one touches others. Use it as that of `shown_topics`."""
    principal = _caller.get()
    if principal is None or Operation.DESCRIBE in principal.permissions.cluster:
        return is_anything_shown
    return shown_topics()


def ids_shown_in_work(registry: PartitionRegistry) -> IsIdShown:
    """`shown_in_work` by id. A topic that the server does not have is shown to those who see all."""
    is_shown = shown_in_work()
    # Nearly no result names a topic by its id.
    names: dict[UUID, str] = {}

    def is_id_shown(topic_id: UUID) -> bool:
        if topic_id not in names:
            names.update((topic.topic_id, topic.name) for topic in registry.topics())
        return is_shown(names.setdefault(topic_id, ""))

    return is_id_shown


def shows_work() -> Callable[[Collection[str]], bool]:
    """A function that says whether the caller may describe long work over these topics; none stands for all.
    Use it as that of `shown_topics`."""
    principal = _caller.get()
    if principal is None:
        return lambda _topics: True
    is_shown = shown_topics()
    sees_cluster = Operation.DESCRIBE in principal.permissions.cluster
    return lambda topics: all(map(is_shown, topics)) if topics else sees_cluster
