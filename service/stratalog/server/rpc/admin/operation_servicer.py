"""Long work over gRPC: operations are looked at, watched and cancelled. Belongs to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from stratalog.server.fetch.closing import Closing
from stratalog.server.fetch.partition_signal import PartitionSignal, waiting_for
from stratalog.server.operations.operation_registry import OperationRegistry
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.rpc.access.shown_topics import IsIdShown, ids_shown_in_work, shows_work
from stratalog.server.rpc.admin.operation_convert import kinds_of, operation_message, states_of, view_message
from stratalog.server.rpc.call_guard import Context, guarded, send
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.paging import PageCursor
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import operation_pb2, operation_pb2_grpc

WATCH_PERIOD_S = 0.1
"""The shortest time between two messages of a watched operation."""


class OperationServicer(operation_pb2_grpc.OperationServiceServicer):
    """Answers the requests of the operation service. Belongs to the event loop."""

    def __init__(
        self,
        operations: OperationRegistry,
        registry: PartitionRegistry,
        pools: WorkerPools,
        closing: Closing,
        statuses: ErrorStatuses,
    ) -> None:
        self._operations = operations
        self._registry = registry
        self._pools = pools
        self._closing = closing
        self.statuses = statuses

    @guarded
    async def GetOperation(
        self, request: operation_pb2.GetOperationRequest, context: Context
    ) -> operation_pb2.GetOperationResponse:
        is_shown = ids_shown_in_work(self._registry)

        def found() -> operation_pb2.GetOperationResponse:
            operation = self._operations.find(request.operation_id)
            return operation_pb2.GetOperationResponse(operation=operation_message(operation, is_shown))

        return await self._pools.describe(found)

    @guarded
    async def ListOperations(
        self, request: operation_pb2.ListOperationsRequest, context: Context
    ) -> operation_pb2.ListOperationsResponse:
        return await self._pools.describe(
            partial(self._list, request, shows_work(), ids_shown_in_work(self._registry))
        )

    @guarded
    async def WatchOperation(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # grpc.aio also takes a handler that writes
        self, request: operation_pb2.WatchOperationRequest, context: Context
    ) -> None:
        operation = self._operations.find(request.operation_id)
        is_shown = ids_shown_in_work(self._registry)
        signal = PartitionSignal(asyncio.get_running_loop())
        operation.listen(signal.notify)
        try:
            with waiting_for([signal, self._closing.signal]) as changed:
                while True:
                    changed.clear()
                    view = operation.view
                    message = operation_pb2.WatchOperationResponse(operation=view_message(view, is_shown))
                    await send(context, message)
                    if view.state.is_final:
                        return
                    self._closing.check()
                    await _until_worth_a_message(changed)
        finally:
            operation.unlisten(signal.notify)

    @guarded
    async def CancelOperation(
        self, request: operation_pb2.CancelOperationRequest, context: Context
    ) -> operation_pb2.CancelOperationResponse:
        operation = await self._pools.task(partial(self._operations.cancel, request.operation_id))
        is_shown = ids_shown_in_work(self._registry)
        return operation_pb2.CancelOperationResponse(operation=operation_message(operation, is_shown))

    def _list(
        self,
        request: operation_pb2.ListOperationsRequest,
        is_shown: Callable[[Collection[str]], bool],
        is_id_shown: IsIdShown,
    ) -> operation_pb2.ListOperationsResponse:
        filters = f"{sorted(request.kinds)} {sorted(request.states)}"
        cursor = PageCursor(request, f"operations {filters}", int)
        kinds, states = kinds_of(request.kinds), states_of(request.states)
        views = [operation.view for operation in self._operations.operations()]
        found = [
            view for view in views if view.kind in kinds and view.state in states and is_shown(view.topics)
        ]
        page = cursor.page(found, lambda view: -view.number)
        return operation_pb2.ListOperationsResponse(
            # A page of results could be larger than clients take.
            operations=[view_message(view._replace(result=None), is_id_shown) for view in page.items],
            next_page_token=page.next_page_token,
        )


async def _until_worth_a_message(changed: asyncio.Event) -> None:
    """Wait for a change, and for the pause between two messages."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + WATCH_PERIOD_S
    await changed.wait()
    await asyncio.sleep(max(0.0, due_s - loop.time()))
