"""Producers collect records into batches for each partition, send them in order, and report each outcome.

Records of a partition are stored in the order in which they were sent. A batch is sent when it is full or
when its first record has waited for `linger_ms`, and in parts if its topic accepts no batch of that size.
While as many batches of the partition are on their way as may be, it goes on filling.
Records with keys go to the partition of Kafka's murmur2, so Kafka's clients and ours place a key alike.

`send` is a method of the record accumulator, whose native form writes a record into its batch and makes no
other object than the handle. Everything else is done once a batch, on the event loop: `wake` asks for it.
Other threads may send, too; only the order of one thread's records is kept then.

The delivery of each record is settled once: by the acknowledgement, or by an error, also when the producer is
abandoned. The field `outcome` of the error says whether the record may be stored. A producer that was
closed, one of a client that was closed, and one whose event loop has ended, take no more records. If records
of a producer that was not closed are given up, that is a ResourceWarning.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError, RecordTooLargeError
from stratalog.base.randomness import system_random
from stratalog.base.types import TopicPartition
from stratalog.client.errors import BufferFullError, ClientClosedError
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.retry import RetryPolicy
from stratalog.client.sending.batch_receipt import BatchReceipt
from stratalog.client.sending.batch_router import BatchRouter
from stratalog.client.sending.home_process import HomeProcess
from stratalog.client.sending.known_topics import MAX_BATCH_KEY, KnownTopics
from stratalog.client.sending.sealed_batch import SealedBatch
from stratalog.record.codecs.compression import Codec, compress
from stratalog.record.native.record_accumulator import Delivery, OpenBatch, RecordAccumulator
from stratalog.record.record_rows import SentRows

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.client.values import Topic

INLINE_BYTES = 16 << 10
"""Smaller batches are compressed on the event loop: a thread would take longer."""

MAX_FAILURE_COUNT = 100
"""The number of failures that are remembered for `flush`."""


def _place(batch: OpenBatch) -> TopicPartition:
    return TopicPartition(batch.topic, batch.partition)


class _Failure(NamedTuple):
    """Records that have failed."""

    error: LogStoreError
    receipt: BatchReceipt
    first_index: int
    end_index: int

    @property
    def is_reported(self) -> bool:
        """Whether each of the records was awaited."""
        return self.receipt.is_claimed(self.first_index, self.end_index)


class Producer(RecordAccumulator):
    """Batches records and sends them in order. Belongs to one event loop; `send` may be called by any thread.
    Use `async with`: its end waits for all records.

    Example::

        async with client.producer(compression="zstd") as producer:
            producer.send("orders", key="7", value="paid")
            ack = await producer.send("orders", "8", b"open", headers={"src": "web"})
            print(ack.partition, ack.offset)
    """

    def __init__(
        self,
        owners: OwnerChannels,
        describe: Callable[[str], Awaitable[Topic]],
        settings: ProducerSettings,
        retry: RetryPolicy,
        clock: Clock | None = None,
    ) -> None:
        """`retry`: how long batches are sent again after the server had no room or went away. Raises
        InvalidRequestError for the compression.
        """
        self._home = HomeProcess()
        super().__init__(
            settings.batch_bytes,
            settings.max_buffered_bytes,
            functools.partial(BatchReceipt, home=self._home),
            None if clock is None else clock.now_ms,
        )
        self._codec = settings.codec
        self._is_ended = False
        """Whether its client was closed, or its event loop has ended."""
        self._ready_bytes = max(
            settings.max_buffered_bytes - settings.batch_bytes, settings.max_buffered_bytes // 2
        )
        """The buffer has room for a batch up to this."""
        self._linger_s = settings.linger_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._router = BatchRouter(owners, settings.durability, retry, self, settings.idempotent)
        self._known_topics = KnownTopics(self, describe, system_random(), settings, retry, self)
        self._timers: dict[OpenBatch, asyncio.TimerHandle] = {}
        """The ends of the lingering of open batches."""
        self._overdue: dict[TopicPartition, OpenBatch] = {}
        """Open batches that have lingered, and go on filling because enough of their partition are on their
        way."""
        self._unsettled: set[SealedBatch] = set()
        self._flushing: list[set[SealedBatch]] = []
        """For each `flush` the batches that it still waits for."""
        self._settled = asyncio.Event()
        self._failures: list[_Failure] = []
        """Those that `flush` may have to raise."""

    async def ready(self) -> None:
        """Let complete batches go out, and wait until the buffer has room for one more: for several records,
        so that not each needs a call.
        """
        if self._collect():
            await asyncio.sleep(0)
        while self.buffered_bytes > self._ready_bytes:
            if not self._unsettled:
                # All records linger in open batches.
                self.close_all()
                self._collect()
            self._settled.clear()
            await self._settled.wait()
        if self.max_buffered_bytes < 0:
            self.refuse_record()

    async def send_many(self, topic: str, table: pa.Table | pa.RecordBatch) -> int:
        """Send the rows of a table, and wait until all are stored. Returns their number.

        The columns are `value` and, if need be, `key` (text or binary), `timestamp` (or milliseconds),
        `partition` and `headers` (a map from text to binary). Raises InvalidRequestError for other columns,
        UnknownTopicOrPartitionError, and the first failure; other rows may be stored then.
        """
        from stratalog.client.sending.arrow_rows import rows_of

        pieces = rows_of(table)
        sent: list[SentRows] = []
        for rows in pieces:
            row = 0
            while row < rows.row_count:
                await self.ready()
                if self._known_topics.is_early(topic):
                    # The rows come behind the records that wait for the topic.
                    await self._known_topics.learn(topic)
                row, spans = self.send_rows(topic, rows, row)
                sent += spans
        waits: list[Coroutine[Any, Any, None]] = []
        for receipt, first_index, end_index in sent:
            assert isinstance(receipt, BatchReceipt)
            waits.append(receipt.wait_for_all(first_index, end_index))
        for outcome in await asyncio.gather(*waits, return_exceptions=True):
            if outcome is not None:
                raise outcome
        return sum(rows.row_count for rows in pieces)

    async def learn(self, topic: str) -> None:
        """Describe a topic now. Raises UnknownTopicOrPartitionError."""
        await self._known_topics.learn(topic)

    async def flush(self) -> None:
        """Send all records now and wait until each is acknowledged or has failed; it does not wait for
        records that are sent meanwhile. Raises the first failure since the last flush of a record whose
        delivery was not awaited.
        """
        while self._known_topics.has_early_records:
            self._settled.clear()
            await self._settled.wait()
        self.close_all()
        self._collect()
        waited = set(self._unsettled)
        self._flushing.append(waited)
        try:
            while waited:
                self._settled.clear()
                await self._settled.wait()
        finally:
            self._flushing = [one for one in self._flushing if one is not waited]
        failures, self._failures = self._failures, []
        for failure in failures:
            if not failure.is_reported:
                raise failure.error.with_traceback(None)

    async def close(self) -> None:
        """Take no more records, and flush; abandon the rest if that is cancelled. The client's connection
        stays open. May be repeated."""
        super().end()
        try:
            await self.flush()
            while self.buffered_bytes:
                # Other threads were sending these.
                await self.flush()
        except asyncio.CancelledError:
            self.abandon()
            raise
        finally:
            self._known_topics.rest()

    def abandon(self) -> None:
        """Discard unacknowledged records. Their deliveries raise LogStoreError, whose field `outcome` is
        "unknown" for a record that may be stored, and "not stored" for the others.
        """
        self._give_up()

    def _give_up(self) -> int:
        """Abandon. Returns the number of records."""
        self._router.abandon()
        count = self._known_topics.abandon()
        self.close_all()
        self._collect(is_abandoned=True)
        unsettled, self._unsettled = self._unsettled, set()
        for waited in self._flushing:
            waited.clear()
        for batch in unsettled:
            self.release(batch.size_bytes)
            batch.abandon()
            count += batch.record_count
        if not self._loop.is_closed():
            self._settled.set()
        return count

    def end(self) -> None:
        """Abandon, and refuse all records from now on: the client was closed. Warns of unsent records."""
        self._is_ended = True
        super().end()
        self._give_up_with_a_warning()

    def _give_up_with_a_warning(self) -> None:
        count = self._give_up()
        if count:
            warnings.warn(
                "a producer that was not closed has given up its records; close producers before their client"
                f" and the event loop, or use `async with`, record_count=`{count}`",
                ResourceWarning,
                source=self,
                stacklevel=3,
            )

    def __del__(self) -> None:
        if self.buffered_bytes:
            # The event loop has ended: it keeps a producer with records.
            self.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            super().end()
            self.abandon()

    # --- the accumulator's calls, from the thread that sends ------------------------------------------------

    def wake(self) -> None:
        """Ask the event loop to take the new batches. Raises ClientClosedError."""
        self._call_on_the_loop(self._collect)

    def refuse_record(self) -> None:
        """Raise BufferFullError, or ClientClosedError."""
        if self._is_ended:
            raise ClientClosedError
        if self.max_buffered_bytes < 0:
            raise ClientClosedError("the producer was closed; make another producer")
        raise BufferFullError(
            "the producer's buffer is full; await its `ready()` before the next record",
            buffered_bytes=self.buffered_bytes,
            max_bytes=self.max_buffered_bytes,
        )

    def refuse_size(self, topic: str, size_bytes: int, max_bytes: int) -> None:
        """Raise RecordTooLargeError, and ask the server whether it has another limit by now."""
        self._known_topics.ask(topic)
        raise RecordTooLargeError(
            "the record is larger than its topic takes; make it smaller or raise the topic's limit",
            topic=topic,
            size_bytes=size_bytes,
            max_bytes=max_bytes,
            name=MAX_BATCH_KEY,
        )

    def send_early(
        self,
        topic: str,
        key: Any,
        value: Any,
        partition: int | None,
        timestamp_ms: int,
        headers_count: int,
        headers: bytes | None,
    ) -> Delivery:
        """Keep a record until its topic is described."""
        return self._known_topics.hold((topic, key, value, partition, timestamp_ms, headers_count, headers))

    def _call_on_the_loop(self, work: Callable[..., object], *arguments: str) -> None:
        """Let the event loop do the work, for any thread. Raises ClientClosedError if it has ended, and in a
        forked process.
        """
        self._home.require()
        try:
            self._loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            if self._loop.is_closed():
                self.end()
                self.refuse_record()
            raise

    # --- batches, on the event loop -------------------------------------------------------------------------

    def _collect(self, is_abandoned: bool = False) -> bool:
        """Let new batches linger, and send those that are complete; returns whether there were any."""
        opened, complete = self.take_batches()
        for batch in complete:
            timer = self._timers.pop(batch, None)
            if timer is not None:
                timer.cancel()
                self._overdue.pop(_place(batch), None)
        lingering = set(opened).difference(complete)
        for batch in lingering:
            self._timers[batch] = self._loop.call_later(self._linger_s, self._linger_over, batch)
        for batch in complete:
            self._seal(batch, is_abandoned)
        return bool(complete)

    def _linger_over(self, batch: OpenBatch) -> None:
        if batch not in self._timers:
            # It was full, and is on its way.
            return
        if self._router.is_busy_with(_place(batch)):
            self._overdue[_place(batch)] = batch
            return
        self.close_batch(batch)
        self._collect()

    def _seal(self, batch: OpenBatch, is_abandoned: bool) -> None:
        section = batch.take_section()
        is_inline = self._codec is Codec.NONE or len(section) <= INLINE_BYTES or is_abandoned
        codec = Codec.NONE if is_abandoned else self._codec
        compressed = section if codec is Codec.NONE else compress(codec, section) if is_inline else None
        sealed = SealedBatch.of(batch, codec, compressed)
        self._unsettled.add(sealed)
        if is_abandoned:
            return
        if compressed is None:
            # Several batches are compressed at a time, and the loop goes on.
            work = self._loop.run_in_executor(None, compress, codec, section)
            work.add_done_callback(functools.partial(self._on_compressed, sealed, section))
        self._router.send(sealed)

    def _on_compressed(self, batch: SealedBatch, section: memoryview, work: asyncio.Future[bytes]) -> None:
        if work.cancelled() or work.exception() is not None:
            # Without memory for the compressed form.
            batch.contents, batch.section = batch.contents._replace(codec=Codec.NONE), section
        else:
            batch.section = work.result()
        self._router.compressed(batch)

    # --- the sender's calls ---------------------------------------------------------------------------------

    def on_settled(self, batch: SealedBatch, error: LogStoreError | None) -> None:
        """Make room for other records, and remember a failure for `flush`."""
        if batch not in self._unsettled:
            # It was abandoned.
            return
        self._unsettled.discard(batch)
        for waited in self._flushing:
            waited.discard(batch)
        self.release(batch.size_bytes)
        overdue = self._overdue.pop(batch.topic_partition, None)
        if overdue is not None:
            # Once the sender has settled all that it is about to.
            self._loop.call_soon(self._linger_over, overdue)
        if error is not None:
            self._note(_Failure(error, batch.receipt, batch.first_index, batch.end_index))
        self._settled.set()

    def on_split(self, batch: SealedBatch, parts: Sequence[SealedBatch]) -> None:
        """Wait for the parts of a batch in its place."""
        assert sum(part.size_bytes for part in parts) == batch.size_bytes
        for waited in (self._unsettled, *self._flushing):
            if batch in waited:
                waited.discard(batch)
                waited.update(parts)

    def max_batch_bytes(self, topic: str) -> int | None:
        """Bytes of the largest batch that a topic takes; None if it is unknown."""
        return self._known_topics.max_batch_bytes(topic)

    def on_stale(self, topic: str) -> None:
        """Describe a topic again."""
        self._known_topics.refresh(topic)

    def on_cancelled(self) -> None:
        """Abandon all records, because nothing can be sent any more."""
        self._give_up_with_a_warning()

    # --- the calls of the known topics ----------------------------------------------------------------------

    def call_soon(self, work: Callable[[str], None], topic: str) -> None:
        """Let the event loop do the work, for any thread. Raises ClientClosedError."""
        self._call_on_the_loop(work, topic)

    def on_described(self, topic: str, *, is_changed: bool) -> None:
        """Let records of other sizes go out, and `flush` look again."""
        if is_changed:
            self._router.forget_limits(topic)
        self._settled.set()

    def on_refused(self, receipt: BatchReceipt, error: LogStoreError) -> None:
        """Remember the failure of a record without a partition for `flush`."""
        self._note(_Failure(error, receipt, 0, 1))
        self._settled.set()

    def _note(self, failure: _Failure) -> None:
        self._failures = [earlier for earlier in self._failures if not earlier.is_reported]
        if len(self._failures) < MAX_FAILURE_COUNT:
            self._failures.append(failure)
