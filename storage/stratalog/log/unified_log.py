"""The log of one partition: what may be appended, what may be read, what is durable, and what may go.

`LocalLog` has the files, `LogAppender` fills them, `LogFlusher` syncs them, `LogReader` reads them.
`LogState` follows what producers do, `LogOffsets` says what the offsets mean and how they relate,
`LogAvailability` whether the log may be used, `LogRetention` lets go of its beginning, `LogTruncation` of its
end. This class puts them together: it takes the locks, moves the offsets, and decides what a failure of the
disk means.

Threads: appends validate without a lock, then write under `lock`, one at a time; `append_group` writes for
many callers at once. Readers take no lock. `flush` syncs outside of `lock`, so that appends go on meanwhile,
but for a follower's, which may have to write down a hole.
Lock order: `_flush_lock` before `lock`; nothing that is called under either calls back into this class.

Crash: what was appended but not flushed may be lost from some batch on; everything below `recovery_point`
stays. An append that fails leaves nothing behind. Where that cannot be had (the disk refuses to truncate, or
to sync), nobody knows what is on the disk, and the log goes offline until a restart has recovered it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.filesystem import Buffer
from stratalog.base.scheduler import Scheduler
from stratalog.base.stepwise_sort import sorted_stepwise
from stratalog.base.types import Durability, TopicPartition
from stratalog.log.append.append_info import AppendInfo
from stratalog.log.append.append_request import AppendRequest
from stratalog.log.append.log_appender import LogAppender, only
from stratalog.log.append.log_flusher import LogFlusher
from stratalog.log.directory_health import DirectoryHealth
from stratalog.log.disk_error import disk_error
from stratalog.log.exchange.log_copy import Commit, LogCopy
from stratalog.log.exchange.segment_exchange import SegmentExchange
from stratalog.log.exchange.state_transfer import StateTransfer
from stratalog.log.leader_epoch_cache import EpochEnd
from stratalog.log.log_availability import LogAvailability
from stratalog.log.log_config import LogConfig
from stratalog.log.log_offsets import LogOffsets
from stratalog.log.log_parts import LogParts
from stratalog.log.log_segments import LogSegments
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.log.read.fetch_data import FetchData
from stratalog.log.read.isolation import Isolation
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.segment_info import SegmentInfo, SegmentSource
from stratalog.log.recovery.log_loader import LoadedLog
from stratalog.log.retention import retention
from stratalog.log.retention.late_removal import unlink_later
from stratalog.log.retention.log_retention import LogRetention
from stratalog.log.retention.log_truncation import LogTruncation
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import BatchHeader
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.timestamp_offset import TimestampOffset


class UnifiedLog:
    """Thread-safe: changes hold `lock`, reads take an immutable snapshot of the segments."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        random_source: random.Random,
        loaded: LoadedLog,
        checkpoint: Callable[[UnifiedLog, int], None],
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        health: DirectoryHealth,
    ) -> None:
        """`checkpoint` makes the log's recovery point durable, and the start offset that it gets; called
        under `lock`. `health`: of the log directory that the log is in."""
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
        self._state = loaded.state
        self._offsets = LogOffsets(
            loaded.local_log,
            loaded.state,
            config.min_durability,
            log_start_offset=loaded.log_start_offset,
            recovery_point=loaded.local_log.segments.end_offset,
        )
        self._state.publish(self._offsets.high_watermark)
        self._availability = LogAvailability(self.lock, topic_partition, loaded.local_log, health)
        parts = LogParts(
            self._flush_lock, self.lock, clock, self._local, self._state, self._offsets, self._availability
        )
        self._reader = LogReader(parts)
        self._flusher = LogFlusher(parts)
        self._appender = LogAppender(parts, self._flusher, random_source)
        self._retention = LogRetention(parts, topic_partition, self._roll)
        self._truncation = LogTruncation(
            parts,
            self._flusher,
            self._reader,
            roll=self._roll,
            checkpoint=self._checkpoint_now,
            unlink_later=self._unlink_later,
        )
        self.segment_exchange = SegmentExchange(
            parts, self._flusher, checkpoint=self._checkpoint_now, unlink_later=self._unlink_later
        )
        self.state_transfer = StateTransfer(parts)

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
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction began that is open, or whose end may still be lost."""
        return self._state.producers.first_unstable_offset

    @property
    def min_durability(self) -> Durability:
        """What the high watermark waits for."""
        return self._offsets.min_durability

    @property
    def active_base_offset(self) -> int:
        """Where the active segment begins; what lies below is sealed."""
        return self._local.segments.active.base_offset

    @property
    def local_segments(self) -> LogSegments:
        """The segments as they are now: a snapshot, for whoever copies them or looks at all of them."""
        return self._local.segments

    @property
    def size_bytes(self) -> int:
        """Bytes of the local segments."""
        return self._local.segments.size_bytes

    @property
    def is_offline(self) -> bool:
        """The disk failed in a way that only a restart recovers from."""
        return self._availability.is_offline

    def require_disk(self) -> None:
        """Raises DataDirectoryError where the log directory's disk has failed."""
        self._availability.require_disk()

    @property
    def future_segment_count(self) -> int:
        """Segments that stay because they claim to be of the future, as of the last look of retention."""
        return self._retention.future_segment_count

    @property
    def is_closed(self) -> bool:
        return self._availability.is_closed

    @property
    def is_changed(self) -> bool:
        """Its files are not what they were when it was loaded."""
        return self._local.is_changed

    def append_as_leader(self, batches: Buffer, leader_epoch: int) -> AppendInfo:
        """Append a producer's batches, which become visible together; see `append_group`."""
        return only(self.append_group([batches], leader_epoch))

    def append_group(self, requests: Sequence[Buffer], leader_epoch: int) -> list[AppendInfo | LogStoreError]:
        """Append many producers' requests, in order, with one write for all of them (one more for each roll).

        Each request stands for itself: where it is not valid, or its producer may not send it now, its place
        in the result holds the error (the classes that `validate_append` and `ProducerAppend.stage` raise)
        and nothing of it is stored. One that was stored before is answered with its offsets of then. In the
        page cache when this returns, durable after `flush`; or at once, where `flush.messages` says so. A
        disk that fails gives DataDirectoryError for the requests that were written, or synced, together: of
        the latter nobody knows whether they are stored. The buffers must not change until this returns.
        Thread-safe.
        """
        return self._appender.append_group(requests, leader_epoch, self.config)

    def append_end_transaction_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        committed: bool,
        leader_epoch: int,
    ) -> AppendInfo:
        """End the producer's transaction, for its coordinator. Durable after `flush`.

        Raises ProducerFencedError, CoordinatorFencedError, DataDirectoryError.
        """
        control_type = ControlType.COMMIT if committed else ControlType.ABORT
        marker = EndTransactionMarker(control_type, coordinator_epoch)
        request = AppendRequest.end_of_transaction(producer_id, producer_epoch, marker, self._clock.now_ms())
        return self._appender.append(request, leader_epoch, self.config)

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        """Append batches that already have their offsets and epochs, at or above the log's end. Durable after
        `flush`.

        All of them or none, unless holes between them are so wide that they do not go into one segment: then
        `log_end_offset` says how far it came. Raises CorruptRecordError, DataDirectoryError.
        """
        # Before `lock`: a wide hole is written down, which takes a flush.
        with self._flush_lock:
            return self._appender.append_replica(batches, self.config, self._truncation.begin_behind)

    def flush(self) -> int:
        """Make durable, names included, what was appended before the call; returns the recovery point then.

        Appends go on meanwhile. Raises DataDirectoryError: a sync that fails takes the log offline.
        """
        return self._flusher.flush()

    def flush_if_old(self) -> None:
        """Flush where the last flush is `flush.ms` ago and records came since; for a task that does it again
        and again. A log that is offline or closed is left alone. Raises DataDirectoryError."""
        self._flusher.flush_if_old(self.config)

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        *,
        min_one_message: bool = True,
    ) -> FetchData:
        """See `LogReader.read`, as with all that follow up to `read_segment`. No lock is taken."""
        return self._reader.read(offset, max_bytes, isolation, min_one_message=min_one_message)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        return self._reader.aborted_transactions(start_offset, end_offset)

    def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = Isolation.HIGH_WATERMARK
    ) -> TimestampOffset | None:
        return self._reader.offset_for_timestamp(timestamp_ms, isolation)

    def max_timestamp(self, isolation: Isolation = Isolation.HIGH_WATERMARK) -> TimestampOffset | None:
        return self._reader.max_timestamp(isolation)

    def header_at(self, offset: int) -> BatchHeader | None:
        return self._reader.header_at(offset)

    def end_without(self, offset: int) -> int:
        return self._reader.end_without(offset)

    def segments(self, proven_end_offset: int = 0) -> tuple[SegmentInfo, ...]:
        return self._reader.segments(proven_end_offset)

    def upload_candidates(self, from_offset: int) -> tuple[SegmentSource, ...]:
        return self._reader.upload_candidates(from_offset)

    def read_segment(self, source: SegmentSource, position: int, size: int) -> bytes:
        return self._reader.read_segment(source, position, size)

    def end_offset_for(self, leader_epoch: int) -> EpochEnd | None:
        """Where the log leaves that leader epoch; see `LeaderEpochCache.end_offset_for`. No lock is taken."""
        return self._state.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def producers(self) -> tuple[ProducerStateEntry, ...]:
        """What is known of the producers, by id."""
        with self.lock:
            entries = [*self._state.producers.producers.values()]
        return tuple(sorted_stepwise(entries, key=lambda entry: entry.producer_id))

    def set_producer_id_expiration_ms(self, expiration_ms: int) -> None:
        """Producers that are idle for so long are forgotten from now on."""
        with self.lock:
            self._state.producers.expiration_ms = expiration_ms

    def remove_expired_producers(self) -> None:
        """Forget the producers that have been idle for too long."""
        with self.lock:
            self._state.producers.remove_expired_producers(self._clock.now_ms())

    def roll(self, *, only_if_idle: bool = False) -> None:
        """Begin a new segment, if the active one has data (that is too old). Raises DataDirectoryError."""
        with self.lock:
            self._availability.require_online()
            if not only_if_idle or self._appender.must_roll_idle(self.config):
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
            self._state.publish(self.high_watermark)

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
                if not self.config.remote_storage_enable or offset > self.recovery_point:
                    # Before anybody sees it, who might write it down: a start that is refused has not been.
                    with self._availability.unchanged_on_refusal():
                        self._checkpoint(self, offset)
                self._offsets.log_start_offset = offset
                self._retention.follow_log_start()

    def delete_local_segments(self, *, ignore_retention: bool = False) -> int:
        """Drop local segments that are in the object store and beyond the local retention; returns how many.

        What lies below the log start goes in any case. `ignore_retention`: everything that is in the object
        store. Raises CorruptRecordError, DataDirectoryError.
        """
        rule = retention.all_tiered if ignore_retention else retention.beyond_local_retention
        return self._delete_beyond(rule)

    def delete_old_segments(self) -> int:
        """Drop segments of a log that is not tiered, below its start or beyond its retention; returns how
        many. The log start follows. Raises CorruptRecordError, DataDirectoryError."""
        return self._delete_beyond(retention.beyond_retention)

    def _delete_beyond(self, rule: retention.RetentionRule) -> int:
        self._retention.prove_ages(rule, self.config)
        with self._flush_lock, self.lock:
            dropped = self._retention.drop_beyond(rule, self.config)
            self._unlink_later(dropped)
            return len(dropped)

    def truncate_to(self, offset: int) -> int:
        """Drop the batches that end at or above `offset`; returns the log's end, see `end_without`. Durable
        when it returns. Raises CorruptRecordError with nothing changed, DataDirectoryError."""
        with self._flush_lock, self.lock:
            return self._truncation.truncate_to(offset, self.config)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything local and go on, empty, at `offset`. Durable when it returns. Raises
        DataDirectoryError."""
        with self._flush_lock, self.lock:
            self._truncation.truncate_fully_and_start_at(offset, self.config)

    def copy_to(self, directory: str) -> LogCopy:
        """In that directory, which is there and has nothing of a log in it. Raises DataDirectoryError."""
        return LogCopy(self._local, self._state, self._offsets, self._availability, directory)

    def relocate(self, copy: LogCopy, commit: Commit) -> bool:
        """See `LogCopy.relocate`. What was appended is durable when it returns True."""
        with self._flush_lock, self.lock:
            return copy.relocate(commit)

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
            self._state.publish(self.high_watermark)

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
                        self._state.producers.take_snapshot()
                        self._state.epochs.flush()
                        self._local.save_active_indexes()
            finally:
                self._availability.is_closed = True
                self._local.close()

    def check(self) -> None:
        """Prove the relations of all offsets, every segment, and that the state follows from the batches.

        Raises CorruptRecordError, OSError.
        """
        with self._flush_lock, self.lock:
            self._offsets.check()
            self._local.check()
            self._state.check(self._local.segments)

    def _roll(self, base_offset: int | None = None, on_begun: Callable[[], None] = lambda: None) -> None:
        """At the log's end, or behind it; see `LocalLog.roll`."""
        try:
            self._state.producers.take_snapshot(durable=False)
            self._local.roll(self.config, self._clock.now_ms(), base_offset, on_begun)
        except OSError as failure:
            raise disk_error(failure, self.directory) from failure
        except DataDirectoryError as failure:
            raise self._availability.go_offline(failure) from failure

    def _checkpoint_now(self) -> None:
        self._checkpoint(self, self.log_start_offset)

    def _unlink_later(self, dropped: Sequence[LogSegment]) -> None:
        unlink_later(self._scheduler, self._availability, dropped, self.config.file_delete_delay_ms)
