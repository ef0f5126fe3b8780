"""One partition of the server: its local log, its data in the object store, its writer and its signal.

The two tiers meet here. From its first commit on, the shard's metadata decide the log start of a tiered
partition, because they survive the local disk, and the local log follows. Only while the store is away does
the local log decide: retention has deleted segments that were never uploaded, and the log starts behind them,
until the store has that loss on record. Every other offset is that of the local log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from stratalog.base.errors import (
    CorruptRecordError,
    DataDirectoryError,
    InvalidRequestError,
    StoreUnavailableError,
)
from stratalog.base.types import Durability, TopicIdPartition, TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.fetch.fetch_cursor import Watermarks
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.fetch.turn_memo import TurnMemo
from stratalog.server.log_identity import ANY_LEADER_EPOCH, UNKNOWN_EPOCH, LogIdentity
from stratalog.server.partitions.epoch_history import EpochHistory
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.unknown_topic import unknown_topic

logger = logging.getLogger(__name__)


class HostedPartition:
    """A partition that this server serves: its local log and its tiered part. Thread-safe, but for
    `read_recent`: its parts are and are never replaced, and the flag only goes from False to True. If two
    threads find damage in the local log at once, one result may be lost; the next reader finds it again.
    """

    def __init__(
        self,
        log: UnifiedLog,
        shard: HostedShard,
        reader: RemoteReader,
        writer: PartitionWriter,
        signal: PartitionSignal,
        ensure_room: Callable[[UnifiedLog], None],
    ) -> None:
        """`ensure_room` raises LowDiskSpaceError if no append to the log may begin."""
        self.log = log
        self.shard = shard
        self.writer = writer
        self.signal = signal
        self._reader = reader
        self.ensure_room = partial(ensure_room, log)
        """Checks that the disk has room for appends. Raises LowDiskSpaceError."""
        self._recent_reads = TurnMemo[FetchData](signal.loop)
        self._is_withdrawn = False
        # Below this offset the local log is damaged, and the object store had it.
        self._intact_from_offset = 0
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id_partition = TopicIdPartition(log.topic_id, log.topic_partition.partition)
        self._identity = LogIdentity(
            topic=log.topic_partition.topic,
            topic_id=str(log.topic_id),
            partition=log.topic_partition.partition,
            leader_epoch=shard.claimed.epoch,
        )

    @property
    def identity(self) -> LogIdentity:
        return self._identity

    @property
    def local_log_start_offset(self) -> int:
        return self.log.offsets.local_log_start_offset

    @property
    def is_tiered(self) -> bool:
        return self.log.local_log.config.remote_storage_enable

    def tier_state(self) -> TieredPartition | None:
        """The partition's state in the object store; None if the topic is not tiered or has no commit yet."""
        if not self.is_tiered:
            return None
        return self.shard.metadata.state().known_partition(self.topic_id_partition)

    @property
    def log_start_offset(self) -> int:
        # The log first: it follows the metadata otherwise.
        local_offset = self.log.offsets.log_start_offset
        state = self.tier_state()
        return local_offset if state is None else state.log_start_beside(local_offset)

    @property
    def tiered_end_offset(self) -> int:
        state = self.tier_state()
        return 0 if state is None else state.tiered_end_offset

    @property
    def compacted_upto(self) -> int:
        """Below this offset a reader finds at most one record a key; 0 if the topic is not tiered.

        The metadata knows the tiered data only, up to `TieredPartition.compacted_upto`. The local log, which
        is not compacted, serves its range, so the local log start is an upper bound.
        """
        state = self.tier_state()
        return 0 if state is None else min(state.compacted_upto, self.log.offsets.local_log_start_offset)

    @property
    def log_end_offset(self) -> int:
        return self.log.offsets.log_end_offset

    def ensure_served(self) -> None:
        """Check that this server still serves the partition. Raises UnknownTopicOrPartitionError once the
        topic is deleted, NotOwnerError once another server has taken over, because that one may serve other
        records.
        """
        if self._is_withdrawn:
            raise unknown_topic(self.topic_partition.topic)
        self.shard.leader_epoch()

    def ensure_meant(self, leader_epoch: int) -> None:
        """Check that this server serves the log at the leader epoch that a client means. Raises as
        `ensure_served` and `LogIdentity.require_epoch` do.
        """
        self.ensure_served()
        if leader_epoch != ANY_LEADER_EPOCH:
            self.identity.require_epoch(leader_epoch)

    def is_continued_here(self, offset: int, last_fetched_epoch: int) -> bool:
        """Whether the local log alone shows that a reader has read this log; see `ensure_continued`."""
        if offset > self.log_end_offset:
            return False
        return last_fetched_epoch in (UNKNOWN_EPOCH, self.local_epoch_at(offset - 1))

    def ensure_continued(self, offset: int, last_fetched_epoch: int) -> None:
        """Check that a reader at `offset`, whose last record had this leader epoch, has read this log. May
        read the object store. Raises UnknownLeaderEpochError, LogTruncatedError, StoreError.
        """
        if last_fetched_epoch <= UNKNOWN_EPOCH:
            return
        if last_fetched_epoch > self.identity.leader_epoch:
            raise self.identity.unknown_epoch(last_fetched_epoch)
        self.epoch_history().require_same(offset, last_fetched_epoch)

    def epoch_history(self) -> EpochHistory:
        """The leader epochs of both tiers as they are now."""
        return EpochHistory(
            self.log.state.epochs, self.tier_state(), self.log_start_offset, self.log_end_offset
        )

    def epoch_at(self, offset: int) -> int:
        """The leader epoch at `offset`, which is not behind the log end; -1 if it is not known. May read the
        object store. Raises StoreError."""
        found = self.log.state.epochs.epoch_for_offset(offset)
        return self.epoch_history().epoch_at(offset) if found is None else found

    def local_epoch_at(self, offset: int) -> int:
        """The leader epoch at `offset`, which is not behind the log end; -1 if the local log does not know
        it."""
        found = self.log.state.epochs.epoch_for_offset(offset)
        return UNKNOWN_EPOCH if found is None else found

    @property
    def log_dir(self) -> str:
        """The path of the log directory that has its log; a move changes it."""
        return self.log.local_log.log_dir

    def offline(self) -> OfflinePartition | None:
        """The partition with its failure if the disk of its log directory has failed; None otherwise."""
        try:
            self.log.availability.require_disk()
        except DataDirectoryError as failure:
            return OfflinePartition(
                self.topic_partition,
                self.topic_id_partition,
                self.shard,
                self.log.local_log.directory,
                failure,
            )
        return None

    def reconfigure(self, config: LogConfig) -> None:
        """Apply a changed configuration. Raises DataDirectoryError and keeps the former one then."""
        self.log.reconfigure(config)
        if not config.is_copied:
            self.writer.commit_waiters.fail(self._not_copied())
        # A weaker `min.durability` lets readers see more.
        self.signal.notify()
        self.ask_for_commit()

    @property
    def has_waiting_tail(self) -> bool:
        """Whether the log has records that consumers see only once they are committed."""
        is_at_object = self.log.local_log.config.min_durability is Durability.OBJECT
        return is_at_object and self.log.offsets.tiered_end_offset < self.log_end_offset

    def ask_for_commit(self) -> None:
        """Let the tail be committed if consumers wait for that."""
        if self.has_waiting_tail:
            self.writer.commit_waiters.ask()

    def note_commit(self) -> None:
        """Answer the appends that are committed by now, and wake readers."""
        self.writer.commit_waiters.acknowledge(self.log.offsets.tiered_end_offset, self.signal.notify)

    def withdraw(self) -> None:
        """Mark the topic as deleted, and wake all waiting calls, which then fail."""
        self._is_withdrawn = True
        self.signal.notify()

    def watermarks(self) -> Watermarks:
        # The local start is read first: it may move up to the tiered end meanwhile, never back, and the data
        # that it leaves behind is committed. A global start read later may be the larger one: take it for
        # both.
        local_log_start_offset = self.log.offsets.local_log_start_offset
        if self._intact_from_offset:
            # What the object store does not have any more, only the local log may have.
            local_log_start_offset = max(
                local_log_start_offset, min(self._intact_from_offset, self.tiered_end_offset)
            )
        log_start_offset = self.log_start_offset
        # Read behind the start, which may not exceed them.
        high_watermark, last_stable_offset = self.log.offsets.visible_ends()
        return Watermarks(
            log_start_offset=log_start_offset,
            local_log_start_offset=max(local_log_start_offset, log_start_offset),
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
        )

    def read_local(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData:
        """Read from the local log. If that is damaged and the object store has the offset, read from there,
        now and for every offset that is tiered by now.
        """
        try:
            return self.log.reader.read(offset, max_bytes, isolation, min_one_message=min_one_message)
        except CorruptRecordError as damage:
            tiered_end_offset = self.tiered_end_offset
            if offset >= tiered_end_offset:
                raise
            logger.error(
                "the local log of %s is damaged, offsets below %d are served from the object store: %s",
                self.topic_partition,
                tiered_end_offset,
                damage,
            )
            self._intact_from_offset = max(self._intact_from_offset, tiered_end_offset)
            return self.read_tiered(offset, max_bytes, isolation)

    def read_recent(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        """Like `read_local`, from memory alone; None if that takes a file. Does not block. On the event loop;
        readers that an append has woken share one read."""

        def read() -> FetchData | None:
            return self.log.reader.read_recent(offset, max_bytes, isolation, min_one_message=min_one_message)

        return self._recent_reads.get((offset, max_bytes, isolation, min_one_message), read)

    def read_cached(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        """Like `read_local`, from files that the system has in memory; None if that would wait for the disk.
        On the event loop; readers at one place share one read in a turn."""

        def read() -> FetchData | None:
            return self.log.reader.read_cached(offset, max_bytes, isolation, min_one_message=min_one_message)

        return self._recent_reads.get((offset, max_bytes, isolation, min_one_message), read)

    def read_tiered(self, offset: int, max_bytes: int, isolation: Isolation) -> FetchData:
        """Read from the object store. Records that the local log has lost before they reached the store are
        passed like a hole, also while no commit says so. Raises StoreUnavailableError while an upload may
        still commit them."""
        # The local log first, then the uploads: what it lets go of is lost, or on its way, or committed when
        # the metadata are read.
        local_start_offset = self.log.offsets.local_log_start_offset
        uploading_end_offset = self.log.offsets.uploading_end_offset
        if self.tiered_end_offset <= offset < local_start_offset:
            if offset >= uploading_end_offset:
                return FetchData((), local_start_offset)
            raise StoreUnavailableError(
                "the outcome of an upload of this offset is not known yet, and the local log does not have it"
                " any more; try again",
                **self.topic_partition.error_fields,
                offset=offset,
                uploading_end_offset=uploading_end_offset,
            )
        if isolation is not Isolation.TXN_COMMITTED:
            return self._reader.read(self.topic_id_partition, offset, max_bytes)
        # Of a transaction that is open at the tiered end and decided since, the marker is in the local log,
        # which is asked first: where it lets go of the marker meanwhile, the object store has it by then.
        tiered_end_offset = self.tiered_end_offset
        decided_end_offset = min(tiered_end_offset, self.log.offsets.last_stable_offset)
        aborted = self.log.reader.aborted_transactions(offset, decided_end_offset)
        if self.log.offsets.local_log_start_offset > tiered_end_offset:
            # The disk has lost records behind the tiered end, maybe with markers: only the store's own count.
            decided_end_offset, aborted = 0, ()
        data = self._reader.read(
            self.topic_id_partition, offset, max_bytes, isolation, decided_end_offset=decided_end_offset
        )
        also_aborted = tuple(one for one in aborted if one.first_offset < data.next_offset)
        return data._replace(aborted_transactions=data.aborted_transactions + also_aborted)

    def leave_tiered(self, offset: int) -> None:
        """Load nothing more ahead of a reader of the object store that ended at `offset`. Does not block."""
        self._reader.leave(self.topic_id_partition, offset)

    def tiered_offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        return self._reader.offset_for_timestamp(self.topic_id_partition, timestamp_ms)

    def tiered_max_timestamp(self, end_offset: int) -> TimestampOffset | None:
        return self._reader.max_timestamp(self.topic_id_partition, end_offset)

    def effective_durability(self, requested: Durability | None) -> Durability:
        """The stronger of the request's level and the topic's. Raises InvalidRequestError if nothing of the
        topic reaches the object store, StoreUnavailableError while its uploads are paused."""
        config = self.log.local_log.config
        level = config.min_durability
        if requested is not None and requested > level:
            level = requested
        if level is not Durability.OBJECT:
            return level
        if not config.is_copied:
            raise self._not_copied()
        if config.remote_copy_pause:
            raise StoreUnavailableError(
                "uploads of the topic are paused, so no append to it is committed in the object store;"
                " `stratalog tier resume` ends the pause, then send it again",
                durability=level.config_value,
                topic=self.topic_partition.topic,
            )
        return level

    def _not_copied(self) -> InvalidRequestError:
        """The answer to an append at `object` to a topic of which nothing is uploaded."""
        return InvalidRequestError(
            "nothing of the topic is uploaded, so no append to it can be committed in the object store;"
            " ask for disk, or set remote.storage.enable to true and remote.log.copy.disable to false",
            durability=Durability.OBJECT.config_value,
            topic=self.topic_partition.topic,
        )
