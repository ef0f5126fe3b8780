"""Reads topics for a stream, micro-batch by micro-batch.

A batch is a pure function of two offsets: it is planned from the state of the store when it runs. So one that
is replayed after a crash reads the same offsets, though compaction may have replaced the objects meanwhile.

Without a service only tiered records are there, and a stream goes on as segments are uploaded. With one it
goes on as records are appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from stratalog.base.clock import SystemClock
from stratalog.base.types import TopicIdPartition
from stratalog.client.retry import LONG_WORK
from stratalog.pipeline.source.data_loss import report_loss
from stratalog.pipeline.source.partition_range import (
    PartitionRange,
    clipped_range,
    offsets_of,
    readable_end,
    require_in_log,
    require_no_gap,
    tiered_end,
)
from stratalog.pipeline.source.read_options import ReadOptions
from stratalog.pipeline.source.store_view import (
    StoreReader,
    TopicPartitionView,
    TopicViews,
    reading_store,
)
from stratalog.pipeline.source.stream_limits import Backlog, limited_by_bytes, limited_by_offsets
from stratalog.pipeline.source.stream_offsets import StreamOffsets, TopicOffsets
from stratalog.pipeline.source.topic_reader import planned_partitions, read_task
from stratalog.pipeline.spark_interface import StreamReaderMixin
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit


class TopicStreamReader(DataSourceStreamReader, StreamReaderMixin):
    """Reads topics for one stream. Not thread-safe: Spark uses it on one thread. What travels to executors is
    plain; the driver's instance follows the store."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._resources: ExitStack | None = None
        self._reader: StoreReader | None = None
        self._target: StreamOffsets | None = None
        """The end of a query that reads what there is now."""
        self._newest = StreamOffsets()
        self._clock = SystemClock()
        self._idle: StreamOffsets | None = None
        """The end of the stream, if the last look at the store found nothing behind it."""
        self._looked_s = 0.0
        """The monotonic time of that look."""

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options, "_names": self._names}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        TopicStreamReader.__init__(self, state["_options"], state["_names"])

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new stream begins. Raises UnknownTopicOrPartitionError, OffsetOutOfRangeError,
        StoreError."""
        reader, options = self._following(), self._options
        views = reader.view(options)
        offsets = offsets_of(reader, views, options.starting, options)
        for view in views:
            require_in_log(view, offsets[view.tip], fails=options.fails_on_data_loss)
        return self._offsets(views, offsets).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of this query."""
        self._target = self._ends(self._views().partitions)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit of a batch, which Spark gives to `latestOffset`. Both may hold there; Spark takes one."""
        # Not above: older versions of Spark have no limits.
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch, which begins at `start`. Raises OffsetOutOfRangeError if records that
        were not read yet are gone, unless the options take that."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        is_limited = not isinstance(limit, ReadAllAvailable)
        return self._next_end(StreamOffsets.from_json(start), is_limited=is_limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The end of all that can be read, for the progress of the query: `latestOffset` of the source."""
        return self._newest.to_json() if self._newest.topics else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch, by its offsets and the store's present state. Raises OffsetOutOfRangeError as
        `latestOffset`, StoreError."""
        before, behind = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
        self._require_same_store(behind)
        views = {(view.topic, view.tip): view for view in self._views().partitions}
        ranges: list[PartitionRange] = []
        for name, topic in behind.topics.items():
            for number, end_offset in topic.offsets.items():
                first_offset = before.next_offset(name, topic.topic_id, number)
                if first_offset >= end_offset:
                    continue
                view = views.get((name, TopicIdPartition(topic.topic_id, number)))
                if view is None:
                    self._report_loss("the partition is gone", topic=name, partition=number)
                    continue
                self._require_in_log(view, first_offset, end_offset)
                one = clipped_range(view, first_offset, end_offset, self._options.isolation)
                require_no_gap(one, fails=self._options.fails_on_data_loss)
                ranges.append(one)
        return planned_partitions(self._following(), ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return read_task(self._options, self._names, partition, is_one_moment=False)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint has the offsets, and the store keeps no readers."""

    def stop(self) -> None:
        """Close the store."""
        if self._resources is not None:
            self._resources.close()
        self._resources = self._reader = None

    def _next_end(self, before: StreamOffsets, *, is_limited: bool) -> StreamOffsets:
        """The end of the next batch. An idle stream looks at the store once in a while: Spark asks again and
        again, and each look costs requests."""
        now_s = self._clock.monotonic_s()
        if before == self._idle and now_s - self._looked_s < self._options.idle_poll_ms / 1000:
            return before
        end = self._looked_end(before, is_limited=is_limited)
        self._idle, self._looked_s = (end if end == before else None), now_s
        return end

    def _looked_end(self, before: StreamOffsets, *, is_limited: bool) -> StreamOffsets:
        """The end of the next batch by the store's present state."""
        self._require_same_store(before)
        found = self._views()
        self._require_known_topics(before, found.topics)
        self._newest = self._ends(found.partitions)
        ends = self._limited(before, found.partitions, is_limited=is_limited)
        return self._carried(before, self._offsets(found.partitions, ends))

    def _following(self) -> StoreReader:
        if self._reader is None:
            self._resources = ExitStack()
            self._reader = self._resources.enter_context(
                reading_store(self._options.store_url, self._options.service, LONG_WORK)
            )
        return self._reader

    def _views(self) -> TopicViews:
        return self._following().views_now(self._options, needs_all=False)

    def _ends(self, views: Sequence[TopicPartitionView]) -> StreamOffsets:
        return self._offsets(views, {view.tip: readable_end(view, self._options.isolation) for view in views})

    def _offsets(
        self, views: Sequence[TopicPartitionView], offsets: Mapping[TopicIdPartition, int]
    ) -> StreamOffsets:
        """Offsets of these partitions, with the ids and leader epochs that belong to them."""
        topics: dict[str, TopicOffsets] = {}
        for view in views:
            known = topics.get(view.topic, TopicOffsets(view.tip.topic_id, {}))
            each = {**known.offsets, view.tip.partition: offsets[view.tip]}
            epochs = dict(known.epochs)
            if view.served is not None:
                epochs[view.tip.partition] = view.served.leader_epoch
            topics[view.topic] = TopicOffsets(view.tip.topic_id, each, epochs)
        return StreamOffsets(topics, self._following().store_id)

    def _limited(
        self, before: StreamOffsets, views: Sequence[TopicPartitionView], *, is_limited: bool
    ) -> dict[TopicIdPartition, int]:
        """The end of the next batch in each partition: never before its start, unless the log was cut off
        there."""
        target = self._newest if self._target is None else self._target
        ends: dict[TopicIdPartition, int] = {}
        backlogs: list[Backlog] = []
        for view in views:
            place = view.topic, view.tip.topic_id, view.tip.partition
            begin_offset = self._begin(before, view)
            if begin_offset < before.next_offset(*place):
                # A batch has no rows before its start, so the stream goes back first.
                ends[view.tip] = begin_offset
                continue
            readable_offset = readable_end(view, self._options.isolation)
            end_offset = min(target.next_offset(*place), readable_offset)
            ends[view.tip] = max(begin_offset, end_offset)
            first_offset = max(begin_offset, min(view.log_start_offset, end_offset))
            if first_offset < end_offset:
                backlogs.append(self._backlog(view, first_offset, end_offset))
        options = self._options
        if is_limited and options.max_offsets_per_trigger is not None:
            for tip, end_offset in limited_by_offsets(backlogs, options.max_offsets_per_trigger).items():
                ends[tip] = min(ends[tip], end_offset)
        if is_limited and options.max_bytes_per_trigger is not None:
            for tip, end_offset in limited_by_bytes(backlogs, options.max_bytes_per_trigger).items():
                ends[tip] = min(ends[tip], end_offset)
        return ends

    def _begin(self, before: StreamOffsets, view: TopicPartitionView) -> int:
        """Where the stream goes on in a partition: earlier if a server has taken over without records that
        were read, or the store was restored without them, and the options take that."""
        place = view.topic, view.tip.topic_id, view.tip.partition
        offset, epoch = before.next_offset(*place), before.epoch(*place)
        if view.served is None:
            # Where a service was read, records may be on their way to the store.
            if epoch is None and offset > view.log_end_offset:
                self._report_loss(
                    "the store has fewer than the stream has read, as after a restore",
                    **view.error_fields,
                    offset=offset,
                    end_offset=view.log_end_offset,
                )
                return view.log_end_offset
            return offset
        same_end = min(offset, view.log_end_offset)
        if epoch is not None and epoch != view.served.leader_epoch and same_end == offset:
            logs = self._following().served
            assert logs is not None, "a view has the log of a server"
            same_end = logs.same_end(view.topic, view.tip.partition, offset, epoch)
        if same_end < offset:
            self._report_loss(
                "a server has taken over without records that the stream has read",
                **view.error_fields,
                offset=offset,
                end_offset=same_end,
            )
        return same_end

    def _backlog(self, view: TopicPartitionView, first_offset: int, end_offset: int) -> Backlog:
        return Backlog(
            tip=view.tip,
            tiered=view.tiered,
            first_offset=first_offset,
            end_offset=end_offset,
            tail_offset=tiered_end(view, self._options.isolation),
            tail_bytes_per_offset=0.0 if view.served is None else view.served.bytes_per_offset,
        )

    def _carried(self, before: StreamOffsets, behind: StreamOffsets) -> StreamOffsets:
        """The offsets with those of partitions that the stream does not read at present."""
        topics = dict(behind.topics)
        for name, topic in before.topics.items():
            now = topics.get(name)
            if now is None and not self._options.selects(name):
                topics[name] = topic
            elif now is not None and now.topic_id == topic.topic_id:
                # An epoch belongs to its offset.
                epochs = {
                    number: one
                    for number, one in topic.epochs.items()
                    if now.offsets.get(number) in (None, topic.offsets.get(number))
                }
                topics[name] = TopicOffsets(
                    now.topic_id, {**topic.offsets, **now.offsets}, {**epochs, **now.epochs}
                )
        return StreamOffsets(topics, behind.store_id)

    def _require_same_store(self, offsets: StreamOffsets) -> None:
        """Report offsets of another store: its copy may have other records below them."""
        store_id = self._following().store_id
        if offsets.store_id not in (None, store_id):
            report_loss(
                "records may be lost: the store is another one than the stream has read, such as one that was"
                " restored, and may have other records below the offsets of the checkpoint",
                fails=self._options.fails_on_data_loss,
                store_id=store_id,
                checkpoint_store_id=offsets.store_id,
            )

    def _require_known_topics(self, before: StreamOffsets, topics: Iterable[TopicEntry]) -> None:
        """Report topics of the stream that are gone, or were created anew under their names."""
        found = {entry.name: entry.topic_id for entry in topics}
        for name, topic in before.topics.items():
            if self._options.selects(name) and found.get(name) != topic.topic_id:
                reason = "the topic was created anew" if name in found else "the topic is gone"
                self._report_loss(reason, topic=name)

    def _require_in_log(self, view: TopicPartitionView, first_offset: int, end_offset: int) -> None:
        """Report offsets of a batch that lie outside of the log."""
        fields = {**view.error_fields, "offset": first_offset, "end_offset": end_offset}
        if first_offset < view.log_start_offset:
            self._report_loss(
                "log start has moved beyond them", log_start_offset=view.log_start_offset, **fields
            )
        if end_offset > view.log_end_offset:
            reason = "they are not tiered any more" if view.served is None else "the log is shorter than that"
            self._report_loss(reason, log_end_offset=view.log_end_offset, **fields)

    def _report_loss(self, reason: str, **fields: object) -> None:
        report_loss(f"records are lost: {reason}", fails=self._options.fails_on_data_loss, **fields)


class UnlimitedStreamReader(TopicStreamReader):
    """A reader for Spark before 4.2, which asks for the newest end without a start and without a limit. Not
    thread-safe, as its base.

    The start is the end of the batch that was planned last. Spark plans the last batch of a checkpoint, or
    an empty one behind it, before it asks a query that goes on for an end.
    """

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        super().__init__(options, names)
        self._planned = StreamOffsets()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new stream begins, as in the base."""
        start = super().initialOffset()
        self._planned = StreamOffsets.from_json(start)
        return start

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name and signature before 4.2
        """The end of the next batch: all that can be read. Raises as in the base."""
        return self._next_end(self._planned, is_limited=False).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch, as in the base."""
        tasks = super().partitions(start, end)
        self._planned = StreamOffsets.from_json(end)
        return tasks
