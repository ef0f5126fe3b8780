"""The output objects of a job: each kind of topics has its own, and so has each output slice of a partition.

Consumers read compacted topics as a whole, again and again, and plain ones mostly at the end. Slices that die
together lie together: an object goes once the last of its slices does. So plain topics are apart by retention
(`TopicPolicy.kind`), and later jobs need not read past the other kinds.

A partition whose output is divided has each slice in an object of another place. A partition with one output
slice has it in the first place.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Self

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.verifier import PlannedSlice, verify_object
from stratalog.remote.objects.object_format import ObjectHeader
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.object_writer import FinishedObject, ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.slice_entry import SliceEntry

_Place = tuple[int, int]
"""The kind of the topics, and the number of the output slice."""


class JobOutput:
    """The objects that a compaction job writes. Not thread-safe: guarded by the job; a context manager that
    removes the writers' temporary files.

    `send` stores an object. `make_header` gives each object a fresh name. An object is closed at the first
    partition behind `max_object_bytes` of data.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        send: Callable[[FinishedObject], None],
        make_header: Callable[[], ObjectHeader],
        settings: ObjectWriterSettings,
        *,
        max_object_bytes: int,
        chunk_bytes: int,
    ) -> None:
        self.stored: list[tuple[ObjectRef, tuple[SliceEntry, ...]]] = []
        """The outputs in the store, not yet committed."""
        self._filesystem = filesystem
        self._send = send
        self._make_header = make_header
        self._settings = settings
        self._max_object_bytes = max_object_bytes
        self._chunk_bytes = chunk_bytes
        self._writers: dict[_Place, ObjectWriter] = {}
        self._planned: dict[_Place, dict[TopicIdPartition, PlannedSlice]] = defaultdict(dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as closing:
            for writer in self._writers.values():
                closing.callback(writer.close)
        self._writers = {}

    def writer(self, place: int = 0, *, kind: int) -> ObjectWriter:
        """The object at that place, begun anew where the one before is full."""
        at = (kind, place)
        writer = self._writers.get(at)
        if writer is not None and writer.data_bytes >= self._max_object_bytes:
            self._store_object(at)
            writer = None
        if writer is None:
            writer = ObjectWriter(self._filesystem, self._make_header(), self._settings)
            self._writers[at] = writer
        return writer

    def expect(self, tip: TopicIdPartition, planned: PlannedSlice, place: int = 0, *, kind: int) -> None:
        """Note the plan of the slice that was just written at that place, for the proof."""
        self._planned[kind, place][tip] = planned

    def finish(self) -> None:
        """Verify and store the rest. Raises StoreCorruptError if a proof fails, StoreError."""
        for place in sorted(self._writers):
            self._store_object(place)

    def _store_object(self, place: _Place) -> None:
        writer = self._writers[place]
        finished = writer.finish()
        verify_object(finished, self._planned.pop(place), self._chunk_bytes)
        self._send(finished)
        self.stored.append((finished.ref, finished.entries))
        del self._writers[place]
        writer.close()
