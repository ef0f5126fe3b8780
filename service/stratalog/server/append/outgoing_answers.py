"""The answers of a stream that are ready to be sent.

Partitions take turns, an answer each. A commit answers all requests of many partitions at once, and sending
the answers takes time: those of the first partition would always leave first, its client would always send
more first, and the last partition would fall behind all others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from stratalog.base.types import TopicPartition
from stratalog.server.append.stream_lane import StreamAnswer


class OutgoingAnswers:
    """The ready answers of one stream, in order within each partition. Belongs to the event loop."""

    def __init__(self) -> None:
        self._row: OrderedDict[TopicPartition | None, deque[StreamAnswer]] = OrderedDict()
        """Those of each partition that has any, in the order of their turns. Requests without a partition
        share a place."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[StreamAnswer]:
        for answers in self._row.values():
            yield from answers

    def add(self, answer: StreamAnswer) -> None:
        """Put an answer behind the others of its partition."""
        self._row.setdefault(answer.topic_partition, deque()).append(answer)
        self._count += 1

    def take(self) -> StreamAnswer:
        """Take the next answer of the partition whose turn it is. There is one."""
        topic_partition, answers = self._row.popitem(last=False)
        answer = answers.popleft()
        if answers:
            self._row[topic_partition] = answers
        self._count -= 1
        return answer

    def clear(self) -> None:
        """Forget all answers."""
        self._row.clear()
        self._count = 0
