"""Streams that break are read on from where they stood, and never from another object."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import ObjectNotFoundError, StoreCorruptError, StoreUnavailableError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.resuming_reads import MAX_RESUMPTIONS, ResumingReads
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault, FaultPlan, Operation
from tests.support.tiered.scripted_s3 import Answer, scripted_s3

CONTENT = bytes(number % 251 for number in range(1000))


class World:
    """An object, and reads of it under a plan, which numbers the GETs from 0."""

    def __init__(self, plan: FaultPlan, seed: int = 0) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.store.put("key", CONTENT)
        faulty = FaultyObjectStore(self.store, Random(seed), plan)
        self.reads = ResumingReads(faulty, self.clock, "key")


def cut_off(count: int) -> FaultPlan:
    """The first so many GETs are cut off."""
    return lambda operation: Fault.IS_CUT_OFF if operation.number < count else Fault.NONE


@given(st.integers(0, MAX_RESUMPTIONS), st.lists(st.integers(1, 300), min_size=1), st.integers(0, 1000))
def test_a_stream_gives_its_range_however_often_it_breaks(count: int, sizes: list[int], seed: int) -> None:
    world = World(cut_off(count), seed)
    stream = world.reads.open_range(100, 800)
    found = b"".join(map(stream.read, sizes))
    found += stream.read(1000)
    assert found == CONTENT[100:900]
    assert stream.read(1) == b""
    stream.close()
    assert world.reads.get_count == 1
    assert world.reads.resumed_get_count <= count
    assert world.reads.bytes_read == 800


def test_only_the_rest_is_asked_for() -> None:
    headers = {"Date": "Sat, 21 Nov 2026 08:49:37 GMT", "ETag": '"one"'}
    whole = headers | {"Content-Range": "bytes 0-99/100"}
    rest = headers | {"Content-Range": "bytes 40-99/100"}
    with scripted_s3([Answer(206, CONTENT[:100], whole, 50), Answer(206, CONTENT[40:100], rest)]) as server:
        reads = ResumingReads(server.open_store(), ManualClock(), "key")
        stream = reads.open_range(0, 100)
        assert stream.read(40) + stream.read(60) == CONTENT[:100]
        first, second = server.requests
    assert (first.headers["Range"], second.headers["Range"]) == ("bytes=0-99", "bytes=40-99")
    assert second.headers["If-Match"] == '"one"'
    assert (reads.get_count, reads.resumed_get_count) == (1, 1)


def test_without_an_etag_nothing_is_read_on() -> None:
    headers = {"Date": "Sat, 21 Nov 2026 08:49:37 GMT", "Content-Range": "bytes 0-99/100"}
    with scripted_s3([Answer(206, CONTENT[:100], headers, 50)]) as server:
        reads = ResumingReads(server.open_store(), ManualClock(), "key")
        with pytest.raises(StoreUnavailableError):
            reads.open_range(0, 100).read(100)
        assert len(server.requests) == 1


def test_a_stream_that_no_job_waits_for_is_not_read_on() -> None:
    """A job that has failed would wait minutes for a read that goes on beside it."""

    def plan(operation: Operation) -> Fault:
        if operation.number == 3:
            world.reads.give_up()
        return Fault.IS_CUT_OFF

    world = World(plan)
    with pytest.raises(StoreUnavailableError):
        world.reads.open_range(0, 1000).read(1000)
    assert (world.reads.get_count, world.reads.resumed_get_count) == (1, 3)


def test_patience_ends_after_growing_pauses() -> None:
    world = World(lambda operation: Fault.FAILS if operation.number else Fault.IS_CUT_OFF)
    began_s = world.clock.monotonic_s()
    with pytest.raises(StoreUnavailableError):
        world.reads.open_range(0, 1000).read(1000)
    assert world.reads.resumed_get_count == MAX_RESUMPTIONS
    assert 30 < world.clock.monotonic_s() - began_s < 120


def test_a_stream_that_goes_on_is_resumed_without_a_limit() -> None:
    """A job over many partitions is slow, and a proxy may reset what idles: 16 times was once all."""
    headers = {"Date": "Sat, 21 Nov 2026 08:49:37 GMT", "ETag": '"one"'}
    count = MAX_RESUMPTIONS + 2
    end = 20 * count
    answers = [
        Answer(206, CONTENT[begin:end], headers | {"Content-Range": f"bytes {begin}-{end - 1}/{end}"}, 20)
        for begin in range(0, end, 20)
    ]
    with scripted_s3(answers) as server:
        reads = ResumingReads(server.open_store(), ManualClock(), "key")
        stream = reads.open_range(0, end)
        assert b"".join(stream.read(20) for _ in range(count)) == CONTENT[:end]
    assert reads.resumed_get_count == count - 1 > MAX_RESUMPTIONS


def test_another_object_is_not_read_on() -> None:
    world = World(cut_off(1))
    stream = world.reads.open_range(0, 1000)
    world.store.put("key", CONTENT[::-1])
    with pytest.raises(StoreCorruptError) as changed:
        stream.read(1000)
    assert changed.value.fields["key"] == "key"


def test_an_object_that_is_gone_is_said_to_be_gone() -> None:
    world = World(cut_off(1))
    stream = world.reads.open_range(0, 1000)
    world.store.delete_many(["key"])
    with pytest.raises(ObjectNotFoundError):
        stream.read(1000)


def test_a_first_get_that_fails_is_not_sent_again() -> None:
    world = World(lambda _: Fault.FAILS)
    with pytest.raises(StoreUnavailableError):
        world.reads.open_range(0, 1000)
    assert (world.reads.get_count, world.reads.resumed_get_count) == (1, 0)
