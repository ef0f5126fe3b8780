"""The admin client: topics, partitions, log directories, the cleaner, and the tiers."""

from __future__ import annotations

from stratalog.client import values
from stratalog.client.channel import CALL_TIMEOUT_S
from stratalog.client.errors import refusing_misfits
from stratalog.client.operations import Operations
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.pages import at_page, pages
from stratalog.client.partitions_admin import PartitionsAdmin
from stratalog.client.tier_admin import TierAdmin
from stratalog.client.topics_admin import TopicsAdmin
from stratalog.client.values.conversion import value_of, values_of
from stratalog.v1 import admin_pb2


class Admin(TopicsAdmin, PartitionsAdmin, TierAdmin):
    """The control plane, that of the tiers included. Calls about partitions go to their owners, all others to
    one server. Every method raises LogStoreError, and InvalidRequestError for values that no message can
    hold. Belongs to one event loop.
    """

    def __init__(self, owners: OwnerChannels, operations: Operations) -> None:
        TopicsAdmin.__init__(self, owners)
        TierAdmin.__init__(self, owners, operations)

    async def server_info(self) -> values.ServerInfo:
        """Version, shards and limits of the server."""
        request = admin_pb2.ServerInfoRequest()
        response = await self._channel.call(
            self._stub.ServerInfo(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return value_of(values.ServerInfo, response)

    async def describe_log_dirs(self) -> values.LogDirs:
        """The directories that hold local logs, and moves between them."""
        request = admin_pb2.DescribeLogDirsRequest()
        found = pages(
            self._channel,
            lambda token: self._stub.DescribeLogDirs(at_page(request, token), timeout=CALL_TIMEOUT_S),
        )
        response = admin_pb2.DescribeLogDirsResponse()
        async for page in found:
            response.MergeFrom(page)
        return value_of(values.LogDirs, response)

    async def cordon_log_dir(self, path: str, *, is_cordoned: bool = True) -> str:
        """Place no new partitions in a log directory of the server, or allow them again. Returns the server's
        path of it. Raises InvalidRequestError if there is no such directory, or it is not cordoned."""
        with refusing_misfits():
            cordon = admin_pb2.CordonLogDirRequest(path=path)
            uncordon = admin_pb2.UncordonLogDirRequest(path=path)
        if is_cordoned:
            call = self._stub.CordonLogDir(cordon, timeout=CALL_TIMEOUT_S)
            return (await self._channel.call(call)).path
        response = await self._channel.call(self._stub.UncordonLogDir(uncordon, timeout=CALL_TIMEOUT_S))
        return response.path

    async def forget_log_dir(self, directory_id: str) -> str:
        """Give up a missing log directory for good: partitions without another copy begin anew at the next
        start of the server. Returns its last path. Raises InvalidRequestError, DataDirectoryError."""
        with refusing_misfits():
            request = admin_pb2.ForgetLogDirRequest(directory_id=directory_id)
        response = await self._channel.call(self._stub.ForgetLogDir(request, timeout=CALL_TIMEOUT_S))
        return response.path

    async def move_partition(
        self, topic: str, partition: int, target_path: str, *, topic_id: str = ""
    ) -> values.Operation:
        """Start to move a partition to another log directory; the server serves it meanwhile. Returns the
        operation, by which the move is watched and cancelled. Raises UnknownTopicOrPartitionError,
        InconsistentTopicIdError, InvalidRequestError, DataDirectoryError."""
        with refusing_misfits():
            request = admin_pb2.MovePartitionRequest(
                topic=topic, partition=partition, target_path=target_path, topic_id=topic_id
            )
        response = await self._channel.call(self._stub.MovePartition(request, timeout=CALL_TIMEOUT_S))
        return value_of(values.Operation, response.operation)

    async def cleaner_status(self) -> values.CleanerStatus:
        """Work of the cleaner of local logs, and partitions that it cannot clean now."""
        request = admin_pb2.CleanerStatusRequest()
        found = pages(
            self._channel,
            lambda token: self._stub.CleanerStatus(at_page(request, token), timeout=CALL_TIMEOUT_S),
        )
        uncleanable: list[admin_pb2.UncleanablePartition] = []
        response = admin_pb2.CleanerStatusResponse()
        async for response in found:
            uncleanable += response.uncleanable_partitions
        status = value_of(values.CleanerStatus, response)
        return status._replace(
            uncleanable_partitions=tuple(values_of(values.UncleanablePartition, uncleanable))
        )

    async def reset_cleaner(self, topic: str, partition: int) -> bool:
        """Clean a partition again whose cleaning failed; returns False if it had not failed."""
        with refusing_misfits():
            request = admin_pb2.ResetCleanerRequest(topic=topic, partition=partition)
        response = await self._channel.call(
            self._stub.ResetCleaner(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return response.had_failed
