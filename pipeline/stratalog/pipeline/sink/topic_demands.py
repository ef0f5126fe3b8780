"""The demands of a topic on its rows, besides their size.

The server refuses other records. That would come too late: a batch that was decided on goes on until each
partition has all of its rows. So a task refuses such rows before it stages them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stratalog.base.clock import Clock
from stratalog.base.errors import InvalidRequestError, InvalidTimestampError, LogStoreError
from stratalog.record.record_rows import RecordRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_MS = (1 << 63) - 1


@contextmanager
def naming_topic(topic: str) -> Generator[None]:
    """Give the errors of a block that is about rows of this topic its name."""
    try:
        yield
    except LogStoreError as error:
        error.fields.setdefault("topic", topic)
        raise


class TopicDemands(NamedTuple):
    """The demands of a topic. Immutable."""

    topic: str
    needs_keys: bool
    has_time_bounds: bool
    """Under `LogAppendTime` the times of rows do not count."""
    before_max_ms: int
    """A row's time may lie so long before that of its task."""
    after_max_ms: int

    @classmethod
    def of(cls, topic: str, config: Mapping[str, str]) -> TopicDemands:
        """Those of a topic with this configuration: all of its keys."""
        return cls(
            topic,
            needs_keys="compact" in config["cleanup.policy"].split(","),
            has_time_bounds=config["message.timestamp.type"] == "CreateTime",
            before_max_ms=int(config["message.timestamp.before.max.ms"]),
            after_max_ms=int(config["message.timestamp.after.max.ms"]),
        )

    def require_met(self, rows: RecordRows, clock: Clock) -> None:
        """Raise InvalidRequestError for rows without a key, InvalidTimestampError for times out of bounds."""
        if self.needs_keys:
            self._require_keys(rows)
        if self.has_time_bounds and rows.timestamp_ms is not None and rows.row_count:
            self._require_times(np.frombuffer(rows.timestamp_ms, np.int64, rows.row_count), clock.now_ms())

    def _require_keys(self, rows: RecordRows) -> None:
        null_count = rows.row_count
        if rows.key is not None:
            validity = rows.key.validity
            null_count = 0 if validity is None else bytes(validity).count(0)
        if null_count:
            raise InvalidRequestError(
                "the topic is compacted, so every row needs a key; fill the column key, or use a topic that"
                " is not compacted",
                topic=self.topic,
                null_key_count=null_count,
            )

    def _require_times(self, times_ms: NDArray[np.int64], now_ms: int) -> None:
        # Rows without a time have -1, and get that of the task.
        earliest_ms = max(0, now_ms - self.before_max_ms)
        latest_ms = min(now_ms + self.after_max_ms, _MAX_MS)
        is_outside = (times_ms > latest_ms) | ((times_ms < earliest_ms) & (times_ms >= 0))
        if is_outside.any():
            raise InvalidTimestampError(
                "a row's timestamp is out of the topic's bounds; correct it, or"
                " message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
                topic=self.topic,
                timestamp_ms=int(times_ms[is_outside.argmax()]),
                earliest_ms=earliest_ms,
                latest_ms=latest_ms,
            )
