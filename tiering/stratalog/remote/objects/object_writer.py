"""Writes an object file from slices that arrive one after the other.

    writer = ObjectWriter(filesystem, header, settings)
    for each partition, ascending by (topic id, partition):
        writer.begin_slice(...); writer.append(whole batches) ...; writer.end_slice(SliceEnd(end_offset))
    finished = writer.finish(); finished.store(store, layout); writer.close()

Two spools (data and key streams, in temporary files once they are large) and the entries of the current slice
bound the memory. An object lives here until its commit has a known outcome: a PUT of unknown outcome may be
repeated with the same bytes, so `FinishedObject.store` can be called again until `close`. A compaction gives
a `DataSink` in place of the first spool, which sends the data while they come.

A crash leaves at most spool files. The next user of the spool directory removes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self
from uuid import UUID

from stratalog.base.filesystem import Buffer, FileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.native.batch_filter import CompactedSlices
from stratalog.remote.objects.directory_codec import directory_size_bytes, encode_directory
from stratalog.remote.objects.fixed_layout import padding_bytes
from stratalog.remote.objects.key_stream import (
    KeyColumns,
    KeyHashing,
    KeyStreamEncoder,
)
from stratalog.remote.objects.object_format import FOOTER, ObjectHeader, crc_of, encode_footer, encode_header
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_builder import (
    BuiltSlice,
    MergedKeyStream,
    SliceBuilder,
    SliceEnd,
    SliceStart,
    compacted_slices,
)
from stratalog.remote.objects.slice_entry import MAX_RECORD_COUNT, KeyStreamRef, PartRef, SliceEntry
from stratalog.remote.objects.slice_index import DEFAULT_INDEX_INTERVAL_BYTES, SliceIndex
from stratalog.remote.objects.spool import DATA_SUFFIX, KEYS_SUFFIX, DataSink, Parts, Spool
from stratalog.remote.objects.spool_memory import SpoolMemory
from stratalog.remote.store_layout import StoreLayout
from stratalog.segment.split_batch import SplitBatch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObjectWriterSettings:
    """Settings of an object writer. Immutable."""

    spool_directory: str
    """Directory for temporary files, used by one process only; made with the first file."""
    memory_bytes: int = 64 << 20
    """Bytes that each of the two spools keeps in memory before it uses a file. Lower it to write many objects
    at once.
    """
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES
    """Data between two entries of a slice's index. Lower means larger indexes and fewer bytes for a reader to
    skip.
    """
    max_slice_record_count: int = MAX_RECORD_COUNT
    """Records in a slice; lower only in tests."""


class SortedKeys(NamedTuple):
    """The entries of a key stream, and how their keys were hashed."""

    hashing: KeyHashing
    entries: Iterable[KeyColumns]
    """Each part is sorted, and behind the one before it."""


class FinishedObject(NamedTuple):
    """An object that is ready to be stored. Valid until its writer is closed."""

    ref: ObjectRef
    entries: tuple[SliceEntry, ...]
    parts: Parts
    """The bytes that no `DataSink` has taken, in order: all of them, or those behind the data."""

    def without_bytes(self) -> FinishedObject:
        """The same facts about an object whose bytes are not needed any more."""
        return self._replace(parts=Parts(()))

    def store(
        self, store: ObjectStore, layout: StoreLayout, before_part: Callable[[int], None] = lambda _: None
    ) -> None:
        """PUT the object under its name, without a condition: the name is used for these bytes only.

        Calls `before_part` with the size of each part before it is sent, and raises its errors. Raises
        StoreError. After StoreUnavailableError the outcome is unknown and the call may be repeated.
        """

        def announced() -> Iterator[Buffer]:
            for part in self.parts:
                before_part(len(part))
                yield part

        store.put_parts(layout.data_key(self.ref.name), announced())


class ObjectWriter:
    """Writes one object, slice by slice. Not thread-safe: one user at a time."""

    def __init__(
        self,
        filesystem: FileSystem,
        header: ObjectHeader,
        settings: ObjectWriterSettings,
        data: DataSink | None = None,
        memory: SpoolMemory | None = None,
    ) -> None:
        """`data` takes header and data of the object in place of a spool, and is closed with the writer.
        `memory` is that of several objects."""
        self._header = header
        self._settings = settings
        self._encoded_header = encode_header(header)
        path = f"{settings.spool_directory}/{header.name}"
        self._data = data or Spool(filesystem, path + DATA_SUFFIX, settings.memory_bytes, memory)
        self._data.append(self._encoded_header)
        self._key_streams = Spool(filesystem, path + KEYS_SUFFIX, settings.memory_bytes, memory)
        self._indexes: list[bytes] = []
        self._slices: list[SliceEntry] = []
        """The entries of ended slices, without the positions of key streams and indexes."""
        self._builder: SliceBuilder | None = None
        self._last_partition: TopicIdPartition | None = None
        self._is_finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._header.name

    @property
    def slice_count(self) -> int:
        return len(self._slices)

    @property
    def data_bytes(self) -> int:
        """Data of all slices so far, the current one included."""
        return self._data.size_bytes - len(self._encoded_header)

    @property
    def last_entry(self) -> SliceEntry:
        """The entry of the last ended slice, without the positions of its key stream and index."""
        return self._slices[-1]

    @property
    def next_offset(self) -> int:
        """Exclusive end of the offsets that the current slice covers so far."""
        assert self._builder is not None
        return self._builder.next_offset

    def begin_slice(
        self,
        topic_id: UUID,
        topic: str,
        partition: int,
        *,
        base_offset: int,
        key_hashing: KeyHashing | None = None,
    ) -> None:
        """Begin a partition's slice; `key_hashing` for topics that are compacted."""
        start = SliceStart(topic_id, topic, partition, base_offset, key_hashing)
        self._begin(start)
        self._builder = SliceBuilder(
            start,
            data_position=self._data.size_bytes,
            index_interval_bytes=self._settings.index_interval_bytes,
            max_record_count=self._settings.max_slice_record_count,
        )

    def _begin(self, start: SliceStart) -> None:
        assert self._builder is None
        assert not self._is_finished
        tip = TopicIdPartition(start.topic_id, start.partition)
        # Sorted, at most one slice of each partition: compactors merge inputs in this order.
        assert self._last_partition is None or self._last_partition < tip
        self._last_partition = tip

    def append(self, data: Buffer, *, payload: Buffer | None = None) -> None:
        """Add whole batches, unchanged. `payload`: the decompressed records, if `data` is one batch and they
        are at hand.

        Raises CorruptRecordError or UnsupportedOperationError at the first batch that cannot be tiered. The
        batches before it are in the slice then; end the slice at `next_offset`, or cancel it if it is empty.
        """
        builder = self._builder
        assert builder is not None
        good_bytes = 0
        try:
            while good_bytes < len(data):
                good_bytes = builder.add(data, good_bytes, payload)
                assert payload is None or good_bytes == len(data)
        finally:
            good = _owned(data, good_bytes)
            builder.sum_up(good)
            self._data.append(good)

    def append_split(self, batch: SplitBatch) -> None:
        """Add one batch, unchanged, whose pieces stay as they are. Raises as `append`; nothing has changed
        then."""
        assert self._builder is not None
        self._builder.add_split(batch)
        self._data.append(batch.beginning)
        self._data.append(batch.rest)

    def carry(self, entry: SliceEntry, index: SliceIndex) -> None:
        """Take over all facts about a whole slice of the partition, whose bytes follow unchanged with
        `append_carried`. Raises as `SliceBuilder.carry`."""
        assert self._builder is not None
        self._builder.carry(entry, index)

    def append_carried(self, data: Buffer) -> None:
        """Add bytes of the slice of the last `carry`, in order. They are not looked at: the caller proves
        them by the checksum of that slice."""
        assert self._builder is not None
        self._builder.take_carried(len(data))
        self._data.append(_owned(data, len(data)))

    @property
    def record_count(self) -> int:
        """Records of the current slice so far."""
        assert self._builder is not None
        return self._builder.record_count

    @property
    def may_have_keys(self) -> bool:
        """Whether a key stream could cover every record of the current slice so far: all but markers have
        keys."""
        assert self._builder is not None
        return self._builder.may_have_keys

    def end_slice(self, end: SliceEnd, keys: SortedKeys | None = None) -> None:
        """End the current slice. It may have no data (compaction has removed everything in its range). `keys`
        become its key stream, if it was begun without `key_hashing`; only where it `may_have_keys`."""
        builder = self._builder
        assert builder is not None
        self._end(builder.build(end, None if keys is None else self._write_keys(keys)))

    def append_compacted(
        self,
        starts: Sequence[SliceStart],
        compacted: CompactedSlices,
        ends: Sequence[SliceEnd],
        before_data: Callable[[Sequence[SliceEntry]], None],
    ) -> None:
        """Add slices of which a kernel has made everything, with the keys hashed as `starts` say. Calls
        `before_data` with their entries, without the positions of key streams and indexes, right before their
        data are added."""
        for start in starts:
            self._begin(start)
        record_counts = compacted.column("record_count")
        assert max(record_counts) <= self._settings.max_slice_record_count, "a kernel takes small runs"
        entries, indexes = compacted_slices(starts, self._data.size_bytes, compacted, ends)
        self._key_streams.append(compacted.keys)
        self._indexes += indexes
        self._slices += entries
        before_data(entries)
        self._data.append(compacted.data)

    def _end(self, built: BuiltSlice) -> None:
        self._builder = None
        if built.key_stream is not None:
            for part in built.key_stream.parts:
                self._key_streams.append(part)
        self._indexes.append(built.encoded_index)
        self._slices.append(built.entry)

    def _write_keys(self, keys: SortedKeys) -> MergedKeyStream:
        encoder = KeyStreamEncoder()
        for entries in keys.entries:
            for block in encoder.add(entries):
                self._key_streams.append(block)
        for block in encoder.end():
            self._key_streams.append(block)
        return MergedKeyStream(encoder.encoded(), keys.hashing)

    def cancel_slice(self) -> None:
        """Discard the current slice, which has no data."""
        assert self._builder is not None
        assert self._builder.data_bytes == 0
        self._builder = None

    def finish(self) -> FinishedObject:
        """The whole object. At least one slice has ended, and there is no current one."""
        assert self._builder is None
        assert self._slices
        assert not self._is_finished
        self._is_finished = True
        data_end = self._data.size_bytes
        directory_position = data_end + padding_bytes(data_end)
        directory_bytes = directory_size_bytes(self._slices)
        entries = self._placed_entries(directory_position + directory_bytes)
        directory = encode_directory(entries)
        assert len(directory) == directory_bytes
        key_streams_end = directory_position + directory_bytes + self._key_streams.size_bytes
        ref = ObjectRef(
            name=self._header.name,
            size_bytes=key_streams_end + sum(map(len, self._indexes)) + FOOTER.size_bytes,
            data_position=len(self._encoded_header),
            directory_position=directory_position,
            directory_bytes=directory_bytes,
            key_streams_end=key_streams_end,
            directory_crc=crc_of(directory),
        )
        parts = self._data.parts()
        parts += [bytes(padding_bytes(data_end)) + directory, *self._key_streams.parts()]
        parts.append(b"".join((*self._indexes, encode_footer(ref))))
        finished = FinishedObject(ref, entries, Parts(parts))
        assert finished.parts.size_bytes in (ref.size_bytes, ref.size_bytes - data_end)
        return finished

    def close(self) -> None:
        """Remove temporary files. May be called at any time, repeatedly."""
        try:
            self._data.close()
        finally:
            self._key_streams.close()

    def _placed_entries(self, key_streams_position: int) -> tuple[SliceEntry, ...]:
        """The entries with the positions of their key streams and, behind those, of their indexes."""
        key_position = key_streams_position
        index_position = key_streams_position + self._key_streams.size_bytes
        streams: list[KeyStreamRef | None] = []
        indexes: list[PartRef] = []
        for entry in self._slices:
            stream, index = entry.key_stream, entry.index
            if stream is not None:
                stream = KeyStreamRef(key_position, *stream[1:])
                key_position += stream.size_bytes
            streams.append(stream)
            indexes.append(PartRef(index_position, index.size_bytes, index.crc))
            index_position += index.size_bytes
        columns = SliceEntry.columns_of(self._slices)
        return SliceEntry.of_columns(columns | {"key_stream": streams, "index": indexes})


def _owned(data: Buffer, size_bytes: int) -> Buffer:
    """The first bytes of `data`, safe from later changes of the caller's buffer. They are copied, unless they
    are most of the buffer that they lie in: all of it stays in memory with them."""
    if isinstance(data, bytes) and size_bytes == len(data):
        return data
    view = memoryview(data)[:size_bytes]
    return view if isinstance(view.obj, bytes) and 4 * size_bytes >= 3 * len(view.obj) else bytes(view)
