"""The errors of one answer about many partitions, in a bounded space.

A client takes 4 MiB by default, and each of 10,000 partitions may have failed. The first errors are whole.
Once they have used the space up, the others are short: a code and a reason, which say what to do about the
partition, but neither a message nor fields. A request about those partitions alone has the whole errors.
"""

from __future__ import annotations

from google.rpc.status_pb2 import Status

from stratalog.base.types import TopicPartition
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.status import short_status

MAX_ERROR_BYTES = 256 << 10
"""The space of whole errors: several hundred of them."""


class AnswerErrors:
    """Makes the statuses of one answer. Not thread-safe: belongs to the answer."""

    def __init__(self, statuses: ErrorStatuses) -> None:
        self._statuses = statuses
        self._left_bytes = MAX_ERROR_BYTES

    @property
    def is_full(self) -> bool:
        """The space is used up: an answer leaves out what its reader does not need beside an error."""
        return self._left_bytes <= 0

    def status(self, error: BaseException, where: str, partition: TopicPartition) -> Status:
        """The status of `error`, as `ErrorStatuses.status` makes it, or its short form."""
        status = self._statuses.status(error, where, partition)
        if self.is_full:
            return short_status(status)
        self._left_bytes -= status.ByteSize()
        return status
