"""The admin client of the tiers: uploads, compaction, retention, verification and collection.

A `start_` method returns the operation that does the work; the method of the same name without
`start_` waits for it and returns its result. The work goes on if the waiting program ends.

Methods import the messages when they need them: most programs do not look at the tiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from stratalog.client import values
from stratalog.client.channel import CALL_TIMEOUT_S, ServerChannel
from stratalog.client.errors import refusing_misfits
from stratalog.client.operations import Operations, ResultT, result_of
from stratalog.client.pages import at_page, pages
from stratalog.client.values.conversion import value_of, values_of

if TYPE_CHECKING:
    from stratalog.v1 import tier_pb2_grpc


class TierAdmin:
    """The tiers of one server. Every method raises LogStoreError; the methods that wait raise the error of
    the operation, and OperationCancelledError. Belongs to one event loop.
    """

    def __init__(self, channel: ServerChannel, operations: Operations) -> None:
        self._channel = channel
        self._operations = operations

    @cached_property
    def _tiers(self) -> tier_pb2_grpc.TierServiceAsyncStub:
        from stratalog.v1 import tier_pb2_grpc

        return tier_pb2_grpc.TierServiceStub(self._channel.grpc)

    async def tier_status(self) -> values.TierStatus:
        """Contents of the object store by shard, and the lag of the uploader by topic."""
        from stratalog.v1 import tier_pb2

        request = tier_pb2.TierStatusRequest()
        found = pages(
            self._channel,
            lambda token: self._tiers.TierStatus(at_page(request, token), timeout=CALL_TIMEOUT_S),
        )
        status = tier_pb2.TierStatusResponse()
        async for page in found:
            # The times of the shards and of the passes are compared with that of their page.
            time_ms = status.time_ms or page.time_ms
            status.MergeFrom(page)
            status.time_ms = time_ms
        return value_of(values.TierStatus, status)

    async def start_upload(
        self, topics: Sequence[str] = (), *, delete_local: bool = False
    ) -> values.Operation:
        """Roll and tier now. `delete_local`: also delete local segments that are committed in the object
        store."""
        from stratalog.v1 import tier_pb2

        with refusing_misfits():
            request = tier_pb2.StartUploadRequest(topics=topics, delete_local=delete_local)
        response = await self._channel.call(self._tiers.StartUpload(request, timeout=CALL_TIMEOUT_S))
        return value_of(values.Operation, response.operation)

    async def upload(self, topics: Sequence[str] = (), *, delete_local: bool = False) -> values.UploadResult:
        """`start_upload`, and wait. Raises DataDirectoryError if a named topic has an offline partition; its
        fields count the uploads of other partitions. If no topic is named, the result lists failed partitions
        instead.
        """
        started = await self.start_upload(topics, delete_local=delete_local)
        return await self._result(started, values.UploadResult)

    async def start_compaction(self, topics: Sequence[str] = ()) -> values.Operation:
        """Compact tiered data of the named topics, or of all topics, now."""
        from stratalog.v1 import tier_pb2

        with refusing_misfits():
            request = tier_pb2.StartCompactionRequest(topics=topics)
        response = await self._channel.call(self._tiers.StartCompaction(request, timeout=CALL_TIMEOUT_S))
        return value_of(values.Operation, response.operation)

    async def run_compaction(self, topics: Sequence[str] = ()) -> list[values.CompactionJob]:
        """`start_compaction`, and wait. Returns the jobs that ran, the first 1,000 of them."""
        result = await self._result(await self.start_compaction(topics), values.CompactionResult)
        return list(result.jobs)

    async def plan_compaction(self, topics: Sequence[str] = ()) -> values.CompactionPlan:
        """The jobs that a compaction would run now, and the reasons where there is none. Raises
        PlanChangedError if the plan changed while its pages were read; call again then."""
        from stratalog.v1 import tier_pb2

        with refusing_misfits():
            request = tier_pb2.PlanCompactionRequest(topics=topics)
        found = pages(
            self._channel,
            lambda token: self._tiers.PlanCompaction(at_page(request, token), timeout=CALL_TIMEOUT_S),
        )
        plan = tier_pb2.PlanCompactionResponse()
        async for page in found:
            plan.MergeFrom(page)
        return value_of(values.CompactionPlan, plan)

    async def excluded_partitions(self) -> list[values.ExcludedPartition]:
        """The partitions that compaction leaves alone."""
        from stratalog.v1 import tier_pb2

        request = tier_pb2.ListExcludedPartitionsRequest()
        found = pages(
            self._channel,
            lambda token: self._tiers.ListExcludedPartitions(at_page(request, token), timeout=CALL_TIMEOUT_S),
        )
        return [value_of(values.ExcludedPartition, one) async for page in found for one in page.partitions]

    async def reset_excluded_partition(self, topic: str, partition: int) -> bool:
        """Let compaction try a partition again; returns False if it had not failed."""
        from stratalog.v1 import tier_pb2

        with refusing_misfits():
            request = tier_pb2.ResetExcludedPartitionRequest(topic=topic, partition=partition)
        response = await self._channel.call(
            self._tiers.ResetExcludedPartition(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return response.was_excluded

    async def start_retention(self, topics: Sequence[str] = ()) -> values.Operation:
        """Delete what the retention of the named topics, or of all topics, does not keep, now."""
        from stratalog.v1 import tier_pb2

        with refusing_misfits():
            request = tier_pb2.StartRetentionRequest(topics=topics)
        response = await self._channel.call(self._tiers.StartRetention(request, timeout=CALL_TIMEOUT_S))
        return value_of(values.Operation, response.operation)

    async def run_retention(self, topics: Sequence[str] = ()) -> values.RetentionResult:
        """`start_retention`, and wait."""
        return await self._result(await self.start_retention(topics), values.RetentionResult)

    async def explain_retention(self, topics: Sequence[str] = ()) -> list[values.ExplainedPartition]:
        """Explain what retention would delete now, and what goes next and when. Changes nothing."""
        from stratalog.v1 import tier_pb2

        with refusing_misfits():
            request = tier_pb2.ExplainRetentionRequest(topics=topics)
        found = pages(
            self._channel,
            lambda token: self._tiers.ExplainRetention(at_page(request, token), timeout=CALL_TIMEOUT_S),
        )
        return [value_of(values.ExplainedPartition, one) async for page in found for one in page.partitions]

    async def start_verification(
        self, topics: Sequence[str] = (), *, metadata_only: bool = False
    ) -> values.Operation:
        """Check the metadata of the store, read all tiered data of the named topics, or of all topics, and
        compare it with the metadata. `metadata_only`: read no data, and only list the objects."""
        from stratalog.v1 import tier_pb2

        with refusing_misfits():
            request = tier_pb2.StartVerificationRequest(topics=topics, metadata_only=metadata_only)
        response = await self._channel.call(self._tiers.StartVerification(request, timeout=CALL_TIMEOUT_S))
        return value_of(values.Operation, response.operation)

    async def verify(
        self, topics: Sequence[str] = (), *, metadata_only: bool = False
    ) -> values.VerificationResult:
        """`start_verification`, and wait. Damage is in the findings of the result."""
        started = await self.start_verification(topics, metadata_only=metadata_only)
        return await self._result(started, values.VerificationResult)

    async def start_collection(self, *, dry_run: bool = False) -> values.Operation:
        """Delete files of the store that commits have dropped and whose grace is over. `dry_run`: only list
        them."""
        from stratalog.v1 import tier_pb2

        request = tier_pb2.StartCollectionRequest(dry_run=dry_run)
        response = await self._channel.call(self._tiers.StartCollection(request, timeout=CALL_TIMEOUT_S))
        return value_of(values.Operation, response.operation)

    async def collect(self, *, dry_run: bool = False) -> values.CollectionResult:
        """`start_collection`, and wait."""
        return await self._result(await self.start_collection(dry_run=dry_run), values.CollectionResult)

    async def describe_caches(self) -> list[values.CacheStatus]:
        """The caches of tiered data in the server's memory and on its disk."""
        from stratalog.v1 import tier_pb2

        request = tier_pb2.DescribeCachesRequest()
        response = await self._channel.call(
            self._tiers.DescribeCaches(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return values_of(values.CacheStatus, response.caches)

    async def empty_caches(self) -> int:
        """Empty these caches; returns the size of what was in them."""
        from stratalog.v1 import tier_pb2

        request = tier_pb2.EmptyCachesRequest()
        response = await self._channel.call(
            self._tiers.EmptyCaches(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return response.emptied_bytes

    async def finalize_metadata(self, *, dry_run: bool = False) -> values.FinalizedMetadata:
        """Let the server use all actions of the metadata that it knows, which older software cannot read.
        There is no way back. `dry_run`: only read the versions."""
        from stratalog.v1 import tier_pb2

        request = tier_pb2.FinalizeMetadataRequest(dry_run=dry_run)
        response = await self._channel.call(
            self._tiers.FinalizeMetadata(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return value_of(values.FinalizedMetadata, response)

    async def _result(self, started: values.Operation, result_class: type[ResultT]) -> ResultT:
        """Wait for the success of the operation, and return its result."""
        return result_of(await self._operations.done(started), result_class)
