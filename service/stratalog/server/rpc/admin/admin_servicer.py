"""The control plane over gRPC. Nothing that takes long runs on the event loop: lists and descriptions,
changes, and calls that read much have threads of their own, so that none waits for another kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter

from stratalog.base.errors import InvalidRequestError
from stratalog.cleaner.log_to_clean import is_cleaned_here
from stratalog.log.log_config import LogConfig
from stratalog.server.engine.storage_engine import StorageEngine
from stratalog.server.rpc.access.shown_topics import IsShown, ids_shown_in_work, shown_topics
from stratalog.server.rpc.admin.admin_convert import (
    cleaner_status_message,
    config_changes,
    config_entry_message,
    configured_topic,
    log_dir_message,
    move_message,
    topic_listing_message,
    topic_message,
    topic_weight,
)
from stratalog.server.rpc.admin.operation_convert import operation_message
from stratalog.server.rpc.admin.partition_admin import PartitionAdmin
from stratalog.server.rpc.admin.server_info import ServerInfo
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.paging import MAX_PAGE_SIZE, PageCursor, topic_partition_of
from stratalog.server.topics.config_manager import ConfigManager
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import admin_pb2, admin_pb2_grpc, partition_pb2


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Answers the requests of the admin service. Belongs to the event loop."""

    def __init__(
        self, engine: StorageEngine, pools: WorkerPools, statuses: ErrorStatuses, info: ServerInfo
    ) -> None:
        self._engine = engine
        self._info = info
        self._partitions = PartitionAdmin(
            engine.topics.registry,
            engine.local.logs.cleaner,
            statuses,
            engine.topics.manager.max_partition_count,
            engine.local.disk_calls,
        )
        self.statuses = statuses
        self._shards = engine.tier.shards
        self._registry = engine.topics.registry
        self._topics = engine.topics.manager
        self._tiers = engine.tier.manager
        self._directories = engine.local.directories
        self._cleaner = engine.local.cleaning.workers
        self._configs = ConfigManager(
            engine.tier.shards, engine.topics.registry, engine.topics.manager, engine.topics.runtime
        )
        self._pools = pools

    @guarded
    async def CreateTopic(
        self, request: admin_pb2.CreateTopicRequest, context: Context
    ) -> admin_pb2.CreateTopicResponse:
        def create() -> admin_pb2.CreateTopicResponse:
            topic = self._topics.create(request.name, request.partition_count, dict(request.config))
            return admin_pb2.CreateTopicResponse(topic=topic_message(topic))

        return await self._pools.change(request.name, create)

    @guarded
    async def ListTopics(
        self, request: admin_pb2.ListTopicsRequest, context: Context
    ) -> admin_pb2.ListTopicsResponse:
        return await self._pools.describe(partial(self._list_topics, request, shown_topics()))

    @guarded
    async def DescribeTopics(
        self, request: admin_pb2.DescribeTopicsRequest, context: Context
    ) -> admin_pb2.DescribeTopicsResponse:
        return await self._pools.describe(partial(self._describe_topics, request))

    @guarded
    async def AddPartitions(
        self, request: admin_pb2.AddPartitionsRequest, context: Context
    ) -> admin_pb2.AddPartitionsResponse:
        def add() -> admin_pb2.AddPartitionsResponse:
            topic = self._topics.add_partitions(request.topic, request.topic_id, request.partition_count)
            return admin_pb2.AddPartitionsResponse(topic=topic_message(topic))

        return await self._pools.change(request.topic, add)

    @guarded
    async def DeleteTopic(
        self, request: admin_pb2.DeleteTopicRequest, context: Context
    ) -> admin_pb2.DeleteTopicResponse:
        delete = partial(self._topics.delete, request.name, request.topic_id)
        left_over = await self._pools.change(request.name, delete)
        return admin_pb2.DeleteTopicResponse(left_over_paths=left_over)

    @guarded
    async def DescribeConfigs(
        self, request: admin_pb2.DescribeConfigsRequest, context: Context
    ) -> admin_pb2.DescribeConfigsResponse:
        return await self._pools.describe(partial(self._describe_configs, request))

    @guarded
    async def AlterConfigs(
        self, request: admin_pb2.AlterConfigsRequest, context: Context
    ) -> admin_pb2.AlterConfigsResponse:
        topic, changes = configured_topic(request.resource), config_changes(request.changes)
        alter = partial(
            self._configs.alter, topic, changes, request.topic_id, validate_only=request.validate_only
        )
        entries = await self._pools.change(topic or "", alter)
        return admin_pb2.AlterConfigsResponse(entries=map(config_entry_message, entries))

    @guarded
    async def DescribeLog(
        self, request: admin_pb2.DescribeLogRequest, context: Context
    ) -> admin_pb2.DescribeLogResponse:
        return await self._pools.long_task(partial(self._partitions.describe, request))

    @guarded
    async def ListSegments(
        self, request: partition_pb2.ListSegmentsRequest, context: Context
    ) -> partition_pb2.ListSegmentsResponse:
        return await self._pools.long_task(partial(self._partitions.list_segments, request))

    @guarded
    async def ListSlices(
        self, request: partition_pb2.ListSlicesRequest, context: Context
    ) -> partition_pb2.ListSlicesResponse:
        return await self._pools.long_task(partial(self._partitions.list_slices, request))

    @guarded
    async def ListProducers(
        self, request: partition_pb2.ListProducersRequest, context: Context
    ) -> partition_pb2.ListProducersResponse:
        return await self._pools.long_task(partial(self._partitions.list_producers, request))

    @guarded
    async def DeleteRecords(
        self, request: partition_pb2.DeleteRecordsRequest, context: Context
    ) -> partition_pb2.DeleteRecordsResponse:
        self._shards.ensure_owned()
        return await self._pools.task(partial(self._partitions.delete_records, request))

    @guarded
    async def Roll(self, request: partition_pb2.RollRequest, context: Context) -> partition_pb2.RollResponse:
        return await self._pools.long_task(partial(self._partitions.roll, request))

    @guarded
    async def Flush(
        self, request: partition_pb2.FlushRequest, context: Context
    ) -> partition_pb2.FlushResponse:
        return await self._pools.long_task(partial(self._partitions.flush, request))

    @guarded
    async def DescribeLogDirs(
        self, request: admin_pb2.DescribeLogDirsRequest, context: Context
    ) -> admin_pb2.DescribeLogDirsResponse:
        set_aside = await self._pools.beside(self._directories.set_aside)
        return await self._pools.describe(partial(self._describe_log_dirs, request, set_aside))

    @guarded
    async def CordonLogDir(
        self, request: admin_pb2.CordonLogDirRequest, context: Context
    ) -> admin_pb2.CordonLogDirResponse:
        cordon = partial(self._directories.cordon, request.path, is_cordoned=True)
        return admin_pb2.CordonLogDirResponse(path=await self._pools.task(cordon))

    @guarded
    async def UncordonLogDir(
        self, request: admin_pb2.UncordonLogDirRequest, context: Context
    ) -> admin_pb2.UncordonLogDirResponse:
        uncordon = partial(self._directories.cordon, request.path, is_cordoned=False)
        return admin_pb2.UncordonLogDirResponse(path=await self._pools.task(uncordon))

    @guarded
    async def ForgetLogDir(
        self, request: admin_pb2.ForgetLogDirRequest, context: Context
    ) -> admin_pb2.ForgetLogDirResponse:
        path = await self._pools.task(partial(self._directories.forget, request.directory_id))
        return admin_pb2.ForgetLogDirResponse(path=path)

    @guarded
    async def MovePartition(
        self, request: admin_pb2.MovePartitionRequest, context: Context
    ) -> admin_pb2.MovePartitionResponse:
        move = partial(
            self._directories.move, request.topic, request.partition, request.target_path, request.topic_id
        )
        is_shown = ids_shown_in_work(self._registry)
        moving = await self._pools.task(move)
        return admin_pb2.MovePartitionResponse(operation=operation_message(moving, is_shown))

    @guarded
    async def CleanerStatus(
        self, request: admin_pb2.CleanerStatusRequest, context: Context
    ) -> admin_pb2.CleanerStatusResponse:
        return await self._pools.describe(partial(self._cleaner_status, request))

    @guarded
    async def ResetCleaner(
        self, request: admin_pb2.ResetCleanerRequest, context: Context
    ) -> admin_pb2.ResetCleanerResponse:
        partition = self._registry.partition(request.topic, request.partition)
        had_failed = self._cleaner.reset(partition.topic_partition)
        if not had_failed:
            _require_cleaned_here(request.topic, partition.log.local_log.config)
        return admin_pb2.ResetCleanerResponse(had_failed=had_failed)

    @guarded
    async def ServerInfo(
        self, request: admin_pb2.ServerInfoRequest, context: Context
    ) -> admin_pb2.ServerInfoResponse:
        return await self._pools.describe(self._info.message)

    def _list_topics(
        self, request: admin_pb2.ListTopicsRequest, is_shown: IsShown
    ) -> admin_pb2.ListTopicsResponse:
        self._shards.ensure_owned()
        cursor = PageCursor(request, "topics", str)
        topics = [topic for topic in self._registry.topics() if is_shown(topic.name)]
        page = cursor.page(topics, attrgetter("name"))
        return admin_pb2.ListTopicsResponse(
            topics=map(topic_listing_message, page.items), next_page_token=page.next_page_token
        )

    def _describe_topics(self, request: admin_pb2.DescribeTopicsRequest) -> admin_pb2.DescribeTopicsResponse:
        if not 1 <= len(request.names) <= MAX_PAGE_SIZE:
            raise InvalidRequestError(
                "a description names topics, one to the largest number; ListTopics has the names of all",
                topic_count=len(request.names),
                max_topic_count=MAX_PAGE_SIZE,
            )
        # A topic that a replaced server knows may have more partitions by now, or another id.
        self._shards.ensure_owned()
        topics = [self._registry.topic(name) for name in request.names]
        cursor = PageCursor(request, f"descriptions of {list(request.names)}", int)
        page = cursor.page(list(enumerate(topics)), itemgetter(0), lambda one: topic_weight(one[1]))
        return admin_pb2.DescribeTopicsResponse(
            topics=[topic_message(topic) for _, topic in page.items], next_page_token=page.next_page_token
        )

    def _describe_configs(
        self, request: admin_pb2.DescribeConfigsRequest
    ) -> admin_pb2.DescribeConfigsResponse:
        topic = configured_topic(request.resource)
        if topic is not None:
            self._shards.ensure_owned()
        entries = self._configs.describe(topic, set(request.names))
        return admin_pb2.DescribeConfigsResponse(entries=map(config_entry_message, entries))

    def _describe_log_dirs(
        self, request: admin_pb2.DescribeLogDirsRequest, set_aside: Mapping[str, Sequence[str]]
    ) -> admin_pb2.DescribeLogDirsResponse:
        cursor = PageCursor(request, "moves between log directories", topic_partition_of)
        described, moves = self._directories.describe(set_aside)
        page = cursor.page(moves, attrgetter("progress.partition"))
        space = self._engine.local.pressure.space
        log_dirs = [log_dir_message(one, space) for one in described]
        return admin_pb2.DescribeLogDirsResponse(
            log_dirs=log_dirs if cursor.after is None else (),
            moves=map(move_message, page.items),
            next_page_token=page.next_page_token,
        )

    def _cleaner_status(self, request: admin_pb2.CleanerStatusRequest) -> admin_pb2.CleanerStatusResponse:
        cursor = PageCursor(request, "uncleanable partitions", topic_partition_of)
        stats = self._cleaner.stats()
        return cleaner_status_message(stats, cursor.page(stats.failures, attrgetter("partition")))


def _require_cleaned_here(topic: str, config: LogConfig) -> None:
    """Raise InvalidRequestError if the cleaner of local logs has nothing to do with the topic."""
    if is_cleaned_here(config):
        return
    raise InvalidRequestError(
        "the topic is tiered, so it is compacted in the object store, by `stratalog compaction run`; the"
        " cleaner of local logs never has it"
        if config.is_compacted
        else "the topic is not compacted, so the cleaner of local logs never has it; name one whose"
        " cleanup.policy has compact",
        topic=topic,
    )
