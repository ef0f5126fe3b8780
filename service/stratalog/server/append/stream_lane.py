"""The requests of a stream of appends that name the same partition.

Each request has one answer, and the answers leave in the order of the requests. After a failed request the
lane refuses the later ones until it is resumed. Requests that are with the writer keep the session that they
came with: one that fails before it reaches the writer leaves the session of the earlier ones as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.types import TopicPartition
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import AppendSession, PendingAppend, preceding_append_failed


class StreamAnswer(NamedTuple):
    """The outcome of one request of a stream; of a pending one while the future of `append` has no result."""

    sequence: int
    append: PendingAppend | None
    """None if the request failed before it reached the writer."""
    topic_partition: TopicPartition | None
    """The partition of the request; None if it names none, and none is chosen."""
    error: Exception | None = None
    """The reason for a failure."""

    @property
    def size_bytes(self) -> int:
        """The bytes that the request holds in flight."""
        return 0 if self.append is None else self.append.size_bytes


class StreamLane:
    """The requests of a stream that name one partition. Belongs to the event loop."""

    __slots__ = ("_pending", "_writer", "session", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.session = AppendSession()
        """The session of the next request."""
        self._pending: deque[StreamAnswer] = deque()
        self._writer: PartitionWriter | None = None
        """The writer of the last request that reached one."""

    @property
    def is_idle(self) -> bool:
        """Whether the lane has no request in flight and no failure, so that a new lane is the same."""
        return not self._pending and not self.has_failed()

    def has_failed(self) -> bool:
        """Whether the next request is refused unless it resumes the lane. True from the writer's failure on,
        before its answer is ready.
        """
        return self.session.is_broken

    def resume(self) -> None:
        """Accept requests again. Those in flight keep their session."""
        self.session = AppendSession()

    def refuse(self, sequence: int) -> None:
        """Refuse a request behind a failed one."""
        self._pending.append(StreamAnswer(sequence, None, self.topic_partition, preceding_append_failed()))

    def fail(self, sequence: int, error: Exception) -> None:
        """Fail a request that does not reach the writer. Earlier requests are applied nevertheless."""
        self.session = AppendSession()
        self.session.fail(error)
        self._pending.append(StreamAnswer(sequence, None, self.topic_partition, error))

    def must_wait(self, writer: PartitionWriter) -> bool:
        """Whether earlier requests are with another writer: the topic was deleted and created again."""
        return bool(self._pending) and self._writer is not writer

    def submit(self, sequence: int, append: PendingAppend, writer: PartitionWriter) -> None:
        """Pass a request to its writer."""
        self._writer = writer
        self._pending.append(StreamAnswer(sequence, append, self.topic_partition))
        writer.submit(append)

    def collect(self, take: Callable[[StreamAnswer], None]) -> None:
        """Call `take` for each answer that is ready and has no pending one before it."""
        pending = self._pending
        while pending:
            answer = pending[0]
            if answer.append is not None:
                if not answer.append.future.done():
                    return
                answer = answer._replace(error=answer.append.failure())
            pending.popleft()
            take(answer)

    def abandon(self) -> None:
        """Forget the requests in flight. They may be applied, unless their session is broken."""
        for answer in self._pending:
            if answer.append is not None:
                answer.append.abandon()
        self._pending.clear()
