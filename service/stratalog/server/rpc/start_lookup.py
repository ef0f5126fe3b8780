"""Looks up where a read begins or ends, on the threads that each look of the search needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from stratalog.log.isolation import Isolation
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.rpc.position import Search, start_of
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2

EARLIEST = log_pb2.Position(spec=log_pb2.OFFSET_SPEC_EARLIEST)

_Result = TypeVar("_Result")


class StartLookup:
    """Resolves positions of reads. Belongs to the event loop."""

    def __init__(self, pools: WorkerPools) -> None:
        self._pools = pools

    async def offset(
        self, partition: HostedPartition, position: log_pb2.Position | None, isolation: Isolation
    ) -> int:
        """The offset of the position; None is the log start. Raises as `start_of`."""
        search = start_of(partition, position or EARLIEST, isolation)
        return await searched(search, partition, self._pools, self._pools.cold_read)


async def searched(
    search: Search[_Result],
    partition: HostedPartition,
    pools: WorkerPools,
    ask_store: Callable[[Callable[[], object]], Awaitable[object]],
) -> _Result:
    """The result of a search in the partition: looks into the local log run on the threads of its log
    directory, others by `ask_store`. Raises what the search and its looks raise."""
    result: Any = None
    try:
        while True:
            look = search.send(result)
            if look.is_tiered:
                result = await ask_store(look.run)
            else:
                result = await pools.read(partition.log_dir, look.run)
    except StopIteration as ended:
        found: _Result = ended.value
        return found
