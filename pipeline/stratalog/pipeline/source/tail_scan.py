"""Reads the tails of a task from the service as Arrow record batches, on an executor.

The offsets were fixed when the query was planned. What has become of them since makes no difference: the
service answers from its disk or, if they were tiered and its retention has removed them there, from the
object store. It follows a partition to another server. Four losses are reported: the log start has moved
beyond the offsets, the log was cut off before their end by a server that took over without them, the topic is
gone, or the server's disk has lost records before they reached the store.

The server passes records that its disk has lost like a hole of a compaction, so the scan looks up each hole
in the metadata. It does so after the answer: what is not tiered by then was neither on the disk nor on its
way to the store when the server passed it.

One thing more matters to a query, which sees one moment of the log: compaction may have removed a record of
the tail in favour of one behind the query's end, while an older one of the same key was read from the
objects of that moment. Only objects are compacted, so a tail that was on the server's disk when the query was
planned, and still is, has all records. One that left it meanwhile may have no holes at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from stratalog.base.errors import CorruptRecordError, LogStoreError, OffsetOutOfRangeError
from stratalog.base.types import TopicPartition
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchedPartition
from stratalog.pipeline.source.arrow_rows import ArrowRows
from stratalog.pipeline.source.data_loss import report_gaps, report_loss
from stratalog.pipeline.source.served_log import topic_is_gone
from stratalog.pipeline.source.slice_scan import decode_batches
from stratalog.pipeline.source.tail_span import TailSpan
from stratalog.record.batch import batches
from stratalog.record.native.batch_kernels import whole_batches
from stratalog.record.reading.readable_batches import readable_batches
from stratalog.record.reading.record_portions import RecordReading
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition

FETCH_BYTES = 4 << 20
"""The most bytes of one answer."""
MAX_WAIT_MS = 10_000
"""The longest wait of the server for records, which are all there: it may have to read the object store."""
MAX_IDLE_COUNT = 12
"""Answers in a row that bring no partition forward, before the scan gives up."""


class TailScan:
    """Reads tails for one task. Not thread-safe: belongs to one scan."""

    def __init__(
        self,
        client: SyncClient,
        names: tuple[str, ...],
        tiered_now: Callable[[TailSpan], TieredPartition],
        *,
        isolation: IsolationLevel,
        fails_on_data_loss: bool,
        is_one_moment: bool,
    ) -> None:
        """`tiered_now` reads the metadata of a span's partition, as they are when it is called.

        `is_one_moment` says that the rows must be those of the moment of the plan: of a query, not of a
        stream, which goes on to the record that has replaced a compacted one."""
        self._client = client
        self._tiered_now = tiered_now
        self._rows = ArrowRows(names)
        self._isolation = isolation
        self._fails_on_data_loss = fails_on_data_loss
        self._is_one_moment = is_one_moment
        self._positions: dict[TailSpan, int] = {}
        """The next offset of each span that is not read to its end."""

    def scan(self, spans: Sequence[TailSpan]) -> Iterator[pa.RecordBatch]:
        """All records of the spans, as batches with the columns. Raises OffsetOutOfRangeError for records
        that are lost, unless the query takes losses, CorruptRecordError, LogStoreError."""
        self._positions = {span: span.first_offset for span in spans}
        idle_count = 0
        while self._positions:
            before = dict(self._positions)
            for span, answer in self._answers().items():
                yield from self._taken(span, answer)
            idle_count = idle_count + 1 if before == self._positions else 0
            if idle_count == MAX_IDLE_COUNT:
                raise ServerUnavailableError(
                    "the server sends no records though it has some; try again",
                    server=self._client.address,
                    **next(iter(self._positions)).error_fields,
                )
        if self._rows.columns.row_count:
            yield self._rows.take()

    def _answers(self) -> Mapping[TailSpan, FetchedPartition]:
        """One answer for each span that is not at its end; for one of several of a partition."""
        asked: dict[TopicPartition, TailSpan] = {}
        for span in self._positions:
            asked.setdefault(TopicPartition(span.topic, span.partition), span)
        answers = self._client.fetch(
            {place: self._positions[span] for place, span in asked.items()},
            max_wait_ms=MAX_WAIT_MS,
            max_bytes=FETCH_BYTES,
            partition_max_bytes=FETCH_BYTES,
            isolation=self._isolation,
        )
        return {asked[TopicPartition(one.topic, one.partition)]: one for one in answers}

    def _taken(self, span: TailSpan, answer: FetchedPartition) -> Iterator[pa.RecordBatch]:
        """The rows of an answer; the position moves behind them."""
        first_offset = self._positions[span]
        next_offset = self._next_offset(span, answer)
        if next_offset >= span.end_offset:
            del self._positions[span]
        else:
            self._positions[span] = next_offset
        if answer.error is not None or answer.topic_id != span.topic_id:
            return
        end_offset = min(next_offset, span.end_offset)
        self._check_holes(span, answer, first_offset, end_offset)
        wanted = RecordReading(span.topic, span.partition, first_offset, end_offset)
        is_readable = readable_batches(answer.aborted_transactions)
        try:
            if whole_batches(answer.batches)[0] != len(answer.batches):
                raise CorruptRecordError("the server sent a part of a record batch")
            buffer = memoryview(answer.batches)
            yield from decode_batches(buffer, wanted, lambda header: not is_readable(header), self._rows)
        except CorruptRecordError as error:
            raise CorruptRecordError(error.message, **{**span.error_fields, **error.fields}) from error

    def _next_offset(self, span: TailSpan, answer: FetchedPartition) -> int:
        """Where reading goes on after an answer: the end of the span if no more can come. Raises its error,
        and OffsetOutOfRangeError for a loss, unless the query takes losses."""
        position = self._positions[span]
        if answer.error is not None:
            return self._behind_loss(span, answer.error)
        if answer.topic_id != span.topic_id:
            self._report_loss("the topic was created anew", span, offset=position)
            return span.end_offset
        is_committed = self._isolation is IsolationLevel.READ_COMMITTED
        log_end = answer.last_stable_offset if is_committed else answer.high_watermark
        if answer.next_fetch_offset == position and log_end <= position:
            self._report_loss("the log was cut off before them", span, offset=position, end_offset=log_end)
            return span.end_offset
        return answer.next_fetch_offset

    def _behind_loss(self, span: TailSpan, error: LogStoreError) -> int:
        position = self._positions[span]
        if topic_is_gone(error):
            self._report_loss("the topic is gone", span, offset=position)
            return span.end_offset
        if not isinstance(error, OffsetOutOfRangeError):
            raise error
        self._report_loss("the log does not have them any more", span, **error.fields)
        log_start = error.fields.get("log_start_offset")
        # Otherwise the position lies behind the end of the log.
        is_below = log_start is not None and int(str(log_start)) > position
        return int(str(log_start)) if is_below else span.end_offset

    def _check_holes(
        self, span: TailSpan, answer: FetchedPartition, first_offset: int, end_offset: int
    ) -> None:
        """Report lost records of [first_offset, end_offset), all of which the answer has passed. Raises
        OffsetOutOfRangeError for them, and if the rows would be of two moments."""
        # The local log may have holes, too, but what it has is not lost.
        left_end = min(end_offset, answer.local_log_start_offset)
        hole_offset = _first_hole(answer, first_offset, left_end)
        if hole_offset is None:
            return
        self._report_lost(span, answer, hole_offset, left_end)
        if not self._is_one_moment or not self._fails_on_data_loss:
            return
        moved_offset = _first_hole(answer, max(first_offset, span.local_start_offset), left_end)
        if moved_offset is not None:
            raise OffsetOutOfRangeError(
                "compaction or retention has removed records of the tail since the query was planned, so the"
                " rows would be of two moments; run it again",
                **span.error_fields,
                offset=moved_offset,
            )

    def _report_lost(
        self, span: TailSpan, answer: FetchedPartition, first_offset: int, end_offset: int
    ) -> None:
        """Report the lost records of a range that holds all holes of an answer."""
        tiered, fails = self._tiered_now(span), self._fails_on_data_loss
        report_gaps(tiered, first_offset, end_offset, fails=fails, place=span.error_fields)
        # What lies below the log start was deleted since.
        unknown_offset = max(first_offset, tiered.tiered_end_offset, answer.log_start_offset)
        if unknown_offset < end_offset:
            self._report_loss(
                "the server's disk has lost them before they reached the store",
                span,
                offset=unknown_offset,
                end_offset=end_offset,
            )

    def _report_loss(self, reason: str, span: TailSpan, **fields: object) -> None:
        place = {**span.error_fields, **fields}
        report_loss(f"records are lost: {reason}", fails=self._fails_on_data_loss, **place)


def _first_hole(answer: FetchedPartition, first_offset: int, end_offset: int) -> int | None:
    """An offset of [first_offset, end_offset) up to which the answer has all records, if it may lack some
    behind that; None if it has all."""
    next_offset = first_offset
    if next_offset >= end_offset:
        return None
    for _, header in batches(answer.batches):
        if header.last_offset < next_offset:
            continue
        is_dense = header.records_count == header.last_offset - header.base_offset + 1
        if header.base_offset > next_offset or not is_dense:
            break
        next_offset = header.last_offset + 1
        if next_offset >= end_offset:
            return None
    return next_offset
