"""The end of a stream of reflection when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from stratalog.base.clock import SystemClock
from stratalog.server.fetch.closing import Closing
from stratalog.server.rpc.access.reflection_servicer import ReflectionServicer
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.testing.sequential_ids import SequentialIds


class SlowContext:
    """A call whose answers are on their way until the test lets them arrive."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def write(self, _response: object) -> None:
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.events.append("cut off")
            raise
        self.events.append("sent")

    async def abort(self, code: grpc.StatusCode, *_: object) -> None:
        self.events.append(code.name)
        raise grpc.aio.AbortError


async def requests() -> AsyncIterator[Any]:
    yield reflection_pb2.ServerReflectionRequest(list_services="")
    await asyncio.Event().wait()


async def test_a_stop_does_not_cut_off_an_answer_on_its_way() -> None:
    """gRPC sent its headers again with the status then, and the stop waited for the call's whole grace."""
    closing, context = Closing(asyncio.get_running_loop()), SlowContext()
    servicer = ReflectionServicer(["a.Service"], closing, ErrorStatuses(SystemClock(), SequentialIds()))
    call = asyncio.ensure_future(servicer.ServerReflectionInfo(requests(), cast(Any, context)))
    await context.begun.wait()
    closing.set(ends_work=True)
    for _ in range(10):
        await asyncio.sleep(0)
    assert context.events == []
    context.may_end.set()
    with pytest.raises(grpc.aio.AbortError):
        await call
    assert context.events == ["sent", "UNAVAILABLE"]
