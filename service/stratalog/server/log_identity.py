"""The identity of a partition's log, which clients name in requests and get in answers.

The name of a topic may go to another topic, which has another id. A shard may go to another server, whose
leader epoch is higher, and which may have fewer records. A client that sends the id and the epoch that it
knows is refused if it would read or write another log than it means.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import Message

from stratalog.base.errors import (
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    InvalidRequestError,
    UnknownLeaderEpochError,
)
from stratalog.base.types import TopicPartition
from stratalog.v1 import log_pb2

ANY_TOPIC_ID = ""
ANY_LEADER_EPOCH = 0
UNKNOWN_EPOCH = -1
"""The leader epoch of an offset of which none is known."""


class LogIdentity(NamedTuple):
    """Topic, partition and leader epoch of a log on this server. Neither changes while the server runs."""

    topic: str
    topic_id: str
    """The UUID as the wire has it: lower-case hexadecimal with hyphens."""
    partition: int
    leader_epoch: int
    """The epoch of this server's claim of the shard."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def require_epoch(self, leader_epoch: int) -> None:
        """Check that a client knows this leader epoch, or any. Raises FencedLeaderEpochError,
        UnknownLeaderEpochError, InvalidRequestError.
        """
        if leader_epoch in (ANY_LEADER_EPOCH, self.leader_epoch):
            return
        if leader_epoch < 0:
            raise InvalidRequestError(
                "a leader epoch is not negative; leave it out for any", leader_epoch=leader_epoch
            )
        if leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(
                "this leader epoch has ended, another server may have had the partition since; look the epoch"
                " up again",
                leader_epoch=leader_epoch,
                current_leader_epoch=self.leader_epoch,
            )
        raise self.unknown_epoch(leader_epoch)

    def unknown_epoch(self, leader_epoch: int) -> UnknownLeaderEpochError:
        """The refusal of a client that knows a newer epoch than this server."""
        return UnknownLeaderEpochError(
            "this server does not know so new a leader epoch, because another one has taken over; ask again,"
            " or ask that one",
            leader_epoch=leader_epoch,
            current_leader_epoch=self.leader_epoch,
        )


def named_partition(request: object) -> TopicPartition | None:
    """The one partition that a message of the wire names; None if it names none or may name several."""
    if not isinstance(request, Message):
        return None
    if isinstance(request, log_pb2.ReadRequest):
        if len(request.partitions) != 1:
            return None
        return TopicPartition(request.topic, request.partitions[0].partition)
    fields = request.DESCRIPTOR.fields_by_name
    if "topic" not in fields or "partition" not in fields:
        return None
    if fields["partition"].has_presence and not request.HasField("partition"):
        return None
    topic: str = getattr(request, "topic")  # noqa: B009 - the class is known at run time only
    partition: int = getattr(request, "partition")  # noqa: B009 - as above
    return TopicPartition(topic, partition)


def require_topic_id(topic: str, topic_id: str, current_topic_id: str) -> None:
    """Check that a client that sends `topic_id` means the topic that has the name. Raises
    InconsistentTopicIdError.
    """
    if topic_id not in (ANY_TOPIC_ID, current_topic_id):
        raise InconsistentTopicIdError(
            "another topic has this name; look up the id of the topic that you mean",
            topic=topic,
            topic_id=topic_id,
            current_topic_id=current_topic_id,
        )
