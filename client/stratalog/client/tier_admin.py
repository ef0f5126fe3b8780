"""The admin client of the tiers: uploads, compaction, retention, verification and collection.

A `start_` method returns the operation that does the work; the method of the same name without
`start_` waits for it and returns its result. The work goes on if the waiting program ends.

Methods import the messages when they need them: most programs do not look at the tiers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.client import values
from stratalog.client.channel import CALL_TIMEOUT_S, ServerChannel
from stratalog.client.errors import refusing_misfits
from stratalog.client.operations import Operations, ResultT, result_of
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.pages import at_page, pages
from stratalog.client.values.conversion import value_of, values_of
from stratalog.client.values.store_status import ServerStatus, StoreStatus

if TYPE_CHECKING:
    from stratalog.v1 import tier_pb2_grpc


OWNER_TIMEOUT_S = 10.0
"""The deadline of a question to another owner, which is asked beside the server of the client."""


class TierAdmin:
    """The tiers of one server, and of the owners of all shards where a method says so. Every method raises
    LogStoreError; those that wait raise the error of the operation, and OperationCancelledError. Belongs to
    one event loop.
    """

    def __init__(self, owners: OwnerChannels, operations: Operations) -> None:
        self._owners = owners
        self._channel = owners.channel
        self._operations = operations

    @cached_property
    def _tiers(self) -> tier_pb2_grpc.TierServiceAsyncStub:
        return _stub_of(self._channel)

    async def tier_status(self) -> values.TierStatus:
        """Contents of the object store by shard, and the lag of the uploader by topic."""
        return await _status_of(self._channel, CALL_TIMEOUT_S)

    async def store_status(self) -> StoreStatus:
        """`tier_status`, and that of each server that owns a shard which this one leaves to others by its
        configuration. A server that does not answer has an error in its part."""
        status = await self.tier_status()
        left = (shard for shard in status.shards if shard.foreign and shard.last_answer_ms < 0)
        endpoints = sorted({one.takeover.endpoint for one in left if one.takeover is not None} - {""})
        asked = [_status_of(self._owners.channel_to(one), OWNER_TIMEOUT_S) for one in endpoints]
        others: list[ServerStatus] = []
        for endpoint, answer in zip(
            endpoints, await asyncio.gather(*asked, return_exceptions=True), strict=True
        ):
            if isinstance(answer, values.TierStatus):
                others.append(ServerStatus(endpoint, answer, None))
            elif isinstance(answer, LogStoreError):
                others.append(ServerStatus(endpoint, None, answer))
            else:
                raise answer
        return StoreStatus(self._channel.address, status, tuple(others))

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
        """Explain what retention would delete now, and what goes next and when. Changes nothing. The owner of
        each partition explains it. One whose owner does not answer is left out, with that as the reason."""
        found = {_place(one): one for one in await _explained(self._channel, topics, CALL_TIMEOUT_S)}
        left_out = [place for place, one in found.items() if one.reason]
        if not left_out:
            return list(found.values())
        owners = await self._owners.elsewhere(left_out)
        asked = [
            _explained(channel, sorted({place.topic for place in places}), OWNER_TIMEOUT_S)
            for channel, places in owners.items()
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for places, answer in zip(owners.values(), answers, strict=True):
            if isinstance(answer, list):
                found |= {_place(one): one for one in answer if _place(one) in places}
            elif isinstance(answer, LogStoreError):
                found |= {place: found[place]._replace(reason=str(answer)) for place in places}
            else:
                raise answer
        return list(found.values())

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


async def _status_of(channel: ServerChannel, timeout_s: float) -> values.TierStatus:
    """The answer of one server. Raises LogStoreError."""
    from stratalog.v1 import tier_pb2

    request = tier_pb2.TierStatusRequest()
    stub = _stub_of(channel)
    status = tier_pb2.TierStatusResponse()
    async for page in pages(
        channel, lambda token: stub.TierStatus(at_page(request, token), timeout=timeout_s)
    ):
        # The times of the shards and of the passes are compared with that of their page.
        time_ms = status.time_ms or page.time_ms
        status.MergeFrom(page)
        status.time_ms = time_ms
    return value_of(values.TierStatus, status)


async def _explained(
    channel: ServerChannel, topics: Sequence[str], timeout_s: float
) -> list[values.ExplainedPartition]:
    """The partitions of these topics, or of all, as one server explains them. Raises LogStoreError."""
    from stratalog.v1 import tier_pb2

    with refusing_misfits():
        request = tier_pb2.ExplainRetentionRequest(topics=topics)
    stub = _stub_of(channel)
    found = pages(channel, lambda token: stub.ExplainRetention(at_page(request, token), timeout=timeout_s))
    return [value_of(values.ExplainedPartition, one) async for page in found for one in page.partitions]


def _place(explained: values.ExplainedPartition) -> TopicPartition:
    return TopicPartition(explained.topic, explained.partition)


def _stub_of(channel: ServerChannel) -> tier_pb2_grpc.TierServiceAsyncStub:
    from stratalog.v1 import tier_pb2_grpc

    return tier_pb2_grpc.TierServiceStub(channel.grpc)
