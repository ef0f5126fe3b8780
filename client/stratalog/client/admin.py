"""The admin client: topics, configurations, trims, log directories and the cleaner. `tier_admin` has the
tiers.

Methods return messages of ``stratalog.v1.admin_pb2``, which documents their fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.base.errors import TopicAlreadyExistsError
from stratalog.client.channel import ServerChannel
from stratalog.client.errors import refusing_misfits
from stratalog.client.operations import CALL_TIMEOUT_S, Operations
from stratalog.client.retry import RetryPolicy, retrying
from stratalog.client.tier_admin import TierAdmin
from stratalog.v1 import admin_pb2, admin_pb2_grpc, operation_pb2


class Admin(TierAdmin):
    """The control plane of one server, that of its tiers included. Every method raises LogStoreError, and
    InvalidRequestError for values that no message can hold. Belongs to one event loop.
    """

    def __init__(self, channel: ServerChannel, retry: RetryPolicy, operations: Operations) -> None:
        super().__init__(channel, retry, operations)
        self._stub = admin_pb2_grpc.AdminServiceStub(channel.grpc)

    async def create_topic(
        self,
        name: str,
        partition_count: int = 0,
        config: Mapping[str, str] | None = None,
        *,
        exists_ok: bool = False,
    ) -> admin_pb2.Topic:
        """Create a topic; 0 partitions mean the server's default. `config` uses Kafka's names. With
        `exists_ok` a topic that exists is returned unchanged. Raises TopicAlreadyExistsError,
        InvalidRequestError for the name, InvalidConfigError."""
        with refusing_misfits():
            request = admin_pb2.CreateTopicRequest(
                name=name, partition_count=partition_count, config=config or {}
            )
        try:
            response = await self._channel.call(self._stub.CreateTopic(request, timeout=CALL_TIMEOUT_S))
        except TopicAlreadyExistsError:
            if not exists_ok:
                raise
            [topic] = await self.describe_topics([name])
            return topic
        return response.topic

    async def list_topics(self) -> list[admin_pb2.Topic]:
        request = admin_pb2.ListTopicsRequest()
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.ListTopics(request, timeout=CALL_TIMEOUT_S))
        )
        return list(response.topics)

    async def describe_topics(self, names: Sequence[str] = ()) -> list[admin_pb2.Topic]:
        """The named topics, or all. Raises UnknownTopicOrPartitionError."""
        with refusing_misfits():
            request = admin_pb2.DescribeTopicsRequest(names=names)
        response = await retrying(
            self._retry,
            lambda: self._channel.call(self._stub.DescribeTopics(request, timeout=CALL_TIMEOUT_S)),
        )
        return list(response.topics)

    async def delete_topic(self, name: str) -> Sequence[str]:
        """Delete a topic and all its records. Returns directories of partitions on failed disks of the
        server, which a later start deletes. Raises UnknownTopicOrPartitionError."""
        with refusing_misfits():
            request = admin_pb2.DeleteTopicRequest(name=name)
        response = await self._channel.call(self._stub.DeleteTopic(request, timeout=CALL_TIMEOUT_S))
        return list(response.left_over_paths)

    async def describe_configs(
        self, topic: str | None = None, names: Sequence[str] = ()
    ) -> list[admin_pb2.ConfigEntry]:
        """The current configuration of a topic, or of the server if `topic` is None: the named keys, or all.
        Raises UnknownTopicOrPartitionError, InvalidConfigError for an unknown key."""
        with refusing_misfits():
            request = admin_pb2.DescribeConfigsRequest(resource=_resource(topic), names=names)
        response = await retrying(
            self._retry,
            lambda: self._channel.call(self._stub.DescribeConfigs(request, timeout=CALL_TIMEOUT_S)),
        )
        return list(response.entries)

    async def alter_configs(
        self,
        changes: Mapping[str, str | None],
        topic: str | None = None,
        *,
        validate_only: bool = False,
    ) -> list[admin_pb2.ConfigEntry]:
        """Set keys of a topic, or of the server if `topic` is None; the value None resets a key. Applies all
        changes or none, before it returns the changed keys. Raises UnknownTopicOrPartitionError,
        InvalidConfigError. Safe to repeat."""
        with refusing_misfits():
            request = admin_pb2.AlterConfigsRequest(
                resource=_resource(topic),
                changes=[admin_pb2.ConfigChange(name=name, value=value) for name, value in changes.items()],
                validate_only=validate_only,
            )
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.AlterConfigs(request, timeout=CALL_TIMEOUT_S))
        )
        return list(response.entries)

    async def describe_log(self, topic: str, partitions: Sequence[int] = ()) -> list[admin_pb2.PartitionLog]:
        """Offsets, segments and slices of the named partitions, or all."""
        with refusing_misfits():
            request = admin_pb2.DescribeLogRequest(topic=topic, partitions=partitions)
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.DescribeLog(request, timeout=CALL_TIMEOUT_S))
        )
        return list(response.partitions)

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Move the log start to `before_offset` (-1: the high watermark); returns the log start. Raises
        OffsetOutOfRangeError beyond the high watermark. Safe to repeat: the log start moves forward only."""
        with refusing_misfits():
            request = admin_pb2.DeleteRecordsRequest(
                topic=topic, partition=partition, before_offset=before_offset
            )
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.DeleteRecords(request, timeout=CALL_TIMEOUT_S))
        )
        return response.log_start_offset

    async def describe_log_dirs(self) -> admin_pb2.DescribeLogDirsResponse:
        """The directories that hold local logs, and moves between them."""
        request = admin_pb2.DescribeLogDirsRequest()
        return await retrying(
            self._retry,
            lambda: self._channel.call(self._stub.DescribeLogDirs(request, timeout=CALL_TIMEOUT_S)),
        )

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

    async def move_partition(self, topic: str, partition: int, target_path: str) -> operation_pb2.Operation:
        """Start to move a partition to another log directory; the server serves it meanwhile. Returns the
        operation, by which the move is watched and cancelled. Raises InvalidRequestError,
        DataDirectoryError."""
        with refusing_misfits():
            request = admin_pb2.MovePartitionRequest(
                topic=topic, partition=partition, target_path=target_path
            )
        response = await self._channel.call(self._stub.MovePartition(request, timeout=CALL_TIMEOUT_S))
        return response.operation

    async def cleaner_status(self) -> admin_pb2.CleanerStatusResponse:
        """Work of the cleaner of local logs, and partitions that it cannot clean now."""
        request = admin_pb2.CleanerStatusRequest()
        return await retrying(
            self._retry, lambda: self._channel.call(self._stub.CleanerStatus(request, timeout=CALL_TIMEOUT_S))
        )

    async def reset_cleaner(self, topic: str, partition: int) -> bool:
        """Clean a partition again whose cleaning failed; returns False if it had not failed."""
        with refusing_misfits():
            request = admin_pb2.ResetCleanerRequest(topic=topic, partition=partition)
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.ResetCleaner(request, timeout=CALL_TIMEOUT_S))
        )
        return response.had_failed


def _resource(topic: str | None) -> admin_pb2.ConfigResource:
    """The resource of the topic, or the server's for None."""
    if topic is None:
        return admin_pb2.ConfigResource(server=admin_pb2.ConfigResource.Server())
    return admin_pb2.ConfigResource(topic=topic)
