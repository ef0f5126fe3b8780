"""A health check of an unknown service whose client has gone before it was refused."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from grpc_health.v1 import health_pb2

from stratalog.base.clock import SystemClock
from stratalog.server.fetch.closing import Closing
from stratalog.server.health_servicer import HealthServicer
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.testing.sequential_ids import SequentialIds


class Gone:
    """The context of a call whose client has gone."""

    async def abort(self, *_: object) -> None:
        raise RuntimeError("the batch cannot be sent")


async def test_the_refusal_of_a_check_whose_client_has_gone_is_no_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closing = Closing(asyncio.get_running_loop())
    servicer = HealthServicer((), closing, ErrorStatuses(SystemClock(), SequentialIds()))
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await servicer.Check(health_pb2.HealthCheckRequest(service="unknown"), cast(Any, Gone()))
    assert not caplog.records
