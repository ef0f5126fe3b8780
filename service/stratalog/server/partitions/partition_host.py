"""Makes hosted partitions: gives a log its writer, its signal, and the reader of its tiered data."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.tier.log_restore import restore_log
from stratalog.remote.tier.remote_reader import RemoteReader
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard


class PartitionHost:
    """Thread-safe: it keeps nothing of what it makes. Its writers use `executor` and answer on `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self._loop = loop
        self._executor = executor

    def host(self, log: UnifiedLog, shard: HostedShard, reader: RemoteReader) -> HostedPartition:
        """A partition that is ready to serve: a log that begins at the tiered end has been told what lies
        below. Touches disk and network; raises StoreError, DataDirectoryError.
        """
        restore_log(log, reader)
        signal = PartitionSignal(self._loop)

        def ensure_heard() -> None:
            # Of a topic that is not tiered the local disk holds all there is, through any takeover.
            if log.config.remote_storage_enable:
                shard.ensure_heard()

        writer = PartitionWriter(
            self._loop, self._executor, log, shard.leader_epoch, ensure_heard, signal.notify
        )
        return HostedPartition(log, shard, reader, writer, signal)
