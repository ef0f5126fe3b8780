"""The position of a fetch in one partition, and the data that was read and not yet sent.

A cursor moves forward only. Reads go to the local log, or to the object store below the local log start; the
two meet without a gap because local segments are deleted only after their data is committed in the object
store. If the deletion happens between the look at the local log start and the read, the read fails and the
cursor looks again.

What was appended a moment ago is in memory, and the system has files in memory that were read or written not
long ago. The event loop reads both without a thread (`LocalSource`).

A reader of committed records ends at the last stable offset, and gets aborted transactions from both tiers.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from stratalog.base.errors import LogStoreError, OffsetOutOfRangeError, StoreError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.log_identity import UNKNOWN_EPOCH, LogIdentity


class Watermarks(NamedTuple):
    """The offsets in every answer."""

    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    last_stable_offset: int

    def end_offset(self, isolation: Isolation) -> int:
        return self.last_stable_offset if isolation is Isolation.TXN_COMMITTED else self.high_watermark


class NextRead(enum.Enum):
    """The source of a cursor's next read."""

    NONE = "none"
    """Nothing to read: no data, no room, or an error."""
    LOCAL = "local"
    """The local log."""
    TIERED = "tiered"
    """The object store."""


class LocalSource(enum.Enum):
    """The places where a read of the local log looks."""

    RECENT = "recent"
    """The newest batches, in this process."""
    CACHED = "cached"
    """Files, as far as the system has them in memory."""
    FILES = "files"
    """All of it. The only one that may block."""


