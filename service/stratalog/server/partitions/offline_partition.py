"""A partition that the catalog has and this server cannot serve.

Its local log could not be opened: then it stays so until the next start, since what it holds is for a human
to decide. Or its topic has a configuration that this version does not take: then it stays so until the
catalog has another one. Nothing of it is changed meanwhile, neither on disk nor in the object store; all
other partitions go on.
"""

from __future__ import annotations

from stratalog.base.errors import (
    DataDirectoryError,
    InvalidConfigError,
    LogStoreError,
    UnsupportedOperationError,
)
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.server.partitions.hosted_shard import HostedShard


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
        """`path`: the partition's directory. `failure`: what opening it met; InvalidConfigError is about
        its topic's configuration."""
        self.topic_partition = topic_partition
        self.topic_id_partition = topic_id_partition
        self.shard = shard
        self.path = path
        self.failure = failure

    @property
    def reason(self) -> str:
        return str(self.failure)

    def tier_state(self) -> TieredPartition:
        """What is committed in the object store."""
        return self.shard.metadata.state().partition(self.topic_id_partition)

    def error(self) -> LogStoreError:
        """What a call to the partition gets."""
        if isinstance(self.failure, InvalidConfigError):
            return UnsupportedOperationError(
                "the partition is offline, this version does not take its topic's configuration; run the"
                " version that wrote it, or alter the topic",
                topic=self.topic_partition.topic,
                partition=self.topic_partition.partition,
                reason=self.reason,
            )
        return DataDirectoryError(
            "the partition has been offline since the server started, its local log cannot be opened; do what"
            " the reason says, and restart the server",
            path=self.path,
            topic=self.topic_partition.topic,
            partition=self.topic_partition.partition,
            reason=self.reason,
        )
