"""Health checks of a server, and how long they take."""

from __future__ import annotations

import statistics
import time
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

HEALTH_S = 0.1
"""The longest time of a health check, whatever else the server has to do."""
CHECK_COUNT = 11
"""Their median counts: a few may meet other work of the machine."""
ROUND_COUNT = 3
"""A machine of tests may be loaded for a while; one of so many rounds of checks must be quick."""
PATIENCE_S = 60.0


async def require_health(address: str) -> None:
    """Assert that the server answers that it serves, at once, over a connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        await channel.channel_ready()
        await require_health_over(channel)


async def require_health_over(channel: grpc.aio.Channel) -> None:
    """`require_health` over a connection that is there."""
    stub: Any = health_pb2_grpc.HealthStub(cast(Any, channel))
    medians_s: list[float] = []
    for _ in range(ROUND_COUNT):
        medians_s.append(statistics.median([await _check_s(stub) for _ in range(CHECK_COUNT)]))
        if medians_s[-1] < HEALTH_S:
            return
    raise AssertionError(f"a health check takes {min(medians_s):.3f} s")


async def _check_s(stub: Any) -> float:
    """Seconds of one check, whose answer must be that the server serves."""
    begin_s = time.monotonic()
    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    return time.monotonic() - begin_s
