"""The upload of one partition in one pass: its rolled segments from the tiered end on, read in large pieces.
For a waiting tail it goes on with the active segment, up to the last fsync.

An upload copies batch after batch into one object after another until it is finished. Where an object is
full, its slice ends at a batch boundary and the upload goes on in the next object. So it does where the slice
would span more than the topic's bound (`slice_span`). Nothing is remembered between passes; the next pass
starts from the tiered end again.

No checksum of a batch covers its base offset and its leader epoch. So before the first batch of a segment is
read, the headers of the whole segment are compared with its seal, also where the upload begins inside of the
segment. A segment that differs ends the upload, with no batch of it uploaded.

The newest batches of a tail are still in memory, as they were proved and appended, and fsynced since. They
are taken from there, without a read of the file.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from stratalog.base.disk_calls import DIRECT_DISK_CALLS, DiskCalls
from stratalog.base.errors import (
    CorruptRecordError,
    LogStoreError,
    OffsetOutOfRangeError,
    StoppingError,
    UnsupportedOperationError,
)
from stratalog.base.filesystem import Buffer
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.log.read.segment_info import SegmentSource
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import complete_prefix_size
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_writer import ObjectWriter
from stratalog.remote.objects.slice_clock import SliceClock
from stratalog.remote.objects.slice_span import SliceSpan
from stratalog.remote.tier.slice_producers import SliceProducers, note_batches, note_split
from stratalog.remote.tier.upload_plan import SHARES_PER_OBJECT, Share
from stratalog.segment.split_batch import SplitBatch

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class UploadCandidate(NamedTuple):
    """A log that may have something to upload."""

    log: UnifiedLog
    key_hashing: KeyHashing | None
    """Has the topic's hash key; None unless `compact` is in its cleanup policy."""
    is_tail: bool = False
    """Callers wait for the commit of all that is fsynced, rolled or not."""
    on_tiered: Callable[[str | None], None] = lambda _: None
    """Called after each commit with a slice of the partition, which the log knows by then: with the reason if
    the metadata refused the slice, else None."""

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.log.topic_id, self.log.topic_partition.partition)


OVERTAKEN = (
    "local retention has deleted records before their upload; the next pass puts the loss on record and goes"
    " on behind them, so nothing has to be done"
)


