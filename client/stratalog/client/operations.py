"""The client's view of long work: operations that the server runs, to look at, wait for and cancel."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

import grpc

from stratalog.base.errors import LogStoreError
from stratalog.client import values
from stratalog.client.channel import CALL_TIMEOUT_S, ServerChannel
from stratalog.client.errors import refusing_misfits
from stratalog.client.pages import pages
from stratalog.client.retry import Patience
from stratalog.client.values.conversion import value_of, wire_number
from stratalog.v1 import operation_pb2, operation_pb2_grpc

ResultT = TypeVar("ResultT", bound="values.OperationResult")


class OperationCancelledError(LogStoreError):
    """The operation that the caller waited for was cancelled. Fields: operation_id."""

    code = "OPERATION_CANCELLED"


class Operations:
    """The operations of one server. Every method raises LogStoreError, and those with an id
    UnknownOperationError. Belongs to one event loop.
    """

    def __init__(self, channel: ServerChannel) -> None:
        self._channel = channel
        self._stub = operation_pb2_grpc.OperationServiceStub(channel.grpc)

    async def get(self, operation_id: str) -> values.Operation:
        """The operation as it is now."""
        with refusing_misfits():
            request = operation_pb2.GetOperationRequest(operation_id=operation_id)
        response = await self._channel.call(
            self._stub.GetOperation(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return value_of(values.Operation, response.operation)

    async def list(
        self,
        kinds: Sequence[values.OperationKind] = (),
        states: Sequence[values.OperationState] = (),
    ) -> list[values.Operation]:
        """All operations of these kinds and states, the newest first; every kind and state if none is
        named. They are without their results, which `get` has."""
        wanted_kinds = [wire_number(operation_pb2.OperationKind, kind) for kind in kinds]
        wanted_states = [wire_number(operation_pb2.OperationState, state) for state in states]
        found = pages(
            self._channel,
            lambda token: self._stub.ListOperations(
                operation_pb2.ListOperationsRequest(
                    kinds=wanted_kinds, states=wanted_states, page_token=token
                ),
                timeout=CALL_TIMEOUT_S,
            ),
        )
        return [value_of(values.Operation, one) async for page in found for one in page.operations]

    async def watch(self, operation_id: str) -> AsyncGenerator[values.Operation]:
        """The operation as it is now, then after changes, until it has ended. Close the generator to leave;
        the work goes on. Reconnects as other reads do; a server that was restarted, and the successor of a
        server, do not know the operations from before."""
        with refusing_misfits():
            request = operation_pb2.WatchOperationRequest(operation_id=operation_id)
        patience = Patience(self._channel.retry)
        while True:
            server = self._channel.address
            call = self._stub.WatchOperation(request)
            try:
                async for response in call:
                    patience.succeed()
                    yield value_of(values.Operation, response.operation)
                return
            except grpc.aio.AioRpcError as error:
                failure = self._channel.failure(error, server)
            finally:
                call.cancel()
            await patience.bear(failure)

    async def wait(self, operation_id: str) -> values.Operation:
        """Wait for the end of the operation; returns it, however it ended."""
        async with aclosing(self.watch(operation_id)) as watched:
            return [operation async for operation in watched][-1]

    async def done(self, operation: values.Operation) -> values.Operation:
        """Wait for the success of the operation, and return it with its result. Raises the error with which
        it failed, and OperationCancelledError if it was cancelled."""
        ended = await self.wait(operation.operation_id)
        require_success(ended)
        return ended

    async def cancel(self, operation_id: str) -> values.Operation:
        """Ask the operation to end, and return it as it is then; it may be complete. Safe to repeat."""
        with refusing_misfits():
            request = operation_pb2.CancelOperationRequest(operation_id=operation_id)
        response = await self._channel.call(
            self._stub.CancelOperation(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return value_of(values.Operation, response.operation)


def require_success(operation: values.Operation) -> None:
    """Raise the error of an operation that failed, or OperationCancelledError."""
    if operation.error is not None:
        raise operation.error
    if operation.state is values.OperationState.CANCELLED:
        raise OperationCancelledError(
            "the operation was cancelled; what was done before stays, and another one does the rest",
            operation_id=operation.operation_id,
        )


def result_of(operation: values.Operation, result_class: type[ResultT]) -> ResultT:
    """The result of an operation that has ended. Raises the error with which it failed,
    OperationCancelledError, and LogStoreError if the server gave no such result.
    """
    require_success(operation)
    if not isinstance(operation.result, result_class):
        raise LogStoreError(
            "the operation has no result that this client knows; use a newer client",
            operation_id=operation.operation_id,
        )
    return operation.result
