"""The log of one partition: what may be appended, what may be read, what is durable, and what may go.

`LocalLog` writes the files, `LogReader` reads them, `LogOffsets` says what the offsets mean and how they
relate, `LogAvailability` whether the log may be used, `retention` what may go. This class puts them together:
it takes the locks, moves the offsets, and decides what a failure of the disk means.

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
from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.filesystem import Buffer
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import Durability, TopicPartition
from stratalog.log import retention
from stratalog.log.append_info import AppendInfo
from stratalog.log.append_rules import refuse_producer_state
from stratalog.log.append_run import AppendRun
from stratalog.log.fetch_data import FetchData
from stratalog.log.log_availability import LogAvailability
from stratalog.log.log_config import LogConfig
from stratalog.log.log_loader import LoadedLog
from stratalog.log.log_offsets import LogOffsets
from stratalog.log.log_reader import LogReader
from stratalog.log.log_validator import ValidatedAppend, validate_append, validate_replica
from stratalog.log.segment_info import SegmentInfo, SegmentSource
from stratalog.record.header import BatchHeader
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
        self._newest_ms = retention.newest_ms_on(loaded.local_log.resources.filesystem)
        self._offsets = LogOffsets(
            loaded.local_log,
            config.min_durability,
            log_start_offset=log_start_offset,
            recovery_point=loaded.recovery_point,
        )
        self._availability = LogAvailability(topic_partition, loaded.local_log)
        self._reader = LogReader(loaded.local_log, self._offsets, self._availability)

    @property
    def directory(self) -> str:
        return self._local.directory

    @property
    def log_start_offset(self) -> int:
        return self._offsets.log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        return self._offsets.local_log_start_offset

    @property
    def tiered_end_offset(self) -> int:
        return self._offsets.tiered_end_offset

    @property
    def earliest_pending_upload_offset(self) -> int:
        return self._offsets.earliest_pending_upload_offset

    @property
    def recovery_point(self) -> int:
        return self._offsets.recovery_point

    @property
    def log_end_offset(self) -> int:
        return self._offsets.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._offsets.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self._offsets.last_stable_offset

    @property
    def min_durability(self) -> Durability:
        """What the high watermark waits for."""
        return self._offsets.min_durability

    @property
    def active_base_offset(self) -> int:
        """Where the active segment begins; what lies below is sealed."""
        return self._local.segments.active.base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of the local segments."""
        return self._local.segments.size_bytes

    @property
    def is_offline(self) -> bool:
        """The disk failed in a way that only a restart recovers from."""
        return self._availability.is_offline

    @property
    def is_closed(self) -> bool:
        return self._availability.is_closed

    def append_as_leader(self, batches: Buffer, leader_epoch: int) -> AppendInfo:
        """Append a producer's batches, which become visible together; see `append_group`."""
        return _only(self.append_group([batches], leader_epoch))

    def append_group(self, requests: Sequence[Buffer], leader_epoch: int) -> list[AppendInfo | LogStoreError]:
        """Append many producers' requests, in order, with one write for all of them (one more for each roll).

        Each request stands for itself: where it is not valid, its place in the result holds the error (the
        classes that `validate_append` raises) and nothing of it is stored. In the page cache when this
        returns, durable after `flush`. A disk that fails gives DataDirectoryError for the requests that were
        written together. The buffers must not change until this returns. Thread-safe.
        """
        validated = [self._validated(request) for request in requests]
        with self.lock:
            return self._append(validated, leader_epoch)

    def _validated(self, request: Buffer) -> ValidatedAppend | LogStoreError:
        try:
            validated = validate_append(request, self.config, self._clock.now_ms())
            refuse_producer_state(validated.headers)
            return validated
        except LogStoreError as failure:
            return failure

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        """Append batches that already have their offsets and epochs, at or above the log's end. Durable after
        `flush`.

        Raises CorruptRecordError, DataDirectoryError.
        """
        with self.lock:
            return _only(self._append([validate_replica(batches, self.log_end_offset)], None))

    def _append(
        self, requests: Sequence[ValidatedAppend | LogStoreError], leader_epoch: int | None
    ) -> list[AppendInfo | LogStoreError]:
        run = AppendRun(
            self._local, self.config, self._clock.now_ms(), leader_epoch, self._availability.refusal()
        )
        for request in requests:
            run.add(request)
        outcomes = run.finish()
        if run.fatal is not None:
            self._availability.go_offline(run.fatal)
        return outcomes

    def flush(self) -> int:
        """Make durable, names included, what was appended before the call; returns the recovery point then.

        Appends go on meanwhile. Raises DataDirectoryError, and takes the log offline: after a sync that
        failed nobody knows what is on the disk.
        """
        with self._flush_lock:
            with self.lock:
                self._availability.require_online()
                end_offset = self.log_end_offset
                work = self._local.take_unsynced(self.recovery_point)
            if not work.is_empty:
                try:
                    self._local.sync(work)
                except OSError as failure:
                    with self.lock:
                        raise self._availability.go_offline(failure) from failure
            with self.lock:
                self._offsets.recovery_point = max(self.recovery_point, end_offset)
                return self.recovery_point

    def read(
        self, offset: int, max_bytes: int, *, min_one_message: bool = True, end_offset: int | None = None
    ) -> FetchData:
        """See `LogReader.read`, as with all that follow up to `read_segment`. No lock is taken."""
        return self._reader.read(offset, max_bytes, min_one_message=min_one_message, end_offset=end_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        return self._reader.offset_for_timestamp(timestamp_ms)

    def max_timestamp(self) -> TimestampOffset | None:
        return self._reader.max_timestamp()

    def header_at(self, offset: int) -> BatchHeader | None:
        return self._reader.header_at(offset)

    def segments(self) -> tuple[SegmentInfo, ...]:
        return self._reader.segments()

    def upload_candidates(self, from_offset: int) -> tuple[SegmentSource, ...]:
        return self._reader.upload_candidates(from_offset)

    def read_segment(self, source: SegmentSource, position: int, size: int) -> bytes:
        return self._reader.read_segment(source, position, size)

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty. Raises DataDirectoryError."""
        with self.lock:
            self._availability.require_online()
            self._roll()

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
            self._offsets.tiered_end_offset = max(self.tiered_end_offset, offset)

    def increment_log_start_offset(self, offset: int) -> None:
        """Records below `offset` are deleted; lower offsets than before change nothing.

        Durable when it returns. Of a tiered log the store's metadata say where it starts, and whoever opens
        the log tells it; only a start that a crash could leave behind the log's end is written down here,
        too. Raises OffsetOutOfRangeError above the high watermark, DataDirectoryError.
        """
        with self.lock:
            self._availability.require_online()
            if offset > self.high_watermark:
                raise self._offsets.out_of_range(offset)
            if offset > self.log_start_offset:
                self._offsets.log_start_offset = offset
                if not self.config.remote_storage_enable or offset > self.recovery_point:
                    with self._availability.offline_on_failure():
                        self._checkpoint(self)

    def delete_local_segments(self, *, ignore_retention: bool = False) -> int:
        """Drop local segments that are in the object store and beyond the local retention; returns how many.

        What lies below the log start goes in any case. `ignore_retention`: everything that is in the object
        store. Raises CorruptRecordError, DataDirectoryError.
        """
        with self._flush_lock, self.lock:
            if ignore_retention:
                return self._delete_oldest(retention.tiered(self._local.segments, self._offsets))
            return self._delete_oldest(self._count_beyond(retention.beyond_local_retention))

    def delete_old_segments(self) -> int:
        """Drop segments of a log that is not tiered: below its start, beyond `retention.bytes`, beyond
        `retention.ms`.

        Returns how many. The log start follows. Raises CorruptRecordError, DataDirectoryError.
        """
        with self._flush_lock, self.lock:
            return self._delete_oldest(self._count_beyond(retention.beyond_retention))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything local and go on, empty, at `offset`. Durable when it returns. Raises
        DataDirectoryError."""
        with self._flush_lock, self.lock:
            self._availability.require_online()
            # The checkpoints must never promise more than the new log has; so they are lowered before it
            # begins.
            self._offsets.recovery_point = 0
            self._offsets.log_start_offset = min(self.log_start_offset, offset)
            self._offsets.tiered_end_offset = min(self.tiered_end_offset, offset)
            with self._availability.offline_on_failure():
                self._checkpoint(self)
                dropped = self._local.restart_at(offset, self.config, self._clock.now_ms())
            self._offsets.recovery_point = offset
            if not self.config.remote_storage_enable:
                self._offsets.log_start_offset = offset
            self._unlink_later(dropped)

    def reconfigure(self, config: LogConfig) -> None:
        """Go on by another configuration. What is visible stays visible: where `min.durability` grows, what
        is there is made durable first, unless the log is offline, which promises nothing any more.

        Raises DataDirectoryError; the former configuration holds then.
        """
        with self._flush_lock, self.lock:
            if config.min_durability > self.config.min_durability and not self.is_offline:
                self.flush()
            self.config = config
            self._offsets.min_durability = config.min_durability

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
                    with self._availability.offline_on_failure():
                        self._local.save_active_indexes()
            finally:
                self._availability.is_closed = True
                self._local.close()

    def check(self) -> None:
        """Prove the relations of all offsets, and every segment. Raises CorruptRecordError, OSError."""
        with self._flush_lock, self.lock:
            self._offsets.check()
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

    def _count_beyond(self, rule: retention.RetentionRule) -> int:
        return self._availability.reading(
            lambda: rule(
                self._local.segments, self._offsets, self.config, self._newest_ms, self._clock.now_ms()
            )
        )

    def _delete_oldest(self, count: int) -> int:
        """Drop the first `count` segments, and those below the log start; returns how many."""
        count = max(count, retention.below_log_start(self._local.segments, self._offsets))
        if count == 0:
            return 0
        self._availability.require_online()
        if count == len(self._local.segments):
            # There is always an active segment, and it is never dropped: begin a new one, empty, first.
            self._roll()
        with self._availability.offline_on_failure():
            dropped = self._local.drop_oldest(count)
        start_offset = self._local.segments.start_offset
        if not self.config.remote_storage_enable:
            self._offsets.log_start_offset = max(self.log_start_offset, start_offset)
        self._offsets.recovery_point = max(self.recovery_point, start_offset)
        self._unlink_later(dropped)
        return count

    def _unlink_later(self, dropped: Sequence[LogSegment]) -> None:
        def unlink() -> None:
            for segment in dropped:
                segment.unlink_deleted()

        self._scheduler.once(f"unlink {self.topic_partition}", unlink, self.config.file_delete_delay_ms)


def _only(outcomes: Sequence[AppendInfo | LogStoreError]) -> AppendInfo:
    """The outcome of the one request; raises where that is an error."""
    (outcome,) = outcomes
    if isinstance(outcome, LogStoreError):
        raise outcome
    return outcome
