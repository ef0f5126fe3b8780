"""Sends an output object while it is written: each part is proved first, as a reader of the store would see
it.

    ObjectWriter -> window (part_bytes) -> ObjectProof -> part of a multipart upload, sent beside the work

Header and data go out as they come. Directory, key streams, indexes and footer follow when the object ends.
An object that is not larger than one part is put with one request. The object appears only after all of it
was proved: with the last request, which has its checksum for the store to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from stratalog.base.call_beside import CallBeside
from stratalog.base.errors import StoreError
from stratalog.base.filesystem import Buffer
from stratalog.compaction.output.part_sends import PartSends
from stratalog.compaction.output.verifier import ObjectProof, PartsReader, PlannedSlice
from stratalog.objectstore.content_digest import content_crc
from stratalog.remote.objects.object_writer import FinishedObject
from stratalog.remote.objects.repeated_put import RepeatedWrites
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.objects.spool import FilePart, Spool


class OutputStream:
    """The `DataSink` of an output object. Not thread-safe: guarded by the job. `close` aborts an upload that
    was not finished."""

    def __init__(
        self,
        name: str,
        writes: RepeatedWrites,
        make_window: Callable[[], Spool],
        part_bytes: int,
        sends: PartSends,
    ) -> None:
        """`make_window` makes a place for up to `part_bytes`, which it may keep in memory or not."""
        self.size_bytes = 0
        self._writes = writes
        self._make_window = make_window
        self._part_bytes = part_bytes
        self._window = make_window()
        """Bytes that were not looked at since they were written; never more than `part_bytes`."""
        self._proof = ObjectProof(name)
        self._proved: list[Buffer] = []
        """The end of the object, once there is no window any more: less than a part."""
        self._proved_bytes = 0
        self._sends = sends
        self._sent: list[CallBeside[None]] = []
        """The last two parts, which `writes` belongs to until they are there."""
        self._part_count = 0
        self._crc = 0
        """CRC-32C of all bytes that were proved."""

    def begin_slice(self, *, is_carried: bool) -> None:
        """The data of a slice follow. `is_carried`: its plan will be one of `CarriedBytes`."""
        self._proof.begin_slice(self.size_bytes, is_carried=is_carried)

    def end_slice(self, entry: SliceEntry, planned: PlannedSlice) -> None:
        """The data of the slice are whole. Raises StoreCorruptError if those that were sent are not as
        planned."""
        self._proof.end_slice(entry, planned)

    def begin_row(self, entries: Sequence[SliceEntry], plans: Sequence[PlannedSlice]) -> None:
        """The data of small slices follow, one behind the other, whose plans are known."""
        self._proof.add_row(entries, plans)

    def append(self, data: Buffer) -> None:
        """Add bytes at the end, and send a part that is full. Raises StoreError, also for a part that was
        sent before, of this output or another; StoreCorruptError or CorruptRecordError if the part fails its
        proof; OSError if a window's disk fails."""
        rest = memoryview(data)
        while rest.nbytes:
            room_bytes = self._part_bytes - self._window.size_bytes
            if room_bytes == 0:
                self._send(self._take_window(), self._sends.begin)
                continue
            self._window.append(data if rest.nbytes == len(data) <= room_bytes else rest[:room_bytes])
            self.size_bytes += min(room_bytes, rest.nbytes)
            rest = rest[room_bytes:]

    def parts(self) -> list[Buffer | FilePart]:
        """Nothing: the bytes are sent from here."""
        return []

    def finish(self, finished: FinishedObject, on_proved: Callable[[], object]) -> None:
        """Prove the rest, send it, and let the object appear. Calls `on_proved` while the last two parts are
        on their way. Raises as `append`, and as `on_proved`."""
        self._proved = self._take_window()
        self._proved_bytes = sum(map(len, self._proved))
        reader = PartsReader(finished.parts, self.size_bytes, self._add_proved)
        self._proof.finish(finished, reader)
        if self._part_count == 0:
            self._writes.put_whole(self._proved)
            on_proved()
            return
        last_sent = self._send(self._proved, self._sends.begin_behind)
        on_proved()
        last_sent.result()
        self._writes.complete(self._crc)

    def close(self) -> None:
        """Discard the bytes. May be called repeatedly. Raises OSError if the window's disk fails; the upload
        is aborted all the same."""
        self._proved = []
        try:
            self._window.close()
        finally:
            for sent in reversed(self._sent):
                sent.end()
            # The sweep of orphans aborts it later.
            with suppress(StoreError):
                self._writes.abort()

    def _take_window(self) -> list[Buffer]:
        """The bytes of the window, which are proved; it is empty then."""
        taken: list[Buffer] = []
        for part in self._window.parts():
            taken.append(part.read() if isinstance(part, FilePart) else part)
            self._proof.add(taken[-1])
        self._crc = self._proof.crc
        self._window.close()
        self._window = self._make_window()
        return taken

    def _add_proved(self, data: Buffer) -> None:
        """Take bytes behind the data that were proved, and send a part that is full."""
        self._crc = content_crc((data,), self._crc)
        rest = memoryview(data)
        while rest.nbytes:
            room_bytes = self._part_bytes - self._proved_bytes
            if room_bytes == 0:
                self._send(self._proved, self._sends.begin)
                self._proved, self._proved_bytes = [], 0
                continue
            self._proved.append(rest[:room_bytes])
            self._proved_bytes += min(room_bytes, rest.nbytes)
            rest = rest[room_bytes:]

    def _send(
        self, part: list[Buffer], begin: Callable[[Callable[[], None]], CallBeside[None]]
    ) -> CallBeside[None]:
        """Send a part by a method of `PartSends`."""
        self._part_count += 1
        sent = begin(partial(self._writes.put_part, self._part_count, part))
        self._sent = [*self._sent[-1:], sent]
        return sent
