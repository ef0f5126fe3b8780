"""Streams with a block on its way: what is asked of the store, and when."""

from __future__ import annotations

import pytest

from stratalog.base.errors import ObjectNotFoundError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.resuming_reads import ResumingReads
from stratalog.remote.objects.ahead_stream import AheadStream
from stratalog.testing.manual_clock import ManualClock
from tests.support.service.hand_executor import HandExecutor
from tests.support.tiered.stores.open_streams_store import OpenStreamsStore

DATA = bytes(range(250)) * 4


class World:
    """One object, and the other threads by hand."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.store = OpenStreamsStore(MemoryObjectStore(clock))
        self.store.put("key", DATA)
        self.threads = HandExecutor()
        self.reads = ResumingReads(self.store, clock, "key")

    def open(self, position: int, size_bytes: int, first_bytes: int) -> AheadStream:
        return AheadStream(
            self.threads.submit,
            lambda: self.reads.open_range(position, size_bytes),
            size_bytes,
            first_bytes,
        )

    def read(self, stream: AheadStream, next_bytes: int) -> bytes:
        """The next block, which the store sends now at the latest."""
        self.threads.run_all()
        return stream.read(next_bytes)


def test_one_block_is_on_its_way_and_never_more_than_the_range() -> None:
    world = World()
    stream = world.open(100, 700, first_bytes=50)
    assert world.reads.get_count == 0, "the request is sent beside"
    world.threads.run_all()
    assert (world.reads.get_count, world.reads.bytes_read) == (1, 50)
    blocks = [world.read(stream, 300)]
    assert world.reads.bytes_read == 50, "the next one is asked for beside"
    world.threads.run_all()
    assert world.reads.bytes_read == 350
    while block := world.read(stream, 300):
        blocks.append(block)
    assert list(map(len, blocks)) == [50, 300, 300, 50]
    assert b"".join(blocks) == DATA[100:800]
    assert world.read(stream, 300) == b""
    assert not world.threads.waiting, "behind the end nothing is asked for"
    stream.close()
    assert (world.reads.get_count, world.reads.bytes_read, world.store.open_count) == (1, 700, 0)


def test_a_closed_stream_asks_for_nothing_any_more_and_leaves_no_connection() -> None:
    for run_count in range(3):
        world = World()
        stream = world.open(0, 1000, first_bytes=100)
        if run_count:
            world.read(stream, 100)
        if run_count == 2:
            world.threads.run_all()
        read_bytes = world.reads.bytes_read
        stream.close()
        stream.close()
        world.threads.run_all()
        assert world.reads.bytes_read == read_bytes == 100 * run_count
        assert world.store.open_count == 0


def test_an_error_of_the_other_thread_is_raised_where_its_block_is_used() -> None:
    world = World()
    stream = world.open(0, 1000, first_bytes=100)
    assert world.read(stream, 100) == DATA[:100]
    world.threads.run_all()
    world.store.delete_many(["key"])
    assert stream.read(100) == DATA[100:200], "it was there before"
    stream.close()
    assert world.store.open_count == 0
    other = world.open(0, 1000, first_bytes=100)
    with pytest.raises(ObjectNotFoundError):
        world.read(other, 100)
    with pytest.raises(ObjectNotFoundError):
        other.read(100)
    other.close()
