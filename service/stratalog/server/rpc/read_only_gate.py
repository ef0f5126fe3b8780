"""Refuses every call that changes something, on a server that only reads.

One list has the calls that are served; a call that is not in it, a future one included, is refused with the
owner's endpoint, which clients follow by themselves.
"""

from __future__ import annotations

from typing import Any, cast

import grpc

from stratalog.base.errors import NotOwnerError
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.method_handlers import SHAPES, Handlers

READS = frozenset(
    {
        "Fetch",
        "FetchStream",
        "ListOffsets",
        "Read",
        "Metadata",
        "ListTopics",
        "DescribeTopics",
        "DescribeConfigs",
        "DescribeLog",
        "ListSlices",
        "DescribeLogDirs",
        "ServerInfo",
        "TierStatus",
        "StartVerification",
        "DescribeCaches",
        "EmptyCaches",
        "GetOperation",
        "ListOperations",
        "WatchOperation",
        "CancelOperation",
    }
)
"""Names of the calls that a read-only server answers."""


class ReadOnlyGate:
    """Replaces the handlers of changes. Belongs to the event loop."""

    def __init__(self, shards: ShardSet, statuses: ErrorStatuses) -> None:
        self._shards = shards
        self.statuses = statuses

    def guarding(self, handlers: Handlers) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers, with a refusal in place of each that is not in `READS`."""
        return {
            name: handler if name in READS else self._refusing(handler) for name, handler in handlers.items()
        }

    def _refusing(self, handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        # gRPC's handlers are named tuples, which its stubs do not say.
        one = cast(Any, handler)
        return cast(
            "grpc.RpcMethodHandler[Any, Any]",
            one._replace(**{shape: self.refuse for shape in SHAPES if getattr(one, shape) is not None}),
        )

    @guarded
    async def refuse(self, _request: object, _context: Context) -> None:
        owner = next(iter(self._shards)).owner
        raise NotOwnerError(
            "this server only reads; use the owner of the store",
            owner=owner.owner,
            endpoint=owner.endpoint,
            epoch=owner.epoch,
        )
