"""The log of one partition. It shows its parts and has the operations that need several of them.

`LocalLog` has the files and the configuration, `LogAppender` fills the files, `LogFlusher` syncs them,
`LogReader` reads them. `LogState` follows producers and leader epochs, `LogOffsets` holds the offsets,
`LogAvailability` says if the log may be used, `LogRetention` drops its beginning, `LogTruncation` its end.
The parts share two locks. A part takes them by itself, unless its docstring says that the caller holds them.

Threads: appends validate without a lock, then write under `lock`, one at a time; `LogAppender.append_group`
writes for many callers at once. Readers take no lock. `LogFlusher.flush` syncs outside of `lock`, so appends
go on meanwhile, except those of a follower, which may have to write down a hole.
Lock order: the flush lock before `lock`. Nothing that is called under either calls back into this class.

Crash: of the appends after the last flush a crash keeps a beginning; everything below the recovery point
stays. An append that fails leaves nothing behind. If the disk refuses to truncate or to sync, the bytes on it
are unknown: the log goes offline until a restart has recovered it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from uuid import UUID

from stratalog.base.errors import DataDirectoryError
from stratalog.base.patient_lock import PatientLock
from stratalog.base.stepwise_sort import sorted_stepwise
from stratalog.base.types import TopicPartition
from stratalog.log.append.log_appender import LogAppender
from stratalog.log.append.log_flusher import LogFlusher
from stratalog.log.config_key import LONG_MAX
from stratalog.log.directory_health import DirectoryHealth
from stratalog.log.disk_error import disk_error
from stratalog.log.exchange.log_copy import LogCopy
from stratalog.log.exchange.segment_exchange import SegmentExchange
from stratalog.log.exchange.state_transfer import StateTransfer
from stratalog.log.leader_epoch_cache import EpochEnd
from stratalog.log.log_availability import LogAvailability
from stratalog.log.log_config import LogConfig
from stratalog.log.log_environment import LogEnvironment
from stratalog.log.log_offsets import LogOffsets
from stratalog.log.log_parts import LogParts
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.log.read.log_reader import LogReader
from stratalog.log.recovery.log_loader import LoadedLog
from stratalog.log.retention.late_removal import unlink_later
from stratalog.log.retention.log_retention import LogRetention
from stratalog.log.retention.log_truncation import LogTruncation
from stratalog.segment.log_segment import LogSegment


class UnifiedLog:
    """The log of one partition. Thread-safe: changes hold `lock`, reads take an immutable snapshot of the
    segments."""

    def __init__(
        self,
        environment: LogEnvironment,
        loaded: LoadedLog,
        checkpoint: Callable[[UnifiedLog, int], None],
        topic_partition: TopicPartition,
        topic_id: UUID,
        health: DirectoryHealth,
    ) -> None:
        """`checkpoint` makes the log's recovery point and the given start offset durable; called under
        `lock`. `health`: the health of the log directory."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.recovery_report = loaded.report
        self.lock = threading.RLock()
        self.flush_lock = PatientLock(self._flush_refusal)
        """Kept during a sync and during changes of sealed segments. Taken before `lock`."""
        self._clock = environment.clock
        self._removals = environment.removals
        self._checkpoint = checkpoint
        self.local_log = loaded.local_log
        self.state = loaded.state
        self.state.producers.count_in(environment.producer_room)
        self.offsets = LogOffsets(
            loaded.local_log,
            loaded.state,
            log_start_offset=loaded.log_start_offset,
            recovery_point=loaded.local_log.segments.end_offset,
        )
        self.state.publish(self.offsets.high_watermark)
        self.availability = LogAvailability(self.lock, topic_partition, loaded.local_log, health)
        self._parts = LogParts(
            flush_lock=self.flush_lock,
            lock=self.lock,
            clock=environment.clock,
            local_log=self.local_log,
            state=self.state,
            offsets=self.offsets,
            availability=self.availability,
        )
        self.reader = LogReader(self._parts)
        self.flusher = LogFlusher(self._parts)
        self.retention = LogRetention(self._parts, topic_partition, roll=self._roll, unlink=self._unlink)
        self.truncation = LogTruncation(
            self._parts,
            self.flusher,
            self.reader,
            roll=self._roll,
            checkpoint=self._checkpoint_now,
            unlink_later=self._unlink_later,
        )
        self.appender = LogAppender(
            self._parts, self.flusher, environment.random_source, begin_behind=self.truncation.begin_behind
        )
        self.segment_exchange = SegmentExchange(
            self._parts, self.flusher, checkpoint=self._checkpoint_now, unlink_later=self._unlink_later
        )
        self.state_transfer = StateTransfer(self._parts)

    def end_offset_for(self, leader_epoch: int) -> EpochEnd | None:
        """The end of a leader epoch in this log, see `LeaderEpochCache.end_offset_for`. Takes no lock."""
        return self.state.epochs.end_offset_for(leader_epoch, self.offsets.log_end_offset)

    def producers(self) -> tuple[ProducerStateEntry, ...]:
        """The state of all producers, ordered by id."""
        with self.lock:
            entries = [*self.state.producers.producers.values()]
        return tuple(sorted_stepwise(entries, key=lambda entry: entry.producer_id))

    def set_producer_id_expiration_ms(self, expiration_ms: int) -> None:
        """Set how long a producer may be idle before the log forgets it. Takes no lock, which an append keeps
        while its disk hangs."""
        self.state.producers.expiration_ms = expiration_ms

    def remove_expired_producers(self) -> None:
        """Forget the producers that have been idle for too long."""
        with self.lock:
            self.state.producers.remove_expired_producers(self._clock.now_ms())

    def forget_idle_producers(self, idle_ms: int, max_count: int) -> int:
        """Forget at most so many producers that have been idle for so long, see
        `ProducerStateManager.forget_idle`. Returns their number."""
        with self.lock:
            return self.state.producers.forget_idle(idle_ms, max_count)

    def roll(self, *, only_if_idle: bool = False) -> None:
        """Begin a new segment if the active one has data. `only_if_idle`: and if `RollRule.must_roll_idle`
        says so. Raises DataDirectoryError."""
        with self.lock:
            self.availability.require_online()
            if not only_if_idle or self.appender.must_roll_idle():
                self._roll()

    def update_tiered_end_offset(self, offset: int) -> None:
        """Note that everything below `offset` is committed in the object store. A lower offset than before
        changes nothing.

        Raises DataDirectoryError if the log ends below `offset`: then it is not the log that was uploaded.
        """
        with self.lock:
            if offset > self.offsets.log_end_offset:
                raise DataDirectoryError(
                    "the object store holds more of this partition than the local log; set it aside",
                    path=self.local_log.directory,
                    tiered_end_offset=offset,
                    log_end_offset=self.offsets.log_end_offset,
                )
            counted_offset = min(offset, self.offsets.tiered_limit_offset)
            self.offsets.tiered_end_offset = max(self.offsets.tiered_end_offset, counted_offset)
            self.state.publish(self.offsets.high_watermark)

    def follow_tiered_end(self, tiered_end: Callable[[], int]) -> None:
        """`update_tiered_end_offset` by an answer that cannot be out of date: `tiered_end` is asked while no
        other thread moves the offset. Raises DataDirectoryError."""
        with self.lock:
            self.update_tiered_end_offset(tiered_end())

    def leave_tier(self) -> int:
        """Count no record of this log as one that the object store has, until `rejoin_tier` or a
        configuration without tiers: so nothing deletes one for that reason. Returns the log's first offset.

        Not for a log with `min.durability=object`, whose readers see what the object store has.
        """
        with self.lock:
            start_offset = self.offsets.local_log_start_offset
            self.offsets.tiered_limit_offset = start_offset
            self.offsets.tiered_end_offset = min(self.offsets.tiered_end_offset, start_offset)
            return start_offset

    def rejoin_tier(self, tiered_end_offset: int) -> None:
        """End what `leave_tier` began: the object store has everything below this offset. Raises
        DataDirectoryError."""
        with self.lock:
            self.offsets.tiered_limit_offset = LONG_MAX
            self.update_tiered_end_offset(tiered_end_offset)

    def begin_upload(self, end_offset: int) -> None:
        """Note that an upload of the records below `end_offset` begins: no segment of them is dropped for
        space before `end_upload`, unless the object store has it."""
        with self.lock:
            self.offsets.uploading_end_offset = max(self.offsets.uploading_end_offset, end_offset)
            self.offsets.is_uploading = True

    def end_upload(self, *, is_settled: bool) -> None:
        """Note that no upload needs the segments any more. `is_settled`: nor may a commit of one come whose
        outcome is unknown."""
        with self.lock:
            self.offsets.is_uploading = False
            if is_settled:
                self.offsets.uploading_end_offset = 0

    def increment_log_start_offset(self, offset: int, *, is_committed: bool = True) -> None:
        """Delete the records below `offset`. A lower offset than before changes nothing.

        Durable when it returns, except in a tiered log whose shard has the start: `is_committed`. The
        manifest gets a copy of that with the next checkpoint of log starts; at once only if the start is
        above the recovery point, because a crash could leave the log's end below it. An exchange of segments
        ends first: it may be right for the present start only, and a start of the process would go on with
        it. Raises OffsetOutOfRangeError above the high watermark, DataDirectoryError.
        """
        with self.flush_lock, self.lock:
            self.availability.require_online()
            if offset > self.offsets.high_watermark:
                raise self.offsets.out_of_range(offset)
            if offset > self.offsets.log_start_offset:
                is_in_store = is_committed and self.local_log.config.remote_storage_enable
                if not is_in_store or offset > self.offsets.recovery_point:
                    # Before the new start is visible: a start that could not be made durable must not be
                    # seen.
                    with self.availability.unchanged_on_refusal():
                        self._checkpoint(self, offset)
                self.offsets.log_start_offset = offset
                self.local_log.tail.clear_below(offset)
                self.retention.follow_log_start()

    def copy_to(self, directory: str) -> LogCopy:
        """Begin a copy of the log in an existing directory without log files. Raises DataDirectoryError."""
        return LogCopy(self._parts, directory)

    def reconfigure(self, config: LogConfig) -> None:
        """Use another configuration from now on. Visible records stay visible: if `min.durability` grows,
        this flushes the log first, unless the log is offline.

        Raises DataDirectoryError and keeps the former configuration then.
        """
        with self.flush_lock, self.lock:
            if config.min_durability > self.offsets.min_durability and not self.availability.is_offline:
                self.flusher.flush()
                self.offsets.shown_end_offset = self.offsets.high_watermark
            if self.local_log.config.remote_storage_enable and not config.remote_storage_enable:
                self._begin_locally()
            self.local_log.config = config
            self.state.publish(self.offsets.high_watermark)

    def _begin_locally(self) -> None:
        """Begin where the local log does: nothing else has what lies below. Called with both locks held.
        Raises DataDirectoryError with nothing changed."""
        start_offset = self.offsets.local_log_start_offset
        if not self.availability.is_offline:
            with self.availability.unchanged_on_refusal():
                self._checkpoint(self, start_offset)
        self.offsets.log_start_offset = start_offset
        self.offsets.tiered_end_offset = 0
        self.offsets.tiered_limit_offset = LONG_MAX
        self.retention.follow_log_start()

    def close(self, *, flush: bool = True) -> None:
        """Flush, write the active segment's indexes and close the files. Later calls are refused.

        Raises DataDirectoryError; the log is closed all the same, and the next start recovers it.
        """
        with self.flush_lock, self.lock:
            if self.availability.is_closed:
                return
            try:
                if flush:
                    self.flusher.flush()
                    with self.availability.offline_on_failure():
                        self.state.producers.take_snapshot()
                        self.state.epochs.flush()
                        self.local_log.save_active_indexes()
            finally:
                self.availability.is_closed = True
                self.state.producers.leave_room()
                self.local_log.close()

    def check(self) -> None:
        """Assert the relations of the offsets, every segment, and that the state follows from the batches.

        Raises CorruptRecordError, OSError.
        """
        with self.flush_lock, self.lock:
            self.offsets.check()
            self.local_log.check()
            self.state.check(self.local_log.segments)

    def _flush_refusal(self) -> DataDirectoryError:
        return DataDirectoryError(
            "the log is busy with an fsync that takes long, or with a change of its segments; try again, and"
            " look at the disk if it stays so",
            path=self.local_log.directory,
            **self.topic_partition.error_fields,
        )

    def _roll(self, base_offset: int | None = None, on_begun: Callable[[], None] = lambda: None) -> None:
        """Roll at the log's end, or behind it; see `LocalLog.roll`. Raises DataDirectoryError."""
        try:
            self.state.producers.take_snapshot(durable=False)
            self.local_log.roll(self._clock.now_ms(), base_offset, on_begun)
        except OSError as failure:
            raise disk_error(failure, self.local_log.directory) from failure
        except DataDirectoryError as failure:
            raise self.availability.go_offline(failure) from failure

    def _checkpoint_now(self) -> None:
        self._checkpoint(self, self.offsets.log_start_offset)

    def _unlink_later(self, dropped: Sequence[LogSegment]) -> None:
        self._unlink(dropped, self.local_log.config.file_delete_delay_ms)

    def _unlink(self, dropped: Sequence[LogSegment], delay_ms: int) -> None:
        unlink_later(self._removals, self.availability, dropped, delay_ms)
