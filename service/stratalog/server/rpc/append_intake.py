"""Takes in appends: settles what they leave open or take for granted, and encodes plain records.

Plain records without a partition go to the one of their keys, by the rule of Kafka's clients, so that every
client of a topic places a key alike; without keys the server chooses. Offsets, sequences and tokens belong to
one partition, so a request with any of these names it: a retry must not go elsewhere, also after partitions
were added.

A producer id must be one that a server has given: an invented one could meet the state of another producer,
which would take its records for duplicates.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from stratalog.base.clock import Clock
from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.header import HEADER_SIZE, MAGIC, MAGIC_POSITION, NO_PRODUCER_ID, PRODUCER_ID_POSITION
from stratalog.record.plain.plain_records import place_plain
from stratalog.server.append.append_decoding import DecodedAppend, DecodedStreamAppend
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.rpc import convert
from stratalog.server.topics.producer_ids import ProducerIds
from stratalog.server.worker_pools import WorkerPools

MAX_LOOP_BYTES = 64 << 10
"""The most bytes of records whose keys are hashed on the event loop."""

_PRODUCER_ID = struct.Struct(">q")
_FieldOfPartition: TypeAlias = Literal["producer", "expected_offset", "fencing_token"]
_FIELDS_OF_A_PARTITION: tuple[_FieldOfPartition, ...] = ("producer", "expected_offset", "fencing_token")


class AppendIntake:
    """Settles the partitions and the producers of appends, and encodes plain records. Belongs to the event
    loop."""

    def __init__(
        self,
        clock: Clock,
        random_source: random.Random,
        partitions: PartitionRegistry,
        producer_ids: ProducerIds,
        pools: WorkerPools,
    ) -> None:
        self._clock = clock
        self._random = random_source
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._pools = pools

    @staticmethod
    def is_settled(decoded: DecodedAppend | DecodedStreamAppend) -> bool:
        """Whether `resolve` has nothing to do: the request names its partition, and has no producer."""
        request, batches = decoded.request, decoded.batches
        if not request.HasField("partition") or request.HasField("producer"):
            return False
        # The first bit of the id is its sign.
        return batches is None or not _has_header(batches) or batches[PRODUCER_ID_POSITION] >= 0x80

    async def resolve(self, decoded: DecodedAppend | DecodedStreamAppend) -> None:
        """Set the partition of the request if it names none; check the id of its producer.

        Raises InvalidRequestError, UnknownTopicOrPartitionError, UnknownProducerIdError; StoreError or
        OverloadedError if it cannot be found out now whether the id was given.
        """
        request = decoded.request
        if not request.HasField("partition"):
            await self._set_partition(decoded)
        producer_id = NO_PRODUCER_ID
        if request.HasField("producer"):
            if decoded.batches is not None:
                raise InvalidRequestError(
                    "batches have their producer in their headers; leave out the field producer"
                )
            producer_id = request.producer.producer_id
        elif decoded.batches is not None:
            producer_id = producer_id_of(decoded.batches)
            if producer_id < 0:
                return
        else:
            return
        await self.require_producer(producer_id)

    async def require_producer(self, producer_id: int) -> None:
        """Raise UnknownProducerIdError for an id that no server has given; StoreError or OverloadedError if
        that cannot be found out now."""
        if not self._producer_ids.is_given(producer_id):
            # The catalog may be asked.
            await self._pools.cold_lookup(partial(self._producer_ids.require_given, producer_id))

    def payload(
        self, decoded: DecodedAppend | DecodedStreamAppend, max_batch_bytes: int
    ) -> Buffer | Callable[[], Buffer]:
        """The batches, or a function that encodes plain records on the writer's thread, to a batch of at most
        `max_batch_bytes`. Raises InvalidRequestError."""
        request = decoded.request
        if decoded.batches is not None:
            return decoded.batches
        if decoded.records is not None:
            producer = convert.batch_producer(request)
            return partial(
                convert.plain_batch, decoded.records, max_batch_bytes, self._clock.now_ms(), producer
            )
        raise InvalidRequestError("an append needs batches or records")

    async def _set_partition(self, decoded: DecodedAppend | DecodedStreamAppend) -> None:
        request = decoded.request
        if decoded.batches is not None:
            raise InvalidRequestError("an append of batches names its partition")
        for field in _FIELDS_OF_A_PARTITION:
            if request.HasField(field):
                raise InvalidRequestError(
                    "an append without a partition has no producer, expected offset or fencing token, which"
                    " belong to one partition; name it",
                    field=field,
                )
        topic = self._partitions.topic(request.topic)
        records = decoded.records or b""
        find = partial(place_plain, records, len(topic.all_partitions))
        place = find() if len(records) <= MAX_LOOP_BYTES else await self._pools.compute(find)
        if place.other_index is not None:
            raise InvalidRequestError(
                "the keys of the records belong to several partitions; send an append for each partition",
                record_index=place.other_index,
                topic=request.topic,
                partition=place.other_partition,
                other_partition=place.partition,
            )
        request.partition = self._any_partition(topic) if place.partition is None else place.partition

    def _any_partition(self, topic: HostedTopic) -> int:
        """A partition of the server's choice, online if there is one."""
        chosen = self._random.choice(topic.all_partitions)
        if not _is_online(chosen):
            online = [one for one in topic.partitions if _is_online(one)]
            chosen = self._random.choice(online) if online else chosen
        return chosen.topic_partition.partition


def _is_online(partition: object) -> bool:
    return isinstance(partition, HostedPartition) and partition.offline() is None


def _has_header(batches: Buffer) -> bool:
    """Whether the request begins with a header, as far as its size and its magic say."""
    return len(batches) >= HEADER_SIZE and batches[MAGIC_POSITION] == MAGIC


def producer_id_of(batches: Buffer) -> int:
    """The producer id of a request's first batch; -1 if it has none, or no header. A request with a producer
    has only one batch; the log checks its form."""
    if not _has_header(batches):
        return NO_PRODUCER_ID
    producer_id: int
    (producer_id,) = _PRODUCER_ID.unpack_from(batches, PRODUCER_ID_POSITION)
    return producer_id
