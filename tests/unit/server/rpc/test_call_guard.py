"""The end of a call whose client has gone while it was refused."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidRequestError
from stratalog.server.rpc.call_guard import guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.testing.sequential_ids import SequentialIds


class Refusing:
    """A servicer whose call is always refused."""

    def __init__(self) -> None:
        self.statuses = ErrorStatuses(SystemClock(), SequentialIds())

    @guarded
    async def call(self, request: object, context: Any) -> None:
        raise InvalidRequestError("no")


class Connection:
    """A context whose refusal ends as the test says."""

    def __init__(self, end: BaseException) -> None:
        self._end = end

    async def abort(self, *_: object) -> None:
        raise self._end


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (grpc.aio.AbortError("refused"), grpc.aio.AbortError),
        (grpc.aio.UsageError("the call has ended"), asyncio.CancelledError),
        (RuntimeError("the batch cannot be sent"), asyncio.CancelledError),
    ],
)
async def test_a_refusal_that_its_client_does_not_wait_for_ends_like_a_cancellation(
    end: BaseException, expected: type[BaseException]
) -> None:
    with pytest.raises(expected):
        await Refusing().call(object(), Connection(end))
