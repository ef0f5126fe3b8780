"""Topics, trims, tiers and compaction, from the client's side.

Answers are the messages of ``stratalog.v1.admin_pb2`` as they are: their fields are the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.client.channel import ServerChannel
from stratalog.client.errors import refusing_misfits
from stratalog.client.retry import RetryPolicy, retrying
from stratalog.v1 import admin_pb2, admin_pb2_grpc

CALL_TIMEOUT_S = 30.0
LONG_CALL_TIMEOUT_S = 3600.0
"""For calls that move data: upload, compaction."""


class Admin:
    """The control plane of one server. Every method raises LogStoreError, InvalidRequestError for what no
    message can hold. Belongs to one event loop.
    """

    def __init__(self, channel: ServerChannel, retry: RetryPolicy) -> None:
        self._channel = channel
        self._retry = retry
        self._stub = admin_pb2_grpc.AdminServiceStub(channel.grpc)

    async def create_topic(
        self, name: str, partition_count: int = 0, config: Mapping[str, str] | None = None
    ) -> admin_pb2.Topic:
        """Create a topic; 0 partitions: the server's default. `config` has Kafka's names. Raises
        TopicAlreadyExistsError, InvalidRequestError for the name, InvalidConfigError."""
        with refusing_misfits():
            request = admin_pb2.CreateTopicRequest(
                name=name, partition_count=partition_count, config=config or {}
            )
        response = await self._channel.call(self._stub.CreateTopic(request, timeout=CALL_TIMEOUT_S))
        return response.topic

    async def list_topics(self) -> list[admin_pb2.Topic]:
        """All topics, sorted by name."""
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
        """Delete a topic and all its records. Returns directories of partitions that are left on disks of the
        server that do not work now; a later start deletes them. Raises UnknownTopicOrPartitionError."""
        with refusing_misfits():
            request = admin_pb2.DeleteTopicRequest(name=name)
        response = await self._channel.call(self._stub.DeleteTopic(request, timeout=CALL_TIMEOUT_S))
        return list(response.left_over_paths)

    async def describe_configs(
        self, topic: str | None = None, names: Sequence[str] = ()
    ) -> list[admin_pb2.ConfigEntry]:
        """The configuration in force of a topic, or, without one, of the server: the named keys, or all.
        Raises UnknownTopicOrPartitionError, InvalidConfigError for an unknown key."""
        with refusing_misfits():
            request = admin_pb2.DescribeConfigsRequest(topic=_named(topic), names=names)
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
        """Set keys of a topic, or, without one, of the server; None takes back what was set. All or nothing,
        and in force when it returns the keys as they are then. Raises UnknownTopicOrPartitionError,
        InvalidConfigError. Safe to repeat."""
        with refusing_misfits():
            request = admin_pb2.AlterConfigsRequest(
                topic=_named(topic),
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

    async def upload(
        self, topics: Sequence[str] = (), *, delete_local: bool = False
    ) -> admin_pb2.UploadResponse:
        """Roll and tier now. `delete_local`: also delete local segments that are committed in the object
        store. Raises DataDirectoryError where a named topic has an offline partition, with what was uploaded
        of the others among its fields; where none is named the answer says which were left out.
        """
        with refusing_misfits():
            request = admin_pb2.UploadRequest(topics=topics, delete_local=delete_local)
        return await self._channel.call(self._stub.Upload(request, timeout=LONG_CALL_TIMEOUT_S))

    async def tier_status(self) -> admin_pb2.TierStatusResponse:
        """What the object store holds, and how far the uploader is."""
        request = admin_pb2.TierStatusRequest()
        return await retrying(
            self._retry, lambda: self._channel.call(self._stub.TierStatus(request, timeout=CALL_TIMEOUT_S))
        )

    async def describe_log_dirs(self) -> admin_pb2.DescribeLogDirsResponse:
        """The directories that hold local logs, and moves between them."""
        request = admin_pb2.DescribeLogDirsRequest()
        return await retrying(
            self._retry,
            lambda: self._channel.call(self._stub.DescribeLogDirs(request, timeout=CALL_TIMEOUT_S)),
        )

    async def cordon_log_dir(self, path: str, *, is_cordoned: bool = True) -> str:
        """Keep new partitions away from a log directory of the server, for good, or let them in again.
        Returns its path as the server knows it. Raises InvalidRequestError where there is no such directory,
        or one that is not cordoned is to be let in."""
        with refusing_misfits():
            request = admin_pb2.CordonLogDirRequest(path=path, uncordon=not is_cordoned)
        response = await self._channel.call(self._stub.CordonLogDir(request, timeout=CALL_TIMEOUT_S))
        return response.path

    async def forget_log_dir(self, directory_id: str) -> str:
        """Give up a log directory that is missing, for good: partitions that are nowhere else begin anew when
        the server starts next. Returns where it was last. Raises InvalidRequestError, DataDirectoryError."""
        with refusing_misfits():
            request = admin_pb2.ForgetLogDirRequest(directory_id=directory_id)
        response = await self._channel.call(self._stub.ForgetLogDir(request, timeout=CALL_TIMEOUT_S))
        return response.path

    async def move_partition(self, topic: str, partition: int, target_path: str) -> str:
        """Begin to move a partition to another log directory of the server, which serves it meanwhile;
        returns its path as the server knows it. Raises InvalidRequestError, DataDirectoryError."""
        with refusing_misfits():
            request = admin_pb2.MovePartitionRequest(
                topic=topic, partition=partition, target_path=target_path
            )
        response = await self._channel.call(self._stub.MovePartition(request, timeout=CALL_TIMEOUT_S))
        return response.target_path

    async def cancel_move(self, topic: str, partition: int) -> None:
        """End a move, and wait until it has ended; it may be done by then. Raises InvalidRequestError where
        there is none."""
        with refusing_misfits():
            request = admin_pb2.CancelMoveRequest(topic=topic, partition=partition)
        await self._channel.call(self._stub.CancelMove(request, timeout=CALL_TIMEOUT_S))

    async def cleaner_status(self) -> admin_pb2.CleanerStatusResponse:
        """What the cleaner of local logs has done, and which partitions it cannot clean for now."""
        request = admin_pb2.CleanerStatusRequest()
        return await retrying(
            self._retry, lambda: self._channel.call(self._stub.CleanerStatus(request, timeout=CALL_TIMEOUT_S))
        )

    async def reset_cleaner(self, topic: str, partition: int) -> bool:
        """Try a partition whose cleaning failed again, at once; False where it had not failed."""
        with refusing_misfits():
            request = admin_pb2.ResetCleanerRequest(topic=topic, partition=partition)
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.ResetCleaner(request, timeout=CALL_TIMEOUT_S))
        )
        return response.had_failed

    async def run_compaction(self, topics: Sequence[str] = ()) -> list[admin_pb2.CompactionJob]:
        """Compact the named topics' tiered data, or everybody's, now. Returns the jobs that ran."""
        with refusing_misfits():
            request = admin_pb2.RunCompactionRequest(topics=topics)
        response = await self._channel.call(self._stub.RunCompaction(request, timeout=LONG_CALL_TIMEOUT_S))
        return list(response.jobs)


def _named(topic: str | None) -> str:
    """On the wire, nobody's name is the server."""
    if topic == "":
        raise UnknownTopicOrPartitionError("no topic has an empty name; correct it", topic=topic)
    return topic or ""
