"""Reads one input object of a job with at most two GETs, whatever the number of its partitions.

    object = header | slice data ... | directory | key streams ... | indexes ... | footer
                      `-- GET 2 ---'   `------------- GET 1 -------------'

GET 1 goes from the directory to the end of the last index that the job needs (the producers at the end of a
slice are in its index). It is sent when the job begins, and drained at once to scratch (memory if it is
small, else a file), so that its connection does not idle. The key streams tell which slices have
survivors, so GET 2 goes over the data from the first slice that the job needs to the end of the last; if it
needs none, it is not sent. It is opened for the first slice, or a little before, and only moves forward: what
lies between is read past. If all of it is small, it is drained to scratch too. A stream that breaks is
resumed (`resuming_reads`), which is counted apart.

The slice entries come from the state of the shard. The directory in GET 1 must have the checksum of the
commit, so it contains the same entries and is not decoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from stratalog.base.call_beside import CallBeside
from stratalog.base.errors import StoreCorruptError
from stratalog.base.filesystem import Buffer
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.compaction.plan.input_need import NOTHING, GrowingRange, InputNeed
from stratalog.compaction.slice_at_work import SliceAtWork
from stratalog.compaction.slice_reader import PieceReader, SliceReader
from stratalog.objectstore.resuming_reads import ResumingReads
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.ahead_stream import AheadStream
from stratalog.remote.objects.key_stream import SMALL_STREAM_BYTES, KeyBlock, read_key_stream
from stratalog.remote.objects.object_format import crc_of
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import KeyStreamRef, PartRef, SliceEntry
from stratalog.remote.objects.slice_index import SliceIndex, decode_slice_index, is_plain_index
from stratalog.remote.objects.spool import Spool, SpoolReader

_BLOCK_BYTES = 1 << 20
"""Asked of the data at a time, where a slice is smaller: each read of a connection has a price of its own. It
is less where an input has less memory, for the block in use and the one on its way, down to
`_LEAST_BLOCK_BYTES`."""
_LEAST_BLOCK_BYTES = 64 << 10
_INDEXES_BYTES = 16 << 10
"""Read of the indexes at a time: a read of scratch costs as much as the other steps for a small index."""
_NOTHING = memoryview(b"")


class InputBuffers(NamedTuple):
    """The memory of an input."""

    chunk_bytes: int
    """The largest read of its data."""
    small_bytes: int
    """A range up to this is read as one block; of a larger one, the block in use and the next are no larger
    together, but for those of a large slice."""


class InputStreams:
    """The streams of one input object of a compaction job. Not thread-safe: guarded by the job. `close` gives
    connections and scratch back."""

    def __init__(
        self,
        reads: ResumingReads,
        ref: ObjectRef,
        need: InputNeed,
        make_scratch: Callable[[], Spool],
        buffers: InputBuffers,
        at_work: SliceAtWork,
        run_beside: RunBeside = run_here,
    ) -> None:
        """GET 1 is sent beside, now."""
        self.reads = reads
        """The object; it counts the requests."""
        self._ref = ref
        self._at_work = at_work
        self._run_beside = run_beside
        self._chunk_bytes = buffers.chunk_bytes
        self._small_bytes = buffers.small_bytes
        self._block_bytes = min(_BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, buffers.small_bytes // 2))
        self._keys_arriving = make_scratch()
        self._key_part: Spool | None = None
        """The same, once all of it is there."""
        self._keys_in_memory: tuple[int, Buffer] | None = None
        """The position and the bytes of all behind the directory, if they are one piece of memory."""
        self._indexes: tuple[int, Buffer] = 0, b""
        """The position and the bytes of the indexes that were read last."""
        self._need = need
        self._will_read = GrowingRange(need.carried)
        self._data: AheadStream | None = None
        self._data_position = 0
        self._asked_end_position = 0
        """The end of the block that is on its way, at the least."""
        self._slice_end_position = 0
        self._block = _NOTHING
        """The part of the block in use that was not asked for."""
        self._held: tuple[int, int, Buffer] | None = None
        """A range of data that was read ahead of its slices, and its bytes."""
        self._drained = CallBeside(run_beside, self._drain_keys)

    def small_key_stream(self, stream: KeyStreamRef) -> Buffer | None:
        """The bytes of a slice's key stream, not proved; None if it is too large for one piece. Raises
        StoreCorruptError, and what the store raises.
        """
        if stream.size_bytes > SMALL_STREAM_BYTES:
            return None
        keys = self._key_part or self._open_keys()
        place = self._place_among_keys(stream.position, stream.size_bytes, keys)
        return keys.read_at(place, stream.size_bytes)

    def keys_between(self, begin: int, end: int) -> tuple[int, Buffer]:
        """The bytes of key streams or indexes in [begin, end) of the object, not proved, and the position of
        the first of them. They are fewer, or none, where the range leaves the part of key streams and
        indexes, and may be more. Raises StoreCorruptError, and what the store raises."""
        keys = self._key_part or self._open_keys()
        if self._keys_in_memory is not None:
            return self._keys_in_memory
        first, size_bytes = self._ref.directory_position, keys.size_bytes
        begin = min(max(begin, first + self._ref.directory_bytes), first + size_bytes)
        end = min(max(begin, end), first + size_bytes)
        return begin, keys.read_at(begin - first, end - begin)

    def proved_key_stream(self, stream: KeyStreamRef) -> Buffer | None:
        """Read a key stream again that phase 1 has proved: the disk of the scratch may give back other
        bytes. Returns and raises as `small_key_stream`."""
        data = self.small_key_stream(stream)
        if data is not None and crc_of(data) != stream.crc:
            raise self._corrupt("has a key stream that differs between two reads of scratch")
        return data

    def key_blocks(self, entry: SliceEntry) -> Iterator[KeyBlock]:
        """The blocks of the slice's key stream, which it must have; proved only when the iteration has ended.
        Raises StoreCorruptError, and what the store raises.
        """
        stream = entry.key_stream
        assert stream is not None
        keys = self._key_part or self._open_keys()
        reader = SpoolReader(
            keys, self._place_among_keys(stream.position, stream.size_bytes, keys), stream.size_bytes
        )

        def read(size: int) -> Buffer:
            # Streams are read by turns.
            self._at_work.begin(self._ref.name, entry)
            return reader.read(size)

        return read_key_stream(read, stream, entry.record_count)

    def _place_among_keys(self, position: int, size_bytes: int, keys: Spool) -> int:
        place = position - self._ref.directory_position
        if place < self._ref.directory_bytes or place + size_bytes > keys.size_bytes:
            raise self._corrupt("refers to a key stream outside its own part")
        return place

    def slice_index(self, entry: SliceEntry) -> SliceIndex:
        """The index of the slice, which has its producers. Raises StoreCorruptError, StoreNotUsableError for
        a newer format, and what the store raises.
        """
        return decode_slice_index(self._index_bytes(entry), entry.data_bytes)

    def has_plain_index(self, entry: SliceEntry) -> bool:
        """Whether the index of the slice is proved to have neither producers nor transactions, by its bytes
        alone. Raises StoreCorruptError, and what the store raises.
        """
        return is_plain_index(self._index_bytes(entry))

    def is_sound_plain_index(self, part: PartRef) -> bool:
        """Whether an index is sound and has neither producers nor transactions. Raises StoreCorruptError, and
        what the store raises."""
        begin, data = self._indexes
        place = part.position - begin
        if place < 0 or place + part.size_bytes > len(data):
            # The indexes of the next partitions lie behind this one.
            size_bytes = max(part.size_bytes, _INDEXES_BYTES)
            begin, data = self._indexes = self.keys_between(part.position, part.position + size_bytes)
            place = part.position - begin
        index = memoryview(data)[max(place, 0) : place + part.size_bytes]
        return crc_of(index) == part.crc and is_plain_index(index)

    def _index_bytes(self, entry: SliceEntry) -> Buffer:
        part = entry.index
        keys = self._key_part or self._open_keys()
        self._at_work.begin(self._ref.name, entry)
        position = part.position - self._ref.directory_position
        if position < self._ref.directory_bytes or position + part.size_bytes > keys.size_bytes:
            raise self._corrupt("refers to an index outside its own part")
        data = keys.read_at(position, part.size_bytes)
        if crc_of(data) != part.crc:
            raise self._corrupt("has an index that fails its checksum")
        return data

    def will_read(self, data_position: int, data_bytes: int) -> None:
        """These data of a slice, of a run that is not carried, will be read. Call it before any slice is
        read: GET 2 asks for no more than these and those of carried runs, and is not sent if there are none.
        """
        assert self._data is None
        self._will_read.add(data_position, data_bytes)

    @property
    def data_begin(self) -> int | None:
        """The position of the first data that will be read; None if there are none."""
        data = self._will_read.bytes
        return None if data == NOTHING else data.begin

    def begin(self) -> None:
        """Let the data come: there are some, and they will be used soon. Raises StoreCorruptError, and what
        the store raises for GET 1."""
        if self._data is None:
            self._open_data()

    def slice_reader(self, entry: SliceEntry) -> SliceReader:
        """A reader of the data of a slice that `will_read` has named, or that is carried. Call it once for
        each slice, in order, and read to the end. Raises StoreCorruptError, and what the store raises.
        """
        if self._held is not None:
            begin, end, data = self._held
            assert begin <= entry.data_position <= entry.data_end_position <= end, "its data are held"
            self._at_work.begin(self._ref.name, entry)
            piece = memoryview(data)[entry.data_position - begin : entry.data_end_position - begin]
            return SliceReader(entry, PieceReader(piece).read_some, self._chunk_bytes)
        self._move_to(entry)
        return SliceReader(entry, self._read_data, self._chunk_bytes)

    def hold(self, begin: int, end: int) -> Buffer:
        """Read data [begin, end) of the object, in one piece and not proved; cut off if the object is. Until
        `let_go`, `slice_reader` takes its data from there. Raises StoreCorruptError, and what the store
        raises."""
        self._open_for(end)
        self._at_work.begin(self._ref.name, None)
        while self._data_position < begin and len(self._read_data(begin - self._data_position)):
            pass
        pieces: list[Buffer] = []
        left_bytes = end - max(begin, self._data_position)
        while left_bytes > 0 and len(piece := self._read_data(left_bytes)):
            pieces.append(piece)
            left_bytes -= len(piece)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._held = begin, end, data
        return data

    def let_go(self) -> None:
        """Hold data no longer."""
        self._held = None

    def _move_to(self, entry: SliceEntry) -> None:
        if entry.data_bytes > 0:
            self._open_for(entry.data_end_position)
            self._skip_to(entry.data_position)
        elif self._key_part is None:
            self._open_keys()
        self._at_work.begin(self._ref.name, entry)

    def _open_for(self, end_position: int) -> None:
        """Open the data, of which those up to there are read next."""
        if self._data is None:
            self._open_data()
        self._slice_end_position = end_position

    def close(self) -> None:
        """Returns once nothing of the object is on its way. May be called again."""
        self.reads.give_up()
        self._held, self._block = None, _NOTHING
        self._drained.end()
        if self._data is not None:
            self._data.close()
        self._keys_arriving.close()
        self._key_part = self._keys_in_memory = None
        self._indexes = 0, b""

    def _open_keys(self) -> Spool:
        if self._key_part is not None:
            return self._key_part
        ref = self._ref
        self._at_work.begin(ref.name, None)
        self._drained.result()
        self._key_part = keys = self._keys_arriving
        whole = keys.in_one_piece()
        if whole is not None:
            directory_bytes = ref.directory_bytes
            self._keys_in_memory = ref.directory_position + directory_bytes, whole[directory_bytes:]
        directory = keys.read_at(0, ref.directory_bytes)
        if crc_of(directory) != ref.directory_crc:
            raise self._corrupt("has a directory that is not the one that was committed")
        data = self._need.data
        if data.end and not ref.data_position <= data.begin < data.end <= ref.directory_position:
            raise self._corrupt("is said to have data outside its own part")
        return keys

    def _drain_keys(self) -> None:
        ref, keys = self._ref, self._keys_arriving
        size_bytes = max(ref.key_streams_end, self._need.index_end) - ref.directory_position
        # What stays in memory is one piece if it can be.
        piece_bytes = self._chunk_bytes if size_bytes <= self._small_bytes else self._block_bytes
        stream = self.reads.open_range(ref.directory_position, size_bytes)
        try:
            while keys.size_bytes < size_bytes and not self.reads.is_given_up:
                data = stream.read(min(piece_bytes, size_bytes - keys.size_bytes))
                if not data:
                    raise self._corrupt("is shorter than the metadata log says")
                keys.append(data)
        finally:
            stream.close()

    def _open_data(self) -> None:
        if self._key_part is None:
            self._open_keys()
        begin, end = self._will_read.bytes
        size_bytes = end - begin
        first_bytes = size_bytes if size_bytes <= self._small_bytes else self._block_bytes
        self._data_position, self._asked_end_position = begin, begin + first_bytes
        self._data = AheadStream(
            self._run_beside, lambda: self.reads.open_range(begin, size_bytes), size_bytes, first_bytes
        )

    def _read_data(self, size: int) -> Buffer:
        """At least one byte and at most `size`, as a part of the bytes that came; none only at the end of the
        object."""
        block = self._block
        if not block:
            assert self._data is not None
            next_bytes = self._next_bytes()
            block = memoryview(self._data.read(next_bytes))
            self._asked_end_position += next_bytes
        # An empty part would keep the whole block in memory.
        data, self._block = block[:size], block[size:] or _NOTHING
        self._data_position += len(data)
        return data

    def _next_bytes(self) -> int:
        """The size of the block behind the one that is on its way: what the slice has left behind that, where
        it is much. So an input that waits for its turn has no more than a block."""
        return max(
            self._block_bytes, min(self._slice_end_position - self._asked_end_position, self._chunk_bytes)
        )

    def _skip_to(self, position: int) -> None:
        # The stream only moves forward: partitions come in the order of their slices.
        assert self._data_position <= position
        while self._data_position < position:
            if not self._read_data(position - self._data_position):
                raise self._corrupt("is shorter than the metadata log says")

    def _corrupt(self, problem: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"an object {problem}; keep it and find out what changed it", key=self.reads.key
        )


def index_of(inputs: Mapping[str, InputStreams], live: LiveSlice) -> SliceIndex:
    """The index of a slice of the job's inputs, which are given by name. Raises as
    `InputStreams.slice_index`."""
    return inputs[live.object_name].slice_index(live.entry)
