"""The tiers over gRPC. Looks at the store run on the task pool, long work as operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, itemgetter

from stratalog.base.clock import Clock
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.compaction.plan.job_cost import cost_of
from stratalog.remote.metadata.head.metadata_version import METADATA_VERSION
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.background.tier_compaction import IdleTopic
from stratalog.server.engine.storage_engine import StorageEngine
from stratalog.server.operations.operation import Operation, OperationKind
from stratalog.server.operations.operation_registry import Work
from stratalog.server.operations.operation_results import LeftOutShard
from stratalog.server.rpc.access.shown_topics import IsShown, ids_shown_in_work, shown_in_work
from stratalog.server.rpc.admin.operation_convert import operation_message
from stratalog.server.rpc.admin.plan_pages import plan_page, plan_place_of
from stratalog.server.rpc.admin.tier_convert import (
    caches_message,
    excluded_message,
    explained_message,
    finalized_head_message,
    idle_topic_message,
    planned_job_message,
    prices_message,
)
from stratalog.server.rpc.admin.tier_status import tier_status_message
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.paging import PageCursor, topic_id_partition_of, topic_partition_of
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import operation_pb2, tier_pb2, tier_pb2_grpc


class TierServicer(tier_pb2_grpc.TierServiceServicer):
    """Answers the requests of the tier service. Belongs to the event loop."""

    def __init__(
        self, clock: Clock, engine: StorageEngine, pools: WorkerPools, statuses: ErrorStatuses
    ) -> None:
        self._clock = clock
        self._engine = engine
        self._registry = engine.topics.registry
        self._tier = engine.tier
        self._pools = pools
        self.statuses = statuses

    @guarded
    async def TierStatus(
        self, request: tier_pb2.TierStatusRequest, context: Context
    ) -> tier_pb2.TierStatusResponse:
        return await self._pools.long_task(
            partial(tier_status_message, request, self._engine, self._clock.now_ms())
        )

    @guarded
    async def StartUpload(
        self, request: tier_pb2.StartUploadRequest, context: Context
    ) -> tier_pb2.StartUploadResponse:
        topics, delete_local = _each_once(request.topics), request.delete_local
        started = self._start(
            OperationKind.UPLOAD,
            topics,
            self._counted(
                "upload", lambda one: self._tier.manager.upload(topics, one, delete_local=delete_local)
            ),
        )
        return tier_pb2.StartUploadResponse(operation=started)

    @guarded
    async def StartCompaction(
        self, request: tier_pb2.StartCompactionRequest, context: Context
    ) -> tier_pb2.StartCompactionResponse:
        topics = _each_once(request.topics)
        started = self._start(
            OperationKind.COMPACTION,
            topics,
            self._counted("compaction", lambda one: self._tier.compaction.compact(topics, one)),
        )
        return tier_pb2.StartCompactionResponse(operation=started)

    @guarded
    async def PlanCompaction(
        self, request: tier_pb2.PlanCompactionRequest, context: Context
    ) -> tier_pb2.PlanCompactionResponse:
        return await self._pools.long_task(partial(self._plan, request, shown_in_work()))

    @guarded
    async def ListExcludedPartitions(
        self, request: tier_pb2.ListExcludedPartitionsRequest, context: Context
    ) -> tier_pb2.ListExcludedPartitionsResponse:
        return await self._pools.describe(partial(self._list_excluded, request))

    @guarded
    async def ResetExcludedPartition(
        self, request: tier_pb2.ResetExcludedPartitionRequest, context: Context
    ) -> tier_pb2.ResetExcludedPartitionResponse:
        was_excluded = self._tier.compaction.reset(request.topic, request.partition)
        return tier_pb2.ResetExcludedPartitionResponse(was_excluded=was_excluded)

    @guarded
    async def StartRetention(
        self, request: tier_pb2.StartRetentionRequest, context: Context
    ) -> tier_pb2.StartRetentionResponse:
        topics = _each_once(request.topics)
        started = self._start(
            OperationKind.RETENTION,
            topics,
            self._counted("remote-retention", lambda one: self._tier.retention.run(topics, one)),
        )
        return tier_pb2.StartRetentionResponse(operation=started)

    @guarded
    async def ExplainRetention(
        self, request: tier_pb2.ExplainRetentionRequest, context: Context
    ) -> tier_pb2.ExplainRetentionResponse:
        return await self._pools.long_task(partial(self._explain, request))

    @guarded
    async def StartVerification(
        self, request: tier_pb2.StartVerificationRequest, context: Context
    ) -> tier_pb2.StartVerificationResponse:
        topics = _each_once(request.topics)
        started = self._start(
            OperationKind.VERIFICATION,
            topics,
            lambda one: self._tier.upkeep.verify(topics, one, reads_data=not request.metadata_only),
        )
        return tier_pb2.StartVerificationResponse(operation=started)

    @guarded
    async def StartCollection(
        self, request: tier_pb2.StartCollectionRequest, context: Context
    ) -> tier_pb2.StartCollectionResponse:
        started = self._start(
            OperationKind.COLLECTION,
            (),
            self._list_garbage
            if request.dry_run
            else self._counted("collector", partial(self._tier.upkeep.collect, is_dry_run=False)),
        )
        return tier_pb2.StartCollectionResponse(operation=started)

    @guarded
    async def DescribeCaches(
        self, request: tier_pb2.DescribeCachesRequest, context: Context
    ) -> tier_pb2.DescribeCachesResponse:
        return await self._pools.describe(lambda: caches_message(self._tier.upkeep.caches()))

    @guarded
    async def EmptyCaches(
        self, request: tier_pb2.EmptyCachesRequest, context: Context
    ) -> tier_pb2.EmptyCachesResponse:
        emptied_bytes = await self._pools.task(self._tier.upkeep.empty_caches)
        return tier_pb2.EmptyCachesResponse(emptied_bytes=emptied_bytes)

    @guarded
    async def FinalizeMetadata(
        self, request: tier_pb2.FinalizeMetadataRequest, context: Context
    ) -> tier_pb2.FinalizeMetadataResponse:
        finalize = partial(self._tier.upkeep.finalize, is_dry_run=request.dry_run)
        return tier_pb2.FinalizeMetadataResponse(
            supported_metadata_version=METADATA_VERSION,
            heads=map(finalized_head_message, await self._pools.long_task(finalize)),
        )

    def _list_excluded(
        self, request: tier_pb2.ListExcludedPartitionsRequest
    ) -> tier_pb2.ListExcludedPartitionsResponse:
        cursor = PageCursor(request, "partitions that compaction leaves alone", topic_id_partition_of)
        page = cursor.page(sorted(self._tier.compaction.exclusions().items()), itemgetter(0))
        names = {topic.topic_id: topic.name for topic in self._registry.topics()}
        return tier_pb2.ListExcludedPartitionsResponse(
            partitions=[excluded_message(tip, one, names.get(tip.topic_id, "")) for tip, one in page.items],
            next_page_token=page.next_page_token,
        )

    def _counted(self, name: str, work: Callable[[Operation], PassOutcome]) -> Work:
        """The work as a turn of the background pass of this name, which does the same by itself."""

        def run(operation: Operation) -> None:
            with self._engine.passes.turn(name) as one:
                one.outcome = work(operation)

        return run

    def _list_garbage(self, operation: Operation) -> None:
        self._tier.upkeep.collect(operation, is_dry_run=True)

    def _plan(
        self, request: tier_pb2.PlanCompactionRequest, is_shown: IsShown
    ) -> tier_pb2.PlanCompactionResponse:
        """A page of a new plan: its jobs, then the topics without one. Jobs name the topics that are shown,
        and take along what lies in the same objects. Raises PlanChangedError if the page
        before was of another plan."""
        cursor = PageCursor(request, f"plan of {sorted(set(request.topics))}", plan_place_of)
        planned = self._tier.compaction.plan(_each_once(request.topics))
        page = plan_page(cursor, planned)
        jobs = [item for item in page.items if isinstance(item, CompactionJob)]
        idle = [item for item in page.items if isinstance(item, IdleTopic)]
        return tier_pb2.PlanCompactionResponse(
            jobs=[planned_job_message(job, cost_of(job, planned.settings), is_shown) for job in jobs],
            prices=prices_message(planned.settings),
            idle_topics=map(idle_topic_message, idle),
            next_page_token=page.next_page_token,
        )

    def _explain(self, request: tier_pb2.ExplainRetentionRequest) -> tier_pb2.ExplainRetentionResponse:
        """A page of explanations; only its partitions are looked at."""
        cursor = PageCursor(request, f"retention of {sorted(set(request.topics))}", topic_partition_of)
        page = cursor.page(
            self._tier.retention.partitions(_each_once(request.topics)), attrgetter("topic_partition")
        )
        return tier_pb2.ExplainRetentionResponse(
            partitions=[
                explained_message(name, one) for name, one in self._tier.retention.explain(page.items)
            ],
            next_page_token=page.next_page_token,
        )

    def _start(self, kind: OperationKind, topics: Sequence[str], work: Work) -> operation_pb2.Operation:
        """Start an operation over the named topics (all if none is named). Raises
        UnknownTopicOrPartitionError, NotOwnerError, OverloadedError."""
        for name in topics:
            self._registry.topic(name)
        self._tier.shards.ensure_owned()

        def run(operation: Operation) -> None:
            try:
                work(operation)
            finally:
                # At the end: a shard that another server has taken over meanwhile is not done either.
                operation.leave_out(self._left_out(topics))

        is_shown = ids_shown_in_work(self._registry)
        return operation_message(self._engine.operations.start(kind, topics, run), is_shown)

    def _left_out(self, topics: Sequence[str]) -> tuple[LeftOutShard, ...]:
        """The shards of other servers with partitions of the named topics (all if none is named)."""
        if not topics:
            return self._tier.shards.left_out(None)
        named = [found for name in topics if (found := self._registry.find(name)) is not None]
        return self._tier.shards.left_out(
            one.topic_id_partition for topic in named for one in topic.all_partitions
        )


def _each_once(topics: Sequence[str]) -> list[str]:
    """The topics of a request, which may name one twice."""
    return list(dict.fromkeys(topics))
