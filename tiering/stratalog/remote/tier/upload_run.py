"""What one partition has to upload in one pass: its rolled segments from the tiered end on, read in large
pieces.

A run is copied batch for batch into one object after another until it ends: where an object is full, its
slice ends at a batch boundary and the run goes on in the next object. Nothing is remembered between passes;
the next pass starts from the tiered end again.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from stratalog.base.errors import (
    CorruptRecordError,
    LogStoreError,
    OffsetOutOfRangeError,
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
from stratalog.remote.objects.slice_state import SliceState, note_batches


class UploadCandidate(NamedTuple):
    """A log that may have something to upload."""

    log: UnifiedLog
    key_hashing: KeyHashing | None
    """With the topic's hash key where `compact` is in its cleanup policy, else None."""

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.log.topic_id, self.log.topic_partition.partition)


class UploadRun:
    """Not thread-safe: guarded by the lock of its `RemoteLogManager`."""

    def __init__(self, candidate: UploadCandidate, tiered_end_offset: int, stop: StopSignal) -> None:
        """Raises OffsetOutOfRangeError where the local log begins behind the tiered end: offsets are
        missing between.
        """
        log = candidate.log
        self.candidate = candidate
        self._stop = stop
        self.error: LogStoreError | None = None
        """Why the run stopped before its end."""
        self.next_offset = tiered_end_offset
        self._sources: deque[SegmentSource] = deque(log.upload_candidates(tiered_end_offset))
        if self._sources and log.local_log_start_offset > tiered_end_offset:
            raise OffsetOutOfRangeError(
                "the local log begins behind the end of what is tiered; advance the log start over the gap",
                offset=tiered_end_offset,
                log_start_offset=log.local_log_start_offset,
                log_end_offset=log.log_end_offset,
            )
        # The bucket must never hold what this disk could still lose.
        assert all(source.end_offset <= log.recovery_point for source in self._sources)
        self._state = SliceState(log.state_transfer, tiered_end_offset) if self._sources else None
        self._position = self._sources[0].first_position if self._sources else 0
        """In the file of the first source."""

    @property
    def is_finished(self) -> bool:
        return not self._sources or self.error is not None

    def stop(self) -> None:
        """Upload no more in this pass."""
        self._sources.clear()

    def copy_into(self, writer: ObjectWriter, max_data_bytes: int, read_bytes: int) -> None:
        """Make a slice of as much as fits into an object of `max_data_bytes`; of one batch at least if that
        is empty.

        A batch that cannot be read or tiered ends the run: `error` says why, and what precedes it is in the
        slice. Raises StoppingError.
        """
        log, state = self.candidate.log, self._state
        assert state is not None
        writer.begin_slice(
            log.topic_id,
            log.topic_partition.topic,
            log.topic_partition.partition,
            base_offset=self.next_offset,
            key_hashing=self.candidate.key_hashing,
        )
        start_bytes = writer.data_bytes
        while self._sources and self.error is None:
            self._stop.check()
            data = self._read(max_data_bytes - writer.data_bytes, read_bytes, is_first=writer.data_bytes == 0)
            if not data or not self._append(writer, data, start_bytes, state):
                break
        if writer.data_bytes > start_bytes:
            writer.end_slice(state.end_slice(self.next_offset))
        else:
            writer.cancel_slice()

    def _append(self, writer: ObjectWriter, data: Buffer, slice_start_bytes: int, state: SliceState) -> bool:
        """False where the slice has to end here."""
        before_bytes = writer.data_bytes
        noted = note_batches(data)
        self.error = noted.error
        try:
            writer.append(memoryview(data)[: noted.end_position])
        except UnsupportedOperationError as error:
            # A slice that holds as many records as it can goes on in the next object; an empty one is not
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
            self.next_offset = writer.next_offset
            self._leave_finished_source()
        return True

    def _leave_finished_source(self) -> None:
        source = self._sources[0]
        if self._position == _end_position(source):
            self._sources.popleft()
            self.next_offset = source.end_offset
            self._position = self._sources[0].first_position if self._sources else 0

    def _read(self, room_bytes: int, read_bytes: int, *, is_first: bool) -> Buffer:
        """Whole batches that fit into `room_bytes`, or the next one whatever its size; empty where there is
        no room.
        """
        source = self._sources[0]
        left_bytes = _end_position(source) - self._position
        size_bytes = min(left_bytes, read_bytes, max(room_bytes, HEADER_SIZE if is_first else 0))
        try:
            data = self._read_exactly(size_bytes)
            whole_bytes = complete_prefix_size(data)
            if whole_bytes == 0 and (is_first or room_bytes >= HEADER_SIZE):
                batch_bytes = parse_header(data).size_in_bytes
                if not is_first and batch_bytes > room_bytes:
                    return b""
                return self._read_exactly(batch_bytes)
        except LogStoreError as error:
            self.error = error
            return b""
        return memoryview(data)[:whole_bytes]

    def _read_exactly(self, size_bytes: int) -> bytes:
        data = self.candidate.log.read_segment(self._sources[0], self._position, size_bytes)
        if len(data) != size_bytes:
            raise CorruptRecordError(
                "a segment is shorter than the log says; restore the disk", position=self._position
            )
        return data


def _end_position(source: SegmentSource) -> int:
    return source.first_position + source.size_bytes
