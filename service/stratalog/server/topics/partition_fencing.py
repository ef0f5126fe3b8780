"""Fencing tokens of partitions.

A token lies in the catalog, so it survives restarts and takeovers. The writer of the partition compares the
tokens of appends with the catalog that its server has read. Fencing is done once three things have happened,
in this order:

1. The commit of the token. From its answer on, this server has read it.
2. A look at the head of its shard that finds no other owner. A server that claims the shard later reads the
   catalog after its claim, and so has the token, too.
3. A turn of the writer: appends that it applied before, by a former token, lie below the end of the log.
"""

from __future__ import annotations

from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.shard_set import ShardSet


class PartitionFencing:
    """Sets fencing tokens. Thread-safe: its parts are."""

    def __init__(self, catalog: Catalog, shards: ShardSet) -> None:
        self._catalog = catalog
        self._shards = shards

    def commit(self, partition: HostedPartition, token: str, current_token: str | None) -> None:
        """Do the first two steps; `partition.writer.settled` is the third. Takes the network for long.

        `current_token`: the token to replace; None for any. Raises InvalidRequestError,
        FencingTokenMismatchError, UnknownTopicOrPartitionError, NotOwnerError, StoreError: after
        StoreUnavailableError the partition may have the token.
        """
        tip = partition.topic_id_partition
        self._shards.confirm_owner_of(tip)
        self._catalog.fence(tip.topic_id, tip.partition, token, current_token)
        self._shards.confirm_owner_of(tip)
