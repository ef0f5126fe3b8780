"""The logs of a store as its servers have them: how far they reach beyond the objects.

A scan with a service reads each partition from the objects as far as these go, and from the service behind
that. The driver reads the metadata first and asks the servers then, so the two meet: a log never ends below
its tiered end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast
from uuid import UUID

from stratalog.base.errors import (
    DataDirectoryError,
    InconsistentTopicIdError,
    InvalidConfigError,
    LogStoreError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    StartingError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchStart
from stratalog.client.position import TimePosition
from stratalog.client.values.admin_values import PartitionLog
from stratalog.remote.metadata.head.page_loader import RunAll

_BYTES_PER_OFFSET = 100.0
"""An estimate for a log without local records."""


class ServedLog(NamedTuple):
    """The log of a partition at one moment, as its server has it."""

    log_start_offset: int
    local_start_offset: int
    """The first offset on the server's disk."""
    end_offset: int
    """The end of the visible records, exclusive."""
    stable_end_offset: int
    """The end of the records of decided transactions, exclusive."""
    leader_epoch: int
    """No record has a higher one."""
    bytes_per_offset: float
    """An estimate, by the local segments."""

    def readable_end(self, isolation: IsolationLevel) -> int:
        """The exclusive end of the records for a reader of this level."""
        return self.stable_end_offset if isolation is IsolationLevel.READ_COMMITTED else self.end_offset


class ServedLogs:
    """The logs of a store as its servers have them. Thread-safe."""

    def __init__(self, client: SyncClient, store_id: UUID, run_all: RunAll) -> None:
        self._client = client
        self._store_id = store_id
        self._run_all = run_all

    def logs_of(
        self, tips_by_topic: Mapping[str, Sequence[TopicIdPartition]]
    ) -> dict[TopicIdPartition, ServedLog]:
        """The logs of these partitions now. Raises InvalidConfigError if the servers have another store,
        InconsistentTopicIdError for a topic that they know under another id, DataDirectoryError for a
        partition that is offline, UnknownTopicOrPartitionError, ServerUnavailableError."""
        self._require_same_topics(tips_by_topic)
        found: dict[TopicIdPartition, ServedLog] = {}
        describe = self._client.admin.describe_log
        answers = self._run_all([partial(describe, topic) for topic in tips_by_topic])
        described = cast("Sequence[list[PartitionLog]]", answers)
        for (topic, tips), each in zip(tips_by_topic.items(), described, strict=True):
            logs = {one.partition: one for one in each}
            for tip in tips:
                if tip.partition not in logs:
                    raise UnknownTopicOrPartitionError(
                        "the server does not know the partition yet; run the query again",
                        topic=topic,
                        partition=tip.partition,
                        partition_count=len(logs),
                    )
                found[tip] = _served(logs[tip.partition])
        return found

    def may_pass(self, error: LogStoreError) -> bool:
        """Whether an error of `logs_of` may pass by itself, once the catalog is read anew."""
        return topic_is_gone(error) or isinstance(error, ServerUnavailableError | StartingError)

    def offset_at(
        self, topic: str, partition: int, timestamp_ms: int, isolation: IsolationLevel
    ) -> int | None:
        """The offset of the first record with that time or a later one; None if there is none. Raises
        LogStoreError."""
        query = TopicPartition(topic, partition), TimePosition(timestamp_ms)
        (answer,) = self._client.list_offsets([query], isolation=isolation)
        return answer.offset if answer.offset >= 0 else None

    def same_end(self, topic: str, partition: int, offset: int, epoch: int) -> int:
        """The end of what a log has in common with one that was read up to `offset`, when its leader epoch
        was `epoch`: `offset`, unless a server has taken over without all of it. Raises LogStoreError."""
        place = TopicPartition(topic, partition)
        (answer,) = self._client.fetch({place: FetchStart(offset, epoch)}, max_bytes=1, partition_max_bytes=1)
        if answer.error is None:
            return offset
        if isinstance(answer.error, OffsetOutOfRangeError):
            # Below the log start there is nothing to compare.
            return min(offset, int(str(answer.error.fields["log_end_offset"])))
        if not isinstance(answer.error, LogTruncatedError):
            raise answer.error
        # It has `offset` itself, too, if no record before that has the epoch.
        return int(str(answer.error.fields["end_offset"]))

    def _require_same_topics(self, tips_by_topic: Mapping[str, Sequence[TopicIdPartition]]) -> None:
        metadata = self._client.metadata(list(tips_by_topic))
        if metadata.store_id != str(self._store_id):
            raise InvalidConfigError(
                "the option server names a server of another store; correct it, or the option store",
                name="server",
                value=self._client.address,
                store_id=metadata.store_id,
                allowed=f"a server of the store {self._store_id}",
            )
        for found in metadata.topics:
            if found.error is not None:
                raise found.error
            topic_id = str(tips_by_topic[found.topic][0].topic_id)
            if found.topic_id != topic_id:
                raise InconsistentTopicIdError(
                    "the topic was deleted and created again meanwhile; run the query again",
                    topic=found.topic,
                    topic_id=topic_id,
                    current_topic_id=found.topic_id,
                )


def _served(log: PartitionLog) -> ServedLog:
    """The log of a partition from its description. Raises DataDirectoryError if it is offline,
    ServerUnavailableError if its owner is away."""
    if log.offline is not None and not log.offline.path:
        raise ServerUnavailableError(
            "the server that owns the partition does not answer, and it alone has the records that are not "
            "tiered; start it, or leave out the option server to read what is tiered",
            topic=log.topic,
            partition=log.partition,
            reason=log.offline.reason,
        )
    if log.offline is not None:
        raise DataDirectoryError(
            "the partition is offline, so its server cannot send the records that are not tiered; see to its "
            "directory, or leave out the option server to read what is tiered",
            topic=log.topic,
            partition=log.partition,
            path=log.offline.path,
        )
    local_count = log.log_end_offset - log.local_log_start_offset
    return ServedLog(
        log_start_offset=log.log_start_offset,
        local_start_offset=log.local_log_start_offset,
        end_offset=log.high_watermark,
        stable_end_offset=log.last_stable_offset,
        leader_epoch=log.leader_epoch,
        bytes_per_offset=log.local_size_bytes / local_count if local_count > 0 else _BYTES_PER_OFFSET,
    )


def topic_is_gone(error: LogStoreError) -> bool:
    """Whether an error says that the log of a task is there no more."""
    return isinstance(error, InconsistentTopicIdError | UnknownTopicOrPartitionError)
