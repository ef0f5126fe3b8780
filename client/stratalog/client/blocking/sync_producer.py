"""A producer for threads without an event loop.

`send` writes into the buffer, and does not go through the loop.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from stratalog.client.blocking.producer_calls import ProducerCalls
from stratalog.client.errors import BufferFullError
from stratalog.record.native.record_accumulator import Delivery

if TYPE_CHECKING:
    from stratalog.record.native.pure_record_parts import Headers, Part


class SyncProducer(ProducerCalls):
    """Batches records and sends them in order. Thread-safe; the records of one thread keep their order. Use
    `with`: its end waits for all records.

    Example::

        with client.producer(compression="zstd") as producer:
            producer.send("orders", key="7", value="paid")
            ack = producer.send("orders", "8", b"open", headers={"src": "web"}).result()
            print(ack.partition, ack.offset)
    """

    def send(
        self,
        topic: str,
        key: Part = None,
        value: Part = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Delivery:
        """Buffer a record, and return the handle of its delivery, whose `result` waits for it. Key and value
        are text (sent as UTF-8), bytes, or None; headers are pairs of a name and a value, or a mapping.

        Waits for the description of a new topic, and while the buffer is full. Raises
        UnknownTopicOrPartitionError, RecordTooLargeError, InvalidRequestError, and TypeError and ValueError
        for parts that a record cannot have.
        """
        self._thread.require_process()
        partition_count = self._producer.partition_count(topic)
        if not partition_count or (partition or 0) >= partition_count:
            self.learn(topic)
        while True:
            try:
                return self._producer.send(
                    topic, key, value, partition=partition, timestamp_ms=timestamp_ms, headers=headers
                )
            except BufferFullError:
                self.ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
