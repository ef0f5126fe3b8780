"""A partition that the catalog has and this server cannot serve.

Either its local log could not be opened: then an operator decides, and it stays offline until the next
start. Or this version refuses its topic's configuration: then it stays offline until the catalog has another
one. The server changes nothing of it, on disk or in the object store, and serves all other partitions.
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
from stratalog.server.partitions.foreign_shard import ForeignShard
from stratalog.server.partitions.hosted_shard import HostedShard


class OfflinePartition:
    """A partition that could not be opened, and the reason. Immutable, hence thread-safe."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id_partition: TopicIdPartition,
        shard: HostedShard | ForeignShard,
        path: str,
        failure: LogStoreError,
    ) -> None:
        """`path` is the partition's directory, `failure` the reason; InvalidConfigError means its topic's
        configuration."""
        self.topic_partition = topic_partition
        self.topic_id_partition = topic_id_partition
        self.shard = shard
        self.path = path
        self.failure = failure

    @property
    def reason(self) -> str:
        return str(self.failure)

    def tier_state(self) -> TieredPartition:
        return self.shard.metadata.state().partition(self.topic_id_partition)

    def error(self) -> LogStoreError:
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


class ForeignPartition(OfflinePartition):
    """A partition of a shard that another server owns, by configuration or since before the partition was
    known here. Immutable, hence thread-safe."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id_partition: TopicIdPartition,
        shard: HostedShard | ForeignShard,
    ) -> None:
        super().__init__(topic_partition, topic_id_partition, shard, "", shard.owner.not_owner())

    def error(self) -> LogStoreError:
        """The refusal of a request, which names the owner as of now."""
        return self.shard.owner.not_owner()
