"""Routes the sealed batches of a producer to the owners of their partitions.

Each partition has a `PartitionLane`, and each owner an `AppendSender` with a stream of its own: an owner that
is slow or away delays no partition of another one. A lane is with one sender at a time, and changes over only
while none of its batches is in flight. It takes all its batches along, so their order stays, and so do the
sequence numbers of those in doubt:

* A lane without batches goes to the present owner, as far as is known, with its next batch.
* If a server refuses a partition because another one owns it, or the connection to an owner fails, the sender
  asks for the owners again, and its lanes go there.

All senders share one producer id. The server that gives it takes it from the store, so it is new to every
owner, and a lane that has spent an id never gets it again.
"""

from __future__ import annotations

from collections.abc import Collection

from stratalog.base.types import TopicPartition
from stratalog.client.channel import ServerChannel
from stratalog.client.messages import DurabilityLike, wire_durability
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.retry import RetryPolicy
from stratalog.client.sending.append_sender import AppendSender, SenderEvents
from stratalog.client.sending.partition_lane import MAX_IN_FLIGHT_COUNT, PartitionLane
from stratalog.client.sending.producer_identities import ProducerIdentities
from stratalog.client.sending.sealed_batch import SealedBatch


class BatchRouter:
    """Sends the batches of a producer, in order within each partition. Belongs to one event loop."""

    def __init__(
        self,
        owners: OwnerChannels,
        durability: DurabilityLike | None,
        retry: RetryPolicy,
        events: SenderEvents,
        is_idempotent: bool = False,
    ) -> None:
        self._owners = owners
        self._durability = wire_durability(durability)
        self._retry = retry
        self._events = events
        self._is_idempotent = is_idempotent
        self._identities = ProducerIdentities()
        self._lanes: dict[TopicPartition, PartitionLane] = {}
        self._senders: dict[ServerChannel, AppendSender] = {}
        self._sender_by_lane: dict[PartitionLane, AppendSender] = {}
        """The sender of each lane that has batches, or had some."""

    def send(self, batch: SealedBatch) -> None:
        """Queue `batch` behind all earlier ones of its partition."""
        topic_partition = batch.topic_partition
        lane = self._lanes.get(topic_partition)
        if lane is None:
            lane = PartitionLane(
                topic_partition,
                self._retry,
                self._events.on_settled,
                self._events.on_split,
                self._on_pause_over,
                self._is_idempotent,
            )
            self._lanes[topic_partition] = lane
        sender = self._sender_by_lane[lane] if lane.is_busy else self._owner_sender(lane)
        lane.queue(batch)
        sender.serve(lane)

    def is_busy_with(self, topic_partition: TopicPartition) -> bool:
        """Whether another batch of the partition could not be sent now."""
        lane = self._lanes.get(topic_partition)
        return lane is not None and lane.batch_count >= MAX_IN_FLIGHT_COUNT

    def compressed(self, batch: SealedBatch) -> None:
        """Note that a queued batch has its records now."""
        lane = self._lanes.get(batch.topic_partition)
        if lane is not None:
            self._sender_by_lane[lane].on_lane_changed(lane)

    def forget_limits(self, topic: str) -> None:
        """Note that the limits of a topic may have changed."""
        for topic_partition, lane in self._lanes.items():
            if topic_partition.topic == topic:
                lane.forget_limits()

    def abandon(self) -> None:
        """Stop at once and discard unacknowledged batches, which may or may not have been applied."""
        for sender in self._senders.values():
            sender.abandon()

    def check(self) -> None:
        """Assert the invariants of the state."""
        for sender in self._senders.values():
            sender.check()
        for topic_partition, lane in self._lanes.items():
            lane.check()
            assert lane.topic_partition == topic_partition
            holders = [sender for sender in self._senders.values() if lane in sender.lanes]
            assert holders == ([self._sender_by_lane[lane]] if lane.is_busy else [])

    async def _move(self, sender: AppendSender, topics: Collection[str]) -> None:
        """Ask for the owners of these topics, and pass the lanes of a sender on to their owners. Raises
        LogStoreError."""
        await self._owners.look_up(topics)
        for lane in sender.lanes:
            if self._owners.channel_of(lane.topic_partition) is not sender.channel:
                sender.release(lane)
                self._owner_sender(lane).serve(lane)

    def _on_pause_over(self, lane: PartitionLane) -> None:
        self._sender_by_lane[lane].on_lane_changed(lane)

    def _owner_sender(self, lane: PartitionLane) -> AppendSender:
        """The sender of the lane's owner, which the lane belongs to from now on."""
        channel = self._owners.channel_of(lane.topic_partition)
        sender = self._senders.get(channel)
        if sender is None:
            sender = AppendSender(
                channel,
                self._durability,
                self._retry,
                self._events,
                self._identities if self._is_idempotent else None,
                self._move,
            )
            self._senders[channel] = sender
        self._sender_by_lane[lane] = sender
        return sender