class PartitionUpload:
    """The upload of one partition's records in one pass. Not thread-safe: guarded by the lock of its
    `Uploader`."""

    def __init__(
        self,
        candidate: UploadCandidate,
        tiered_end_offset: int,
        stop: StopSignal,
        producers: SliceProducers | None = None,
        disk: DiskCalls = DIRECT_DISK_CALLS,
    ) -> None:
        """Begin at the tiered end, with the producers there if they are at hand. The log keeps the segments
        until `UnifiedLog.end_upload`, which is the caller's to call, also after an error. `disk` reads the
        log. Raises OffsetOutOfRangeError if the local log begins behind the tiered end, which leaves a gap.
        """
        self.candidate = candidate
        self._stop = stop
        self._disk = disk
        self._read_count = 0
        self.error: LogStoreError | None = None
        """Why the upload stopped before its end."""
        self.next_offset = tiered_end_offset
        self._sources: deque[SegmentSource] = deque()
        self.waiting_bytes = 0
        """Data that is in no object yet."""
        self.since_ms = 0
        """Wall time since which the oldest of it waits."""
        self.share_count = 0
        """Shares of objects that the upload has had; see `upload_plan`."""
        self.needs_object = False
        """The next batch did not fit into an object beside the slices of others."""
        self.producers = producers
        """At the end of the last slice; None if they are not known."""
        self._position = 0
        """Position in the file of the first source."""
        self._is_proven = False
        """The segment of the first source agrees with its seal."""
        span = SliceSpan.of(candidate.log.local_log.config)
        self._max_slice_bytes = span.max_bytes
        self._clock = SliceClock(span.max_ms)
        self.extend()

    def extend(self) -> None:
        """Go on with what the log has by now behind the end of the upload. Raises as the constructor does."""
        log = self.candidate.log
        find = log.reader.tail_candidates if self.candidate.is_tail else log.reader.upload_candidates
        end_offset = self._sources[-1].end_offset if self._sources else self.next_offset
        # A log start in the hole at the end of a segment leaves a source without bytes. The next slice
        # begins there and covers the hole.
        sources = [source for source in find(end_offset) if source.size_bytes > 0]
        if not sources:
            return
        # Before the log start is looked at: from here on no drop for space takes any of them.
        log.begin_upload(sources[-1].end_offset)
        if log.offsets.local_log_start_offset > self.next_offset:
            raise OffsetOutOfRangeError(
                "the local log begins behind the tiered end by now, and the next pass puts the gap on record",
                offset=self.next_offset,
                log_start_offset=log.offsets.local_log_start_offset,
                log_end_offset=log.offsets.log_end_offset,
            )
        # The bucket must never hold records that this disk could still lose.
        assert all(source.end_offset <= log.offsets.recovery_point for source in sources)
        if not self._sources:
            self.since_ms, self._position = sources[0].since_ms, sources[0].first_position
        self._sources.extend(sources)
        self.waiting_bytes += sum(source.size_bytes for source in sources)

    def again(self, offset: int) -> PartitionUpload:
        """An upload of the same log that begins at `offset`. Raises as the constructor does."""
        return PartitionUpload(self.candidate, offset, self._stop, disk=self._disk)

    @property
    def is_finished(self) -> bool:
        return not self._sources or self.error is not None

    def stop(self) -> None:
        self._sources.clear()

    def copy_into(
        self, writer: ObjectWriter, share_bytes: int, max_object_bytes: int, read_bytes: int
    ) -> None:
        """Make a slice of as many batches as fit into `share_bytes`, and into an object of
        `max_object_bytes`. A slice takes one larger batch if the object has room for it, and an empty object
        takes at least one batch of any size.

        A batch that cannot be read or tiered ends the upload, and so does a segment that contradicts its
        seal: `error` says why, and the batches before it are in the slice. Raises StoppingError, and
        DataDirectoryError in the middle of the slice if the disk does not answer by then.
        """
        log = self.candidate.log
        try:
            state = self.producers or self._on_disk(
                lambda: SliceProducers(
                    log.state_transfer, self.next_offset, is_of_tails=self.candidate.is_tail
                )
            )
        except LogStoreError as error:
            self.error = error
            return
        self.producers = state
        writer.begin_slice(
            log.topic_id,
            log.topic_partition.topic,
            log.topic_partition.partition,
            base_offset=self.next_offset,
            key_hashing=self.candidate.key_hashing,
        )
        start_bytes = writer.data_bytes
        self._clock.begin_slice()
        while self._sources and self.error is None:
            self._stop.check()
            taken_bytes = writer.data_bytes - start_bytes
            share_room_bytes = min(share_bytes, self._max_slice_bytes) - taken_bytes
            room_bytes = min(share_room_bytes, max_object_bytes - writer.data_bytes)
            batch_room_bytes = room_bytes
            if writer.data_bytes == 0:
                batch_room_bytes = sys.maxsize
            elif taken_bytes == 0:
                batch_room_bytes = max_object_bytes - writer.data_bytes
            data = self._read(room_bytes, batch_room_bytes, read_bytes)
            if not data or not self._append(writer, data, start_bytes, state):
                break
        if writer.data_bytes > start_bytes:
            writer.end_slice(in_log(self._disk, log, lambda: state.end_slice(self.next_offset)))
        else:
            writer.cancel_slice()

    def note_share(self, share: Share, copied_bytes: int, object_bytes: int) -> None:
        """Note how much of a share was copied. A partition of which nothing was keeps its turn: the object
        had room for a part of its share only, or its next batch needs an object of its own."""
        if copied_bytes:
            self.share_count += share.share_count
        whole_bytes = min(self.waiting_bytes, object_bytes // SHARES_PER_OBJECT)
        self.needs_object = not copied_bytes and share.size_bytes >= whole_bytes

    def _append(
        self, writer: ObjectWriter, data: Buffer | SplitBatch, slice_start_bytes: int, state: SliceProducers
    ) -> bool:
        """Append batches to the slice. Returns False if the slice must end here."""
        before_bytes = writer.data_bytes
        noted = note_split(data) if isinstance(data, SplitBatch) else note_batches(data)
        end_position = self._clock.take(noted.rows, noted.end_position)
        is_cut = end_position < noted.end_position
        self.error = None if is_cut else noted.error
        try:
            if not isinstance(data, SplitBatch):
                writer.append(memoryview(data)[:end_position])
            elif not is_cut:
                writer.append_split(data)
        except UnsupportedOperationError as error:
            # A slice with the most records it can hold goes on in the next object. An empty slice is not
            # full.
            self.error = error if writer.data_bytes == slice_start_bytes else None
            return False
        except CorruptRecordError as error:
            self.error = error
            return False
        finally:
            taken_bytes = writer.data_bytes - before_bytes
            state.follow(noted, taken_bytes)
            self._position += taken_bytes
            self.waiting_bytes -= taken_bytes
            self.next_offset = writer.next_offset
            self._leave_finished_source()
        return not is_cut

    def _leave_finished_source(self) -> None:
        source = self._sources[0]
        if self._position == _end_position(source):
            self._sources.popleft()
            self._is_proven = False
            self.next_offset = source.end_offset
            if self._sources:
                self.since_ms = self._sources[0].since_ms
                self._position = self._sources[0].first_position

    def _read(self, room_bytes: int, batch_room_bytes: int, read_bytes: int) -> Buffer | SplitBatch:
        """Whole batches that fit into `room_bytes`, or else one that fits into `batch_room_bytes`; empty if
        there is none. Raises StoppingError.
        """
        source = self._sources[0]
        left_bytes = _end_position(source) - self._position
        least_bytes = HEADER_SIZE if batch_room_bytes >= HEADER_SIZE else 0
        size_bytes = min(left_bytes, read_bytes, max(room_bytes, least_bytes))
        if size_bytes <= 0:
            return b""
        log = self.candidate.log
        recent = log.reader.recent_batches(source, self.next_offset, self._position, size_bytes)
        if recent is not None:
            return recent
        try:
            if not self._is_proven:
                self._on_disk(lambda: log.reader.prove_headers(source, self._note_read))
                self._is_proven = True
            data = self._read_exactly(size_bytes)
            whole_bytes = complete_prefix_size(data)
            if whole_bytes == 0 and batch_room_bytes >= HEADER_SIZE:
                batch_bytes = parse_header(data).size_in_bytes
                return self._read_exactly(batch_bytes) if batch_bytes <= batch_room_bytes else b""
        except StoppingError:
            raise
        except LogStoreError as error:
            self.error = error
            return b""
        return memoryview(data)[:whole_bytes]

    def _on_disk(self, work: Callable[[], Result]) -> Result:
        """Read the log, whose disk may hang. Raises DataDirectoryError."""
        log_dir = self.candidate.log.local_log.log_dir
        return self._disk.run(log_dir, work, lambda: self._read_count)

    def _note_read(self) -> None:
        """Note that a step of a long read begins. Raises StoppingError."""
        self._stop.check()
        self._read_count += 1

    def _read_exactly(self, size_bytes: int) -> bytes:
        reader, source, position = self.candidate.log.reader, self._sources[0], self._position
        data = self._on_disk(lambda: reader.read_segment(source, position, size_bytes))
        if len(data) != size_bytes:
            raise CorruptRecordError(
                "a segment is shorter than the log says; restore it from a copy", position=self._position
            )
        return data


def in_log(disk: DiskCalls, log: UnifiedLog, work: Callable[[], Result]) -> Result:
    """Do work in memory that takes the lock of the log, which an append keeps while its disk hangs. Raises
    DataDirectoryError."""
    if log.lock.acquire(blocking=False):
        try:
            return work()
        finally:
            log.lock.release()
    return disk.run(log.local_log.log_dir, work)


def upload_error(candidate: UploadCandidate, failure: Exception) -> LogStoreError:
    """The error of a partition's upload that has failed. A failure that no code foresees is a defect, and its
    traceback is logged. Retention that overtakes an upload on the disk, as behind an outage, is no fault of
    the log."""
    if isinstance(failure, OffsetOutOfRangeError):
        offset, log_start_offset = failure.fields.get("offset"), candidate.log.offsets.log_start_offset
        if isinstance(offset, int) and offset < log_start_offset:
            fields = failure.fields | candidate.log.topic_partition.error_fields
            return OffsetOutOfRangeError(OVERTAKEN, **fields)
    if isinstance(failure, LogStoreError):
        return failure
    topic_partition = candidate.log.topic_partition
    logger.error("the upload of %s failed unexpectedly", topic_partition, exc_info=failure)
    return LogStoreError(
        "the upload of the partition failed unexpectedly, and is tried again; report the traceback in the"
        " server's log",
        **topic_partition.error_fields,
        reason=repr(failure),
    )


def _end_position(source: SegmentSource) -> int:
    return source.first_position + source.size_bytes
