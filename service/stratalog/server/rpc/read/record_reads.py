"""Begins reads of plain records: checks the request, and looks up where each partition begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stratalog.base.clock import Clock
from stratalog.base.errors import InvalidRequestError, LogStoreError, forget_frames
from stratalog.base.types import TopicPartition
from stratalog.log.isolation import Isolation
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.fetch.closing import Closing
from stratalog.server.fetch.fetch_cursor import FetchCursor
from stratalog.server.fetch.fetch_session import FetchSession
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.partitions.unknown_topic import require_partition_number
from stratalog.server.request_memory import FetchMemory
from stratalog.server.rpc import convert
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.read.read_encoding import ReadEncoder
from stratalog.server.rpc.read.record_read import RecordRead
from stratalog.server.rpc.start_lookup import StartLookup
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2

MAX_READ_PARTITION_COUNT = 10_000
DEFAULT_HEARTBEAT_MS = 15_000
MIN_HEARTBEAT_MS = 100


class RecordReads:
    """Makes the reads of a server. Belongs to the event loop."""

    def __init__(
        self,
        clock: Clock,
        partitions: PartitionRegistry,
        pools: WorkerPools,
        closing: Closing,
        memory: FetchMemory,
        settings: ServerSettings,
        statuses: ErrorStatuses,
    ) -> None:
        self._clock = clock
        self._partitions = partitions
        self._pools = pools
        self._closing = closing
        self._memory = memory
        self._settings = settings
        self._statuses = statuses
        self._starts = StartLookup(pools)

    async def begin(self, request: log_pb2.ReadRequest) -> RecordRead:
        """A read at its start; the caller closes it. Raises LogStoreError."""
        isolation = convert.isolation(request.isolation)
        _require_meaning(request)
        topic = self._partitions.topic(request.topic, request.topic_id)
        wanted = list(request.partitions) or [
            log_pb2.ReadPartition(partition=number) for number in range(len(topic.all_partitions))
        ]
        cursors = [await self._cursor(request, one, isolation) for one in wanted]
        session = FetchSession(
            cursors, self._pools, self._closing, self._memory, self._settings.default_fetch_bytes
        )
        encoder = ReadEncoder(
            self._clock,
            self._statuses,
            self._memory,
            str(topic.topic_id),
            request.max_record_count or None,
            is_single=len(request.partitions) == 1,
        )
        follows_topic = request.follow and not request.partitions and not request.HasField("until")
        return RecordRead(
            session,
            encoder,
            self._pools,
            self._closing,
            self._added_to(topic, isolation) if follows_topic else list[FetchCursor],
            heartbeat_s=(request.heartbeat_ms or DEFAULT_HEARTBEAT_MS) / 1000,
            fetches_ahead=not request.max_record_count,
        )

    async def _cursor(
        self, request: log_pb2.ReadRequest, wanted: log_pb2.ReadPartition, isolation: Isolation
    ) -> FetchCursor:
        start = wanted.start if wanted.HasField("start") else request.start
        is_set = wanted.HasField("start") or request.HasField("start")
        try:
            partition = self._partitions.partition(request.topic, wanted.partition)
            # The end comes first: a log that grows meanwhile ends no read before its start.
            end_offset = await self._end_offset(partition, request, isolation)
            offset = await self._starts.offset(partition, start if is_set else None, isolation)
            epoch = wanted.last_fetched_epoch
            if wanted.HasField("last_fetched_epoch") and not partition.is_continued_here(offset, epoch):
                await self._pools.cold_read(partial(partition.ensure_continued, offset, epoch))
        except LogStoreError as error:
            # Its frames hold this one, and so the cursor: thousands of them would wait for the collector.
            forget_frames(error)
            return self._new_cursor(TopicPartition(request.topic, wanted.partition), error, isolation)
        return self._begun(partition, isolation, offset, end_offset)

    async def _end_offset(
        self, partition: HostedPartition, request: log_pb2.ReadRequest, isolation: Isolation
    ) -> int | None:
        log_end_offset = None if request.follow else partition.watermarks().end_offset(isolation)
        if not request.HasField("until"):
            return log_end_offset
        until_offset = await self._starts.offset(partition, request.until, isolation)
        return until_offset if log_end_offset is None else min(until_offset, log_end_offset)

    def _added_to(self, topic: HostedTopic, isolation: Isolation) -> Callable[[], list[FetchCursor]]:
        """A function that returns cursors of the partitions that the topic has got since its last call."""
        known_count = len(topic.all_partitions)

        def added() -> list[FetchCursor]:
            nonlocal known_count
            now = self._partitions.find(topic.name)
            if now is None or now.topic_id != topic.topic_id:
                return []
            first, known_count = known_count, max(known_count, len(now.all_partitions))
            return [
                self._begun(one, isolation, one.log_start_offset, None)
                if isinstance(one, HostedPartition)
                else self._new_cursor(one.topic_partition, one.error(), isolation)
                for one in now.all_partitions[first:]
            ]

        return added

    def _begun(
        self, partition: HostedPartition, isolation: Isolation, offset: int, end_offset: int | None
    ) -> FetchCursor:
        cursor = self._new_cursor(partition.topic_partition, partition, isolation)
        cursor.begin(offset, end_offset)
        return cursor

    def _new_cursor(
        self,
        topic_partition: TopicPartition,
        partition: HostedPartition | LogStoreError,
        isolation: Isolation,
    ) -> FetchCursor:
        max_bytes = self._settings.default_fetch_partition_bytes
        return FetchCursor(topic_partition, partition, 0, max_bytes, isolation)


def _require_meaning(request: log_pb2.ReadRequest) -> None:
    """Raise InvalidRequestError if no partition can be read as the request says."""
    if len(request.partitions) > MAX_READ_PARTITION_COUNT:
        raise InvalidRequestError(
            "a read names too many partitions, use several reads", allowed=MAX_READ_PARTITION_COUNT
        )
    numbers = [one.partition for one in request.partitions]
    for number in numbers:
        require_partition_number(request.topic, number)
    if len(set(numbers)) < len(numbers):
        raise InvalidRequestError("a read names each partition once", topic=request.topic)
    if request.max_record_count < 0:
        raise InvalidRequestError(
            "max_record_count is not negative; 0 is no limit", max_record_count=request.max_record_count
        )
    if request.heartbeat_ms and request.heartbeat_ms < MIN_HEARTBEAT_MS:
        raise InvalidRequestError(
            "heartbeats are at least 100 ms apart; 0 is the default", heartbeat_ms=request.heartbeat_ms
        )
