"""The client's view of long work: operations that the server runs, to look at, wait for and cancel.

Methods return messages of ``stratalog.v1.operation_pb2``, which documents their fields.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import grpc

from stratalog.base.errors import LogStoreError
from stratalog.client.channel import CALL_TIMEOUT_S, ServerChannel
from stratalog.client.errors import error_of_status, refusing_misfits
from stratalog.client.pages import pages
from stratalog.client.retry import Patience, RetryPolicy, retrying
from stratalog.v1 import operation_pb2, operation_pb2_grpc


class OperationCancelledError(LogStoreError):
    """The operation that the caller waited for was cancelled. Fields: operation_id."""

    code = "OPERATION_CANCELLED"


class Operations:
    """The operations of one server. Every method raises LogStoreError, and those with an id
    UnknownOperationError. Belongs to one event loop.
    """

    def __init__(self, channel: ServerChannel, retry: RetryPolicy) -> None:
        self._channel = channel
        self._retry = retry
        self._stub = operation_pb2_grpc.OperationServiceStub(channel.grpc)

    async def get(self, operation_id: str) -> operation_pb2.Operation:
        """The operation as it is now."""
        with refusing_misfits():
            request = operation_pb2.GetOperationRequest(operation_id=operation_id)
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.GetOperation(request, timeout=CALL_TIMEOUT_S))
        )
        return response.operation

    async def list(
        self,
        kinds: Sequence[operation_pb2.OperationKind.ValueType] = (),
        states: Sequence[operation_pb2.OperationState.ValueType] = (),
    ) -> list[operation_pb2.Operation]:
        """All operations of these kinds and states, the newest first; every kind and state if none is
        named. They are without their results, which `get` has."""
        found = pages(
            self._channel,
            self._retry,
            lambda token: self._stub.ListOperations(
                operation_pb2.ListOperationsRequest(kinds=kinds, states=states, page_token=token),
                timeout=CALL_TIMEOUT_S,
            ),
        )
        return [operation async for page in found for operation in page.operations]

    async def watch(self, operation_id: str) -> AsyncGenerator[operation_pb2.Operation]:
        """The operation as it is now, then after changes, until it has ended. Close the generator to leave;
        the work goes on. Reconnects as other reads do; a server that was restarted, and the successor of a
        server, do not know the operations from before."""
        with refusing_misfits():
            request = operation_pb2.WatchOperationRequest(operation_id=operation_id)
        patience = Patience(self._retry)
        while True:
            server = self._channel.address
            call = self._stub.WatchOperation(request)
            try:
                async for response in call:
                    patience.succeed()
                    yield response.operation
                return
            except grpc.aio.AioRpcError as error:
                failure = self._channel.failure(error, server)
            finally:
                call.cancel()
            await patience.bear(failure)

    async def wait(self, operation_id: str) -> operation_pb2.Operation:
        """Wait for the end of the operation; returns it, however it ended."""
        async with aclosing(self.watch(operation_id)) as watched:
            return [operation async for operation in watched][-1]

    async def done(self, operation: operation_pb2.Operation) -> operation_pb2.Operation:
        """Wait for the success of the operation, and return it with its result. Raises the error with which
        it failed, and OperationCancelledError if it was cancelled."""
        ended = await self.wait(operation.operation_id)
        require_success(ended)
        return ended

    async def cancel(self, operation_id: str) -> operation_pb2.Operation:
        """Ask the operation to end, and return it as it is then; it may be complete. Safe to repeat."""
        with refusing_misfits():
            request = operation_pb2.CancelOperationRequest(operation_id=operation_id)
        response = await retrying(
            self._retry,
            lambda: self._channel.call(self._stub.CancelOperation(request, timeout=CALL_TIMEOUT_S)),
        )
        return response.operation


def require_success(operation: operation_pb2.Operation) -> None:
    """Raise the error of an operation that failed, or OperationCancelledError."""
    if operation.state == operation_pb2.OPERATION_STATE_FAILED:
        raise error_of_status(operation.error)
    if operation.state == operation_pb2.OPERATION_STATE_CANCELLED:
        raise OperationCancelledError(
            "the operation was cancelled; what was done before stays, and another one does the rest",
            operation_id=operation.operation_id,
        )
