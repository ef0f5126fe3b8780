"""Looks up where a read begins or ends, on the threads that its kind of position needs."""

from __future__ import annotations

from functools import partial

from stratalog.log.isolation import Isolation
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.rpc.position import searches_records, start_of
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2

EARLIEST = log_pb2.Position(spec=log_pb2.OFFSET_SPEC_EARLIEST)


class StartLookup:
    """Resolves positions of reads. Belongs to the event loop."""

    def __init__(self, pools: WorkerPools) -> None:
        self._pools = pools

    async def offset(
        self, partition: HostedPartition, position: log_pb2.Position | None, isolation: Isolation
    ) -> int:
        """The offset of the position; None is the log start. Raises as `start_of`, and OverloadedError."""
        wanted = position or EARLIEST
        if not searches_records(wanted):
            return start_of(partition, wanted, isolation)
        # The object store may have to answer.
        return await self._pools.cold_read(partial(start_of, partition, wanted, isolation))