class ReadablePartition(Protocol):
    """The part of a partition that a cursor uses."""

    @property
    def log_end_offset(self) -> int: ...

    @property
    def signal(self) -> PartitionSignal: ...

    @property
    def identity(self) -> LogIdentity: ...

    @property
    def log_dir(self) -> str:
        """The path of the log directory that has its log; a move changes it."""
        ...

    def epoch_at(self, offset: int) -> int:
        """The leader epoch at `offset`; -1 if it is not known. May read the object store. Raises
        StoreError."""
        ...

    def local_epoch_at(self, offset: int) -> int:
        """The leader epoch at `offset`; -1 if the local log does not know it."""
        ...

    def ensure_served(self) -> None:
        """Raise LogStoreError once this server no longer serves the partition."""
        ...

    def watermarks(self) -> Watermarks: ...

    def read_local(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData: ...

    def read_recent(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        """Like `read_local`, from memory alone; None if that takes a file. Does not block."""
        ...

    def read_cached(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        """Like `read_local`, from files that the system has in memory; None if that would wait for the disk.
        Does not block, but takes time for each byte."""
        ...

    def read_tiered(self, offset: int, max_bytes: int, isolation: Isolation) -> FetchData: ...

    def leave_tiered(self, offset: int) -> None:
        """Load nothing more ahead of a reader of the object store that ended at `offset`. Does not block."""
        ...


class Collected(NamedTuple):
    """The data of a cursor for an answer."""

    chunks: list[Buffer]
    size_bytes: int
    """The size of all chunks."""
    aborted_transactions: tuple[AbortedTransaction, ...]


class Found(NamedTuple):
    """The result of one read of a cursor."""

    data: FetchData | None = None
    """Data that go on; None if there are none."""
    tiered_epoch: int = UNKNOWN_EPOCH
    lacks_room: bool = False
    """There may be more data than fitted."""
    lacks_memory: bool = False
    """Nothing was read, because the memory of all fetches had no room."""
    is_in_file: bool = False
    """Nothing was read, because the data are not where the read may look."""
    error: LogStoreError | None = None

    @property
    def size_bytes(self) -> int:
        return 0 if self.data is None else self.data.size_bytes


class FetchCursor:
    """One partition of a fetch. Not thread-safe: one read at a time; between reads, and beside `look`, it
    belongs to the event loop.
    """

    __slots__ = (
        "aborted_transactions",
        "chunks",
        "end_offset",
        "error",
        "is_announced",
        "is_full",
        "isolation",
        "max_bytes",
        "partition",
        "position",
        "size_bytes",
        "start",
        "tiered_epoch",
        "tiered_size_bytes",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        partition: ReadablePartition | LogStoreError,
        fetch_offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
    ) -> None:
        self.topic_partition = topic_partition
        self.partition = None if isinstance(partition, LogStoreError) else partition
        self.error: LogStoreError | None = partition if isinstance(partition, LogStoreError) else None
        self.start = fetch_offset
        """The first offset of the answer that is being collected."""
        self.position = fetch_offset
        self.max_bytes = max_bytes
        self.isolation = isolation
        self.end_offset: int | None = None
        """Where the cursor ends; None for never. The last read may lead behind it."""
        self.is_announced = True
        """The client knows where the cursor is. Otherwise that is news, without data, too."""
        self.chunks: list[Buffer] = []
        self.size_bytes = 0
        self.tiered_size_bytes = 0
        """The part of the size that `TieredReads` has brought."""
        self.aborted_transactions: dict[AbortedTransaction, None] = {}
        """Aborted transactions of the data that was read, each once, in the order of reading."""
        self.is_full = False
        """More data was there than fitted. The session clears this when there is room."""
        self.tiered_epoch = UNKNOWN_EPOCH
        """The leader epoch before the position, as the last read of the object store has found it."""

    @property
    def last_epoch(self) -> int:
        """The leader epoch before the position; -1 if it is not known without a read."""
        if self.partition is None:
            return UNKNOWN_EPOCH
        local_epoch = self.partition.local_epoch_at(self.position - 1)
        return self.tiered_epoch if local_epoch == UNKNOWN_EPOCH else local_epoch

    @property
    def has_news(self) -> bool:
        """Whether there is something to send: data, a step over a hole, a start that the client does not
        know, or an error."""
        return self.has_progress or not self.is_announced

    @property
    def has_progress(self) -> bool:
        """Whether reading has led to something to send."""
        return self.position != self.start or self.error is not None

    @property
    def is_at_log_end(self) -> bool:
        """The cursor has read all records that the partition has."""
        return self.partition is not None and self.position == self.partition.log_end_offset

    @property
    def is_done(self) -> bool:
        """The cursor has reached its end."""
        return self.end_offset is not None and self.position >= self.end_offset

    def begin(self, offset: int, end_offset: int | None = None) -> None:
        """Begin at an offset that the client does not know, before anything is read."""
        self.start = self.position = offset
        self.end_offset = end_offset
        self.is_announced = False

    def locate(self) -> NextRead:
        """The source of the next read.

        An offset outside the partition becomes this cursor's error.
        """
        if self.partition is None or self.error is not None or self.is_full:
            return NextRead.NONE
        try:
            self.partition.ensure_served()
        except LogStoreError as error:
            self.error = error
            return NextRead.NONE
        marks = self.partition.watermarks()
        if not marks.log_start_offset <= self.position <= self.partition.log_end_offset:
            self.error = out_of_range(self.position, marks.log_start_offset, self.partition.log_end_offset)
            return NextRead.NONE
        if self.is_done or self.position >= marks.end_offset(self.isolation):
            return NextRead.NONE
        return NextRead.LOCAL if self.position >= marks.local_log_start_offset else NextRead.TIERED

    def read(self, budget_bytes: int, *, is_first: bool) -> int:
        """Read once, on a thread that may block; returns the bytes read. `is_first` reads one batch even if
        it is larger than `max_bytes`.

        A failure becomes this cursor's error, unless there is data to send first; the next read fails again.
        """
        return self.accept(self.look(budget_bytes, is_first=is_first))

    def look(self, budget_bytes: int, *, is_first: bool, source: LocalSource = LocalSource.FILES) -> Found:
        """Like `read`, but adds nothing: the event loop may use the cursor meanwhile, except to read. Another
        source than the files does not block, for a cursor whose next read was located to be local by now."""
        try:
            if source is LocalSource.FILES:
                return self._look(budget_bytes, is_first)
            return self._look_at_once(budget_bytes, is_first, source)
        except LogStoreError as error:
            return Found(error=error)

    def accept(self, found: Found) -> int:
        """Add the result of the last `look`; returns its bytes."""
        if found.error is not None:
            self.refuse(found.error)
            return 0
        if found.data is None:
            self.is_full = self.is_full or found.lacks_room
            return 0
        data = found.data
        assert data.next_offset > self.position, "a read goes on"
        size_bytes = data.size_bytes
        if size_bytes:
            self.chunks += data.chunks
            self.size_bytes += size_bytes
            self.aborted_transactions |= dict.fromkeys(data.aborted_transactions)
        self.position = data.next_offset
        self.is_full = self.is_full or data.lacks_room
        self.tiered_epoch = found.tiered_epoch
        return size_bytes

    def branch(self) -> FetchCursor:
        """A cursor without data that goes on from here, for a thread; `absorb` takes what it has read."""
        room_bytes = self.max_bytes - self.size_bytes
        branch = FetchCursor(
            self.topic_partition, self._readable(), self.position, room_bytes, self.isolation
        )
        branch.end_offset = self.end_offset
        return branch

    def absorb(self, branch: FetchCursor) -> None:
        """Go on where the branch has come to. The cursor has not moved since it was made."""
        if branch.position > self.position:
            self.tiered_epoch = branch.tiered_epoch
        data = branch.take()
        self.chunks += data.chunks
        self.size_bytes += data.size_bytes
        self.aborted_transactions |= dict.fromkeys(data.aborted_transactions)
        self.position = branch.position
        self.is_full = self.is_full or branch.is_full
        if branch.error is not None:
            self.refuse(branch.error)

    def _readable(self) -> ReadablePartition:
        assert self.partition is not None, "it has something to read"
        return self.partition

    def refuse(self, error: LogStoreError) -> None:
        """Make `error` this cursor's, or forget it for now if there is data to send first."""
        if self.position != self.start:
            self.is_full = True
        else:
            self.error = error

    def _look_at_once(self, budget_bytes: int, is_first: bool, source: LocalSource) -> Found:
        """Read from a source that does not block."""
        assert self.partition is not None
        max_bytes = min(budget_bytes, self.max_bytes - self.size_bytes)
        if max_bytes <= 0 and not is_first:
            return Found(lacks_room=True)
        read = self.partition.read_recent if source is LocalSource.RECENT else self.partition.read_cached
        data = read(self.position, max_bytes, self.isolation, min_one_message=is_first)
        if data is None:
            return Found(is_in_file=True)
        return Found(data) if data.next_offset > self.position else Found(lacks_room=True)

    def _look(self, budget_bytes: int, is_first: bool) -> Found:
        assert self.partition is not None
        source = self.locate()
        if source is NextRead.NONE:
            return Found()
        max_bytes = min(budget_bytes, self.max_bytes - self.size_bytes)
        if max_bytes <= 0 and not is_first:
            return Found(lacks_room=True)
        if source is NextRead.LOCAL:
            try:
                data = self.partition.read_local(
                    self.position, max_bytes, self.isolation, min_one_message=is_first
                )
            except OffsetOutOfRangeError:
                # The local log start may have moved past the position; otherwise the failure is real.
                if self.locate() is not NextRead.TIERED:
                    raise
                data = self.partition.read_tiered(self.position, max_bytes, self.isolation)
        else:
            data = self.partition.read_tiered(self.position, max_bytes, self.isolation)
        assert data.next_offset >= self.position, "a read never goes back"
        if data.next_offset == self.position:
            return Found(lacks_room=True)
        return Found(data, tiered_epoch=self._read_epoch(self.partition, data.next_offset - 1))

    def _read_epoch(self, partition: ReadablePartition, offset: int) -> int:
        """The leader epoch at `offset`, on a thread that may block: the event loop never reads the object
        store."""
        if partition.local_epoch_at(offset) != UNKNOWN_EPOCH:
            return UNKNOWN_EPOCH
        try:
            return partition.epoch_at(offset)
        except StoreError:
            return UNKNOWN_EPOCH

    def leave(self) -> None:
        """Note that the reader ends here."""
        if self.partition is not None:
            self.partition.leave_tiered(self.position)

    def take(self) -> Collected:
        """Return the data since the last call; the next answer begins at its end."""
        taken = Collected(self.chunks, self.size_bytes, tuple(self.aborted_transactions))
        self.chunks = []
        self.size_bytes = self.tiered_size_bytes = 0
        self.aborted_transactions = {}
        self.start = self.position
        self.is_announced = True
        return taken


def out_of_range(offset: int, log_start_offset: int, log_end_offset: int) -> OffsetOutOfRangeError:
    """The error of an offset outside the partition."""
    return OffsetOutOfRangeError(
        "the offset lies outside the partition, go on from an offset inside its range",
        offset=offset,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
    )
