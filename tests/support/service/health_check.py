"""Health checks of a server, and how long they take."""

from __future__ import annotations

import time
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

HEALTH_S = 0.1
"""The longest time of a health check, whatever else the server has to do."""
MAX_CHECK_COUNT = 50
"""A machine of tests may be loaded for a while; the fastest of so many checks counts."""
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
    fastest_s = PATIENCE_S
    for _ in range(MAX_CHECK_COUNT):
        begin_s = time.monotonic()
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        fastest_s = min(fastest_s, time.monotonic() - begin_s)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        if fastest_s < HEALTH_S:
            return
    raise AssertionError(f"a health check takes {fastest_s:.3f} s")
