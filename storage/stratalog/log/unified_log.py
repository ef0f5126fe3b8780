"""The log of one partition: what may be appended, what may be read, what is durable, and what may go.

Offsets, and who moves them (every one only ever grows, except under `truncate_fully_and_start_at`)::

    log_start_offset        first readable offset in any tier      deletion of records, retention
    local_log_start_offset  first offset on this disk              local retention
    tiered_end_offset       end of what is in the object store     the uploader, after a commit
    recovery_point          everything below is fsynced            flush
    high_watermark          end of what consumers may see          append (os), flush (disk), upload (object)
    log_end_offset          the next offset to be given            append

Threads: appends validate without a lock, then write under `lock`, one at a time; `append_group` writes for
many callers at once. Readers take no lock. `flush` syncs outside of `lock`, so that appends go on meanwhile.
Lock order: `_flush_lock` before `lock`; nothing that is called under either calls back into this class.

Crash: what was appended but not flushed may be lost from some batch on; everything below `recovery_point`
stays. An append that fails leaves nothing behind. Where that cannot be had (the disk refuses to truncate, or
to sync), the log goes offline: it refuses changes until a restart has recovered it, because nobody knows what
is on the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    DataDirectoryError,
    LogStoreError,
    OffsetOutOfRangeError,
)
from stratalog.base.filesystem import Buffer
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import Durability, TopicPartition
from stratalog.log import retention, time_lookup
from stratalog.log.append_info import AppendInfo
from stratalog.log.append_run import AppendRun
from stratalog.log.fetch_data import FetchData
from stratalog.log.log_availability import LogAvailability
from stratalog.log.log_config import LogConfig
from stratalog.log.log_loader import LoadedLog
from stratalog.log.log_validator import ValidatedAppend, validate_append, validate_replica
from stratalog.log.segment_info import SegmentInfo, SegmentSource, describe_segment, upload_sources
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.timestamp_offset import TimestampOffset


class UnifiedLog:
    """Thread-safe: changes hold `lock`, reads take an immutable snapshot of the segments."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        loaded: LoadedLog,
        checkpoint: Callable[[UnifiedLog], None],
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        *,
        log_start_offset: int,
    ) -> None:
        """`checkpoint` makes the log's recovery point and start offset durable as they are; called under
        `lock`."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.recovery_report = loaded.report
        self.lock = threading.RLock()
        self._flush_lock = threading.RLock()
        self._clock = clock
        self._scheduler = scheduler
        self._checkpoint = checkpoint
        self._local = loaded.local_log
        self._filesystem = loaded.local_log.resources.filesystem
        self._log_start_offset = log_start_offset
        self._tiered_end_offset = 0
        self._recovery_point = loaded.recovery_point
        self._availability = LogAvailability(topic_partition, loaded.local_log)

    @property
    def directory(self) -> str:
        return self._local.directory

    @property
    def log_start_offset(self) -> int:
        """First readable offset in any tier."""
        return self._log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        """First offset that this disk serves."""
        return max(self._log_start_offset, self._local.start_offset)

    @property
    def tiered_end_offset(self) -> int:
        """Exclusive end of what is committed in the object store, as far as this log was told."""
        return self._tiered_end_offset

    @property
    def earliest_pending_upload_offset(self) -> int:
        """First offset that is not committed in the object store yet."""
        return max(self._log_start_offset, self._tiered_end_offset)

    @property
    def recovery_point(self) -> int:
        """Everything below is fsynced."""
        return self._recovery_point

    @property
    def log_end_offset(self) -> int:
        """The next offset to be given."""
        return self._local.end_offset

    @property
    def high_watermark(self) -> int:
        """Exclusive end of what has reached the topic's `min.durability`."""
        if self.config.min_durability is Durability.OS:
            return self._local.end_offset
        if self.config.min_durability is Durability.DISK:
            return self._recovery_point
        return max(self._tiered_end_offset, self._log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Exclusive end for readers of committed records only; the high watermark until there are
        transactions."""
        return self.high_watermark

    @property
    def size_bytes(self) -> int:
        """Bytes of the local segments."""
        return self._local.size_bytes

    @property
    def is_offline(self) -> bool:
        """The disk failed in a way that only a restart recovers from."""
        return self._availability.is_offline

    @property
    def is_closed(self) -> bool:
        return self._availability.is_closed

    def append_as_leader(self, batches: Buffer, leader_epoch: int) -> AppendInfo:
        """Append a producer's batches, which become visible together; see `append_group`."""
        outcome = self.append_group([batches], leader_epoch)[0]
        if isinstance(outcome, LogStoreError):
            raise outcome
        return outcome

    def append_group(self, requests: Sequence[Buffer], leader_epoch: int) -> list[AppendInfo | LogStoreError]:
        """Append many producers' requests, in order, with one write for all of them (one more for each roll).

        Each request stands for itself: where it is not valid, its place in the result holds the error (the
        classes that `validate_append` raises) and nothing of it is stored. In the page cache when this
        returns, durable after `flush`. A disk that fails gives DataDirectoryError for the requests that were
        written together. The buffers must not change until this returns. Thread-safe.
        """
        validated = [self._validated(request) for request in requests]
        with self.lock:
            run = AppendRun(
                self._local, self.config, self._clock.now_ms(), leader_epoch, self._availability.refusal()
            )
            for request in validated:
                run.add(request)
            outcomes = run.finish()
            if run.fatal is not None:
                self._availability.go_offline(run.fatal)
            return outcomes

    def _validated(self, request: Buffer) -> ValidatedAppend | LogStoreError:
        try:
            return validate_append(request, self.config)
        except LogStoreError as failure:
            return failure

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        """Append batches that already have their offsets and epochs, at or above the log's end. Durable after
        `flush`.

        Raises CorruptRecordError, DataDirectoryError.
        """
        with self.lock:
            validated = validate_replica(batches, self.log_end_offset)
            run = AppendRun(
                self._local, self.config, self._clock.now_ms(), None, self._availability.refusal()
            )
            run.add(validated)
            outcome = run.finish()[0]
            if run.fatal is not None:
                self._availability.go_offline(run.fatal)
            if isinstance(outcome, LogStoreError):
                raise outcome
            return outcome

    def flush(self) -> int:
        """Make durable, names included, what was appended before the call; returns the recovery point then.

        Appends go on meanwhile. Raises DataDirectoryError, and takes the log offline: after a sync that
        failed nobody knows what is on the disk.
        """
        with self._flush_lock:
            with self.lock:
                self._availability.require_online()
                end_offset = self._local.end_offset
                work = self._local.take_unsynced(self._recovery_point)
            if not work.is_empty:
                try:
                    self._local.sync(work)
                except OSError as failure:
                    with self.lock:
                        raise self._availability.go_offline(failure) from failure
            with self.lock:
                self._recovery_point = max(self._recovery_point, end_offset)
                return self._recovery_point

    def read(
        self, offset: int, max_bytes: int, *, min_one_message: bool = True, end_offset: int | None = None
    ) -> FetchData:
        """Whole batches from the first one that ends at or above `offset`, below `end_offset` (None: high
        watermark).

        At most `max_bytes`, except for a first batch that is larger, if `min_one_message`. Checksums are
        compared. Raises OffsetOutOfRangeError below `local_log_start_offset` or above `log_end_offset`,
        CorruptRecordError, DataDirectoryError.
        """

        def read_once() -> FetchData:
            # Everything is judged by one list of segments: a newer one may have lost or gained what lies
            # between.
            segments = self._local.segments
            log_end_offset = segments[-1].end_offset
            if not max(self._log_start_offset, segments[0].base_offset) <= offset <= log_end_offset:
                raise self._out_of_range(offset)
            end = min(self.high_watermark if end_offset is None else end_offset, log_end_offset)
            if offset >= end:
                return FetchData(b"", offset)
            return self._local.read(segments, offset, max_bytes, end_offset=end, min_one=min_one_message)

        return self._availability.reading(read_once)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first local record below the high watermark with that timestamp or a later one, in offset
        order.

        Raises CorruptRecordError, DataDirectoryError.
        """
        return self._availability.reading(
            lambda: time_lookup.first_at_or_after(
                self._local.segments, timestamp_ms, self.local_log_start_offset, self.high_watermark
            )
        )

    def max_timestamp(self) -> TimestampOffset | None:
        """The first of the local records below the high watermark that have the highest timestamp.

        Raises CorruptRecordError, DataDirectoryError.
        """
        return self._availability.reading(
            lambda: time_lookup.newest(self._local.segments, self.local_log_start_offset, self.high_watermark)
        )

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty. Raises DataDirectoryError."""
        with self.lock:
            self._availability.require_online()
            self._roll()

    def segments(self) -> tuple[SegmentInfo, ...]:
        """The local segments, oldest first. Raises CorruptRecordError, DataDirectoryError."""
        return self._availability.reading(lambda: tuple(map(describe_segment, self._local.segments)))

    def upload_candidates(self, from_offset: int) -> tuple[SegmentSource, ...]:
        """What may be copied to the object store at or above `from_offset`: sealed, fsynced, below the last
        stable offset.

        They tile, beginning at `from_offset` or at the log's start, whichever is higher. Raises
        CorruptRecordError, DataDirectoryError.
        """

        return self._availability.reading(
            lambda: upload_sources(
                self._local.segments[:-1],
                max(from_offset, self.local_log_start_offset),
                min(self.last_stable_offset, self._recovery_point),
            )
        )

    def read_segment(self, source: SegmentSource, position: int, size: int) -> bytes:
        """Bytes [position, position + size) of the candidate's segment file, no more than the candidate has.

        Raises OffsetOutOfRangeError where the segment has been dropped, DataDirectoryError.
        """
        end_position = source.first_position + source.size_bytes
        assert source.first_position <= position <= end_position

        def read() -> bytes:
            for segment in self._local.segments:
                if segment.base_offset == source.segment_base_offset:
                    return segment.read_bytes(position, min(size, end_position - position))
            raise self._out_of_range(source.base_offset)

        return self._availability.reading(read)

    def update_tiered_end_offset(self, offset: int) -> None:
        """Learn that everything below `offset` is committed in the object store; lower news are old news.

        Raises DataDirectoryError where the log does not reach that far: it is not the log that was uploaded.
        """
        with self.lock:
            if offset > self.log_end_offset:
                raise DataDirectoryError(
                    "the object store holds more of this partition than the local log; set it aside",
                    path=self.directory,
                    tiered_end_offset=offset,
                    log_end_offset=self.log_end_offset,
                )
            self._tiered_end_offset = max(self._tiered_end_offset, offset)

    def increment_log_start_offset(self, offset: int) -> None:
        """Records below `offset` are deleted; lower offsets than before change nothing.

        Durable when it returns. Of a tiered log the store's metadata say where it starts, and whoever opens
        the log tells it; only a start that a crash could leave behind the log's end is written down here,
        too. Raises OffsetOutOfRangeError above the high watermark, DataDirectoryError.
        """
        with self.lock:
            self._availability.require_online()
            if offset > self.high_watermark:
                raise self._out_of_range(offset)
            if offset > self._log_start_offset:
                self._log_start_offset = offset
                if not self.config.remote_storage_enable or offset > self._recovery_point:
                    self._persist_checkpoint()

    def delete_local_segments(self, *, ignore_retention: bool = False) -> int:
        """Drop local segments that are in the object store and beyond the local retention; returns how many.

        What lies below the log start goes in any case. `ignore_retention`: everything that is in the object
        store. Raises CorruptRecordError, DataDirectoryError.
        """
        config = self.config
        with self._flush_lock, self.lock:
            segments = self._local.segments
            tiered = segments[
                : retention.below_offset(segments, min(self._tiered_end_offset, self.high_watermark))
            ]
            count = len(tiered)
            if not ignore_retention:
                # The size that counts is that of everything here, what is not in the object store yet
                # included.
                by_size = retention.beyond_size(segments, config.effective_local_retention_bytes)
                by_age = self._beyond_age(tiered, config.effective_local_retention_ms)
                count = max(min(count, by_size), by_age)
            return self._delete_oldest(max(count, self._below_log_start()))

    def delete_old_segments(self) -> int:
        """Drop segments of a log that is not tiered: below its start, beyond `retention.bytes`, beyond
        `retention.ms`.

        Returns how many. The log start follows. Raises CorruptRecordError, DataDirectoryError.
        """
        config = self.config
        with self._flush_lock, self.lock:
            count = self._below_log_start()
            if config.is_deleted and not config.remote_storage_enable:
                segments = self._local.segments
                visible = segments[: retention.below_offset(segments, self.high_watermark)]
                by_size = retention.beyond_size(segments, config.retention_bytes)
                by_age = self._beyond_age(visible, config.retention_ms)
                count = max(count, min(by_size, len(visible)), by_age)
            return self._delete_oldest(count)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything local and go on, empty, at `offset`. Durable when it returns. Raises
        DataDirectoryError."""
        with self._flush_lock, self.lock:
            self._availability.require_online()
            # The checkpoints must never promise more than the new log has; so they are lowered before it
            # begins.
            self._recovery_point = 0
            self._log_start_offset = min(self._log_start_offset, offset)
            self._tiered_end_offset = min(self._tiered_end_offset, offset)
            self._persist_checkpoint()
            try:
                dropped = self._local.restart_at(offset, self.config, self._clock.now_ms())
            except OSError as failure:
                raise self._availability.go_offline(failure) from failure
            self._recovery_point = offset
            if not self.config.remote_storage_enable:
                self._log_start_offset = offset
            self._unlink_later(dropped)

    def reconfigure(self, config: LogConfig) -> None:
        """Go on by another configuration. What is visible stays visible, so what is there is flushed first.

        Raises DataDirectoryError.
        """
        with self._flush_lock, self.lock:
            self.flush()
            self.config = config

    def close(self, *, flush: bool = True) -> None:
        """Flush, write the active segment's indexes and let go of the files. Every later call is refused.

        Raises DataDirectoryError; the log is closed all the same, and has to be recovered.
        """
        with self._flush_lock, self.lock:
            if self._availability.is_closed:
                return
            try:
                if flush:
                    self.flush()
                    self._local.save_active_indexes()
            except OSError as failure:
                raise self._availability.go_offline(failure) from failure
            finally:
                self._availability.is_closed = True
                self._local.close()

    def check(self) -> None:
        """Prove the relations of all offsets, and every segment. Raises CorruptRecordError, OSError."""
        with self._flush_lock, self.lock:
            assert 0 <= self.log_start_offset <= self.local_log_start_offset <= self.log_end_offset
            assert (
                self.log_start_offset <= self.last_stable_offset <= self.high_watermark <= self.log_end_offset
            )
            assert self.tiered_end_offset <= self.log_end_offset
            assert self.recovery_point <= self.log_end_offset
            assert self._local.start_offset <= self.recovery_point
            self._local.check()

    def _roll(self) -> None:
        try:
            self._local.roll(self.config, self._clock.now_ms())
        except OSError as failure:
            raise DataDirectoryError(
                "the local disk refused a new segment; free space or repair it",
                path=self.directory,
                reason=str(failure),
            ) from failure
        except DataDirectoryError as failure:
            raise self._availability.go_offline(failure) from failure

    def _below_log_start(self) -> int:
        return retention.below_offset(self._local.segments, min(self._log_start_offset, self.high_watermark))

    def _beyond_age(self, segments: Sequence[LogSegment], retention_ms: int) -> int:
        return self._availability.reading(
            lambda: retention.beyond_age(segments, retention_ms, self._newest_ms, self._clock.now_ms())
        )

    def _newest_ms(self, segment: LogSegment) -> int:
        """The highest timestamp of the segment's records; where they have none, when its file was written."""
        timestamp_ms = segment.max_timestamp().timestamp_ms
        return timestamp_ms if timestamp_ms >= 0 else self._filesystem.modified_ms(segment.path)

    def _delete_oldest(self, count: int) -> int:
        if count == 0:
            return 0
        self._availability.require_online()
        if count == len(self._local.segments):
            # There is always an active segment, and it is never dropped: begin a new one, empty, first.
            self._roll()
        try:
            dropped = self._local.drop_oldest(count)
        except OSError as failure:
            raise self._availability.go_offline(failure) from failure
        if not self.config.remote_storage_enable:
            self._log_start_offset = max(self._log_start_offset, self._local.start_offset)
        self._recovery_point = max(self._recovery_point, self._local.start_offset)
        self._unlink_later(dropped)
        return count

    def _unlink_later(self, dropped: Sequence[LogSegment]) -> None:
        def unlink() -> None:
            for segment in dropped:
                segment.unlink_deleted()

        self._scheduler.once(f"unlink {self.topic_partition}", unlink, self.config.file_delete_delay_ms)

    def _persist_checkpoint(self) -> None:
        try:
            self._checkpoint(self)
        except OSError as failure:
            raise self._availability.go_offline(failure) from failure

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            "the offset is outside of what this log holds; go on from an offset inside",
            offset=offset,
            log_start_offset=self.log_start_offset,
            local_log_start_offset=self.local_log_start_offset,
            log_end_offset=self.log_end_offset,
        )
