"""An output is sent while it is written, as the same bytes, and not a part of it that fails its proof."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, StoreCorruptError
from stratalog.base.filesystem import Buffer
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.compaction.kept_records import KeptTally
from stratalog.compaction.output.output_stream import OutputStream
from stratalog.compaction.output.part_sends import PartSends
from stratalog.compaction.output.verifier import PlannedSlice
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_ref import format_object_name
from stratalog.remote.objects.object_writer import FinishedObject, ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.repeated_put import PutAttempts, RepeatedWrites
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.spool import FilePart, Spool
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.sampling import some_seeds
from tests.support.service.hand_executor import HandExecutor

TOPIC_ID = UUID(int=7)
CRC_POSITION = 17
"""The position of the checksum in a batch, which covers all behind it."""
NAME = format_object_name(2, UUID(int=9))
HEADER = ObjectHeader(
    store_id=UUID(int=1),
    shard=0,
    epoch=0,
    kind=ObjectKind.REPLACEMENT,
    name=NAME,
    inputs=(format_object_name(1, UUID(int=8)),),
)
SETTINGS = ObjectWriterSettings(spool_directory="/spool")


def batch(base_offset: int, keys: Sequence[bytes]) -> bytes:
    records = [Record(0, 1, key, b"value" * 20) for key in keys]
    return encode_batch(records, base_offset=base_offset, leader_epoch=1)


SLICES: tuple[list[bytes], ...] = (
    [batch(0, [b"a", b"b"]), batch(2, [b"c"])],
    [],
    [batch(0, [b"d"]) + batch(1, [b"e", b"f"]), batch(5, [b"g"])],
)


class _Window(Spool):
    """A window in which a byte may change. Not thread-safe: one test uses it."""

    def __init__(self, world: World, begin_position: int, path: str, memory_bytes: int) -> None:
        super().__init__(world.filesystem, path, memory_bytes)
        self._world = world
        self._begin_position = begin_position

    def parts(self) -> list[Buffer | FilePart]:
        parts = super().parts()
        position = self._world.flipped_position
        if position is None or not 0 <= position - self._begin_position < self.size_bytes:
            return parts
        data = bytearray(b"".join(part.read() if isinstance(part, FilePart) else part for part in parts))
        data[position - self._begin_position] ^= 4
        return [bytes(data)]


class World:
    """An output whose windows are files in memory."""

    def __init__(self, part_bytes: int, memory_bytes: int = 0, run_beside: RunBeside = run_here) -> None:
        self.filesystem = MemoryFileSystem()
        self.inner = MemoryObjectStore(ManualClock())
        self.store = FaultyObjectStore(self.inner, Random(0))
        self.windows: list[str] = []
        writes = RepeatedWrites(ManualClock(), self.store, "data", PutAttempts())
        self.flipped_position: int | None = None
        """The byte of the object that changes in its window."""
        self._part_bytes = part_bytes
        self._memory_bytes = memory_bytes
        self.stream = OutputStream(NAME, writes, self._make_window, part_bytes, PartSends(run_beside))
        self.writer = ObjectWriter(self.filesystem, HEADER, SETTINGS, self.stream)

    def _make_window(self) -> Spool:
        number = len(self.windows)
        self.windows.append(f"/spool/{number}.scratch")
        return _Window(self, number * self._part_bytes, self.windows[-1], self._memory_bytes)

    def write(self, slices: Sequence[Sequence[bytes]] = SLICES) -> None:
        for partition, pieces in enumerate(slices):
            self.stream.begin_slice(is_carried=False)
            write_slice(self.writer, partition, pieces)
            tally = KeptTally()
            data = b"".join(pieces)
            for position, header in batches(data):
                tally.add(data, position, header, header.records_count)
            self.stream.end_slice(self.writer.last_entry, PlannedSlice(tally.result(), 0, 10, True))

    def write_all(self) -> None:
        self.write()
        self.finish()

    def finish(self) -> FinishedObject:
        finished = self.writer.finish()
        self.stream.finish(finished, lambda: None)
        return finished

    def sent(self) -> list[str]:
        return [entry.operation.condition for entry in self.store.trace.entries]


def write_slice(writer: ObjectWriter, partition: int, pieces: Sequence[bytes]) -> None:
    hashing = KeyHashing(b"0123456789abcdef")
    writer.begin_slice(TOPIC_ID, "topic", partition, base_offset=0, key_hashing=hashing)
    for piece in pieces:
        writer.append(piece)
    writer.end_slice(SliceEnd(10))


def whole() -> bytes:
    """The object as a writer with a spool makes it."""
    with ObjectWriter(MemoryFileSystem(), HEADER, SETTINGS) as writer:
        for partition, pieces in enumerate(SLICES):
            write_slice(writer, partition, pieces)
        return b"".join(writer.finish().parts)


@given(st.integers(1, 3000), st.sampled_from([0, 500, 1 << 20]))
def test_the_parts_are_those_of_the_object(part_bytes: int, memory_bytes: int) -> None:
    world, expected = World(part_bytes, memory_bytes), whole()
    world.write()
    finished = world.finish()
    world.writer.close()
    assert world.inner.get("data").data == expected
    assert finished.ref.size_bytes == len(expected)
    part_count = -(-len(expected) // part_bytes)
    parts = [f"part {number}" for number in range(1, part_count + 1)]
    assert world.sent() == (["begin", *parts, "complete"] if part_count > 1 else [""])
    assert not any(map(world.filesystem.exists, world.windows))
    assert list(world.inner.list_uploads("")) == []


def test_parts_are_sent_while_the_object_is_written() -> None:
    world = World(part_bytes=300)
    world.write(SLICES[:1])
    assert world.sent() == ["begin", "part 1"]
    assert list(world.inner.list("")) == []


@pytest.mark.parametrize("seed", some_seeds(20))
def test_bytes_that_changed_after_they_were_written_do_not_appear(seed: int) -> None:
    """Anywhere in the data; where a checksum of a batch covers them, their part is not even sent."""
    random = Random(seed)
    world = World(part_bytes=100)
    header_bytes = world.stream.size_bytes
    data = b"".join(SLICES[0])
    world.flipped_position = header_bytes + random.randrange(len(data))
    with pytest.raises((CorruptRecordError, StoreCorruptError)):
        world.write_all()
    world.writer.close()
    assert list(world.inner.list("")) == []
    assert list(world.inner.list_uploads("")) == []
    in_batch = world.flipped_position - header_bytes
    first_bytes = len(SLICES[0][0])
    begin, end = (0, first_bytes) if in_batch < first_bytes else (first_bytes, len(data))
    if in_batch - begin >= CRC_POSITION:
        # The part in which the batch ends is read, and found damaged, before it is sent.
        last_part = (header_bytes + end - 1) // 100 + 1
        assert f"part {last_part}" not in world.sent(), f"seed {seed}"


def test_an_object_that_is_not_as_planned_does_not_appear() -> None:
    world = World(part_bytes=300)
    world.write()
    world.stream.begin_slice(is_carried=False)
    write_slice(world.writer, 3, [batch(0, [b"x"])])
    other = PlannedSlice(KeptTally().result(), 0, 10, True)
    world.stream.end_slice(world.writer.last_entry, other)
    with pytest.raises(StoreCorruptError) as refused:
        world.finish()
    assert refused.value.fields["partition"] == 3
    assert "complete" not in world.sent()
    world.writer.close()
    assert world.sent()[-1] == "abort"
    assert list(world.inner.list_uploads("")) == []


def test_a_part_that_waits_for_a_thread_is_not_sent_once_its_output_is_closed() -> None:
    threads = HandExecutor()
    world = World(part_bytes=300, run_beside=threads.submit)
    world.write(SLICES[:1])
    assert len(threads.waiting) == 1
    world.writer.close()
    threads.run_all()
    assert world.sent() == [], "an upload would begin that nothing aborts"


def test_no_part_is_sent_once_an_output_is_closed_whose_last_two_wait_for_threads() -> None:
    threads = HandExecutor()
    world = World(part_bytes=len(whole()) * 2 // 3, run_beside=threads.submit)
    world.write()
    finished = world.writer.finish()

    def fail() -> None:
        raise StoreCorruptError("the commit contradicts itself")

    with pytest.raises(StoreCorruptError):
        world.stream.finish(finished, fail)
    assert len(threads.waiting) == 2
    world.writer.close()
    threads.run_all()
    assert world.sent() == [], "an upload would begin that nothing aborts"


class _StuckWindow(Spool):
    """A window whose file cannot be removed. Not thread-safe: one test uses it."""

    def close(self) -> None:
        super().close()
        raise OSError(errno.EIO, "the disk is broken")


def test_an_upload_is_aborted_if_its_window_cannot_be_removed() -> None:
    filesystem, store = MemoryFileSystem(), MemoryObjectStore(ManualClock())
    writes = RepeatedWrites(ManualClock(), store, "data", PutAttempts())
    stream = OutputStream(
        NAME, writes, lambda: _StuckWindow(filesystem, "/spool/0.scratch", 100), 100, PartSends(run_here)
    )
    writes.put_part(1, [b"x"])
    assert [one.key for one in store.list_uploads("")] == ["data"]
    with pytest.raises(OSError) as failed:  # noqa: PT011 - its number is compared
        stream.close()
    assert failed.value.errno == errno.EIO
    assert not list(store.list_uploads(""))
