"""The output objects of a job, which are stored while they are written: each kind of topics has its own, and
so has each output slice of a partition.

Consumers read compacted topics as a whole, again and again, and plain ones mostly at the end. Slices that die
together lie together: an object goes once the last of its slices does. So plain topics are apart by retention
(`TopicPolicy.kind`), and later jobs need not read past the other kinds.

A partition whose output is divided by the bound of its topic has each slice in an object of another place. A
partition with one output slice has it in the first place. One that exceeds the bound of an object goes on in
the next object of its place.
"""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.kept_records import KeptRecords
from stratalog.compaction.output.output_stream import OutputStream
from stratalog.compaction.output.verifier import PlannedSlice
from stratalog.record.native.batch_filter import CompactedSlices
from stratalog.remote.metadata.shard.metadata_log import Objects
from stratalog.remote.objects.object_format import ObjectHeader
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.slice_builder import SliceEnd, SliceStart
from stratalog.remote.objects.slice_entry import SliceEntry

_Place = tuple[int, int]
"""The kind of the topics, and the number of the output slice."""


class _Output(NamedTuple):
    """An object that is being written."""

    writer: ObjectWriter
    stream: OutputStream


class JobOutput:
    """The objects that a compaction job writes. Not thread-safe: guarded by the job; a context manager that
    removes temporary files and the parts of objects that were not finished.

    `open_stream` begins to store an object. `make_header` gives each object a fresh name. An object is closed
    at the first partition behind `max_object_bytes` of data.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        open_stream: Callable[[str], OutputStream],
        make_header: Callable[[], ObjectHeader],
        settings: ObjectWriterSettings,
        *,
        max_object_bytes: int,
    ) -> None:
        self.stored: list[tuple[ObjectRef, tuple[SliceEntry, ...]]] = []
        """The outputs in the store, not yet committed."""
        self._filesystem = filesystem
        self._open_stream = open_stream
        self._make_header = make_header
        self._settings = settings
        self._max_object_bytes = max_object_bytes
        self._outputs: dict[_Place, _Output] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as closing:
            for output in self._outputs.values():
                closing.callback(output.writer.close)
        self._outputs = {}

    @property
    def index_interval_bytes(self) -> int:
        """Data between two entries of a slice's index."""
        return self._settings.index_interval_bytes

    def writer(
        self, place: int = 0, *, kind: int, is_carried: bool = False, goes_on: bool = False
    ) -> ObjectWriter:
        """The object at that place, for one slice; begun anew where the one before is full. `is_carried`: the
        plan of the slice will be one of `CarriedBytes`. `goes_on`: the last slice there is of the same
        partition, so that this one needs another object. Raises StoreError, and StoreCorruptError if a proof
        fails."""
        output = self._output_at((kind, place), goes_on=goes_on)
        output.stream.begin_slice(is_carried=is_carried)
        return output.writer

    def expect(self, tip: TopicIdPartition, planned: PlannedSlice, place: int = 0, *, kind: int) -> None:
        """Give the plan of the slice that was just written at that place, for the proof. Raises as
        `writer`."""
        writer, stream = self._outputs[kind, place]
        assert writer.last_entry.topic_id_partition == tip, "each slice is proved when it was written"
        stream.end_slice(writer.last_entry, planned)

    def add_compacted(
        self,
        compacted: CompactedSlices,
        starts: Sequence[SliceStart],
        ends: Sequence[SliceEnd],
        place: int = 0,
        *,
        kind: int,
        goes_on: bool = False,
    ) -> None:
        """Add slices that a kernel has made to the object at that place, and to those behind it where it is
        full. `goes_on` as in `writer`, for the first of them. Raises as `writer`."""
        sizes, first = compacted.column("data_bytes"), 0
        while first < len(starts):
            writer, stream = self._output_at((kind, place), goes_on=goes_on and first == 0)
            # Each slice that begins before the object is full.
            before = itertools.accumulate(sizes[first:-1], initial=writer.data_bytes)
            end = first + bisect_left(list(before), self._max_object_bytes)
            part = compacted.part(first, end)
            plans = list(map(_planned, KeptRecords.of_compacted(part), starts[first:end], ends[first:end]))
            writer.append_compacted(
                starts[first:end], part, ends[first:end], partial(stream.begin_row, plans=plans)
            )
            first = end

    def _output_at(self, at: _Place, *, goes_on: bool) -> _Output:
        """The object at a place that gets the next slice."""
        output = self._outputs.get(at)
        if output is not None and (goes_on or output.writer.data_bytes >= self._max_object_bytes):
            self._store_object(at)
            output = None
        if output is None:
            header = self._make_header()
            stream = self._open_stream(header.name)
            output = _Output(ObjectWriter(self._filesystem, header, self._settings, stream), stream)
            self._outputs[at] = output
        return output

    def finish(self, on_proved: Callable[[Objects], object]) -> None:
        """Prove and store the rest. Calls `on_proved` with all outputs, while the end of the last one is on
        its way. Raises as `writer`, and as `on_proved`."""
        *places, last_place = sorted(self._outputs)
        for place in places:
            self._store_object(place)
        self._store_object(last_place, on_proved)

    def _store_object(self, place: _Place, on_proved: Callable[[Objects], object] = lambda _: None) -> None:
        writer, stream = self._outputs[place]
        finished = writer.finish()
        stored = finished.ref, finished.entries
        stream.finish(finished, lambda: on_proved((*self.stored, stored)))
        self.stored.append(stored)
        del self._outputs[place]
        writer.close()


def _planned(kept: KeptRecords, start: SliceStart, end: SliceEnd) -> PlannedSlice:
    return PlannedSlice(kept, start.base_offset, end.end_offset, has_one_record_a_key=True)
