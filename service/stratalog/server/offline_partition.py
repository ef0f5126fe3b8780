"""A partition that the catalog has and this server cannot serve: its local log could not be opened.

It stays so until the next start. Nothing of it is changed meanwhile, neither on disk nor in the object store,
since what it holds is for a human to decide; all other partitions go on.
"""

from __future__ import annotations

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.remote.partition_state import PartitionState
from stratalog.server.hosted_shard import HostedShard


class OfflinePartition:
    """Immutable, hence thread-safe."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id_partition: TopicIdPartition,
        shard: HostedShard,
        path: str,
        failure: LogStoreError,
    ) -> None:
        """`path`: the partition's directory. `failure`: what opening it met."""
        self.topic_partition = topic_partition
        self.topic_id_partition = topic_id_partition
        self.shard = shard
        self.path = path
        self.failure = failure

    @property
    def reason(self) -> str:
        return str(self.failure)

    def tier_state(self) -> PartitionState:
        """What is committed in the object store."""
        return self.shard.metadata.state().partition(self.topic_id_partition)

    def error(self) -> DataDirectoryError:
        """What a call to the partition gets."""
        return DataDirectoryError(
            "the partition has been offline since the server started, its local log cannot be opened; do what"
            " the reason says, and restart the server",
            path=self.path,
            topic=self.topic_partition.topic,
            partition=self.topic_partition.partition,
            reason=self.reason,
        )
