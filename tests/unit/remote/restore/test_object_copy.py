"""Objects of a restore: copied by the server, or through this machine and checked on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from stratalog.base.errors import ObjectNotFoundError, StoreUnavailableError
from stratalog.remote.lanes import LANE_COUNT, in_lanes
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.restore.object_copy import CopiedObject, ObjectCopy
from stratalog.remote.store_layout import StoreLayout
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore, StoreTrace
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault, FaultsAt
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.restore_world import RestoreWorld
from tests.support.tiered.stores.copying_store import CopyingServer, CopyingStore

LAYOUT = StoreLayout(0)
HERE = CopiedObject(through_here=True)


class Source:
    """A store with one object, on a server."""

    def __init__(self) -> None:
        world = RestoreWorld(5)
        world.upload()
        [live] = world.tiered.metadata.state().objects.values()
        self.ref: ObjectRef = live.ref
        self.key = LAYOUT.data_key(self.ref.name)
        self.data = world.bucket.get(self.key).data
        self.clock = ManualClock()
        self.server = CopyingServer()
        self.store = CopyingStore(self.clock, self.server, "source")
        self.store.put(self.key, self.data)
        self.target = CopyingStore(self.clock, self.server, "target")

    def damage(self, position: int) -> bytes:
        """Flip a bit of the object in the store."""
        data = bytearray(self.data)
        data[position] ^= 1
        self.store.put(self.key, data)
        return bytes(data)


@pytest.fixture
def source() -> Source:
    return Source()


def test_the_server_copies_and_only_the_footer_is_read(source: Source) -> None:
    counted, target = CountingObjectStore(source.store), CountingObjectStore(source.target)
    copied = ObjectCopy(counted, target).copy(LAYOUT, source.ref, None)
    assert copied == CopiedObject()
    assert source.target.copied == [source.key]
    assert source.target.get(source.key).data == source.data
    assert counted.total("GET").requests == 0
    assert target.total("GET").size_bytes < 100
    assert target.total("PUT").requests == 0


def test_a_server_that_does_not_copy_is_asked_once(source: Source) -> None:
    source.server.refuses = True
    target = CountingObjectStore(source.target)
    copying = ObjectCopy(source.store, target)
    for _ in range(2):
        assert copying.copy(LAYOUT, source.ref, None) == HERE
    assert target.total("COPY").requests == 1
    assert source.target.get(source.key).data == source.data


def test_an_object_that_is_there_is_copied_again_only_if_it_is_another_one(source: Source) -> None:
    copying = ObjectCopy(source.store, source.target)
    size_bytes = source.ref.size_bytes
    source.target.put(source.key, source.data)
    assert copying.copy(LAYOUT, source.ref, size_bytes) == CopiedObject(was_there=True)
    assert source.target.copied == []
    source.target.put(source.key, bytes(size_bytes))
    assert copying.copy(LAYOUT, source.ref, size_bytes) == CopiedObject()
    assert source.target.get(source.key).data == source.data
    source.target.put(source.key, source.data[:-1])
    assert copying.copy(LAYOUT, source.ref, size_bytes - 1) == CopiedObject()


def test_damage_is_copied_and_said_and_no_part_of_the_object_escapes_the_checks(source: Source) -> None:
    source.server.refuses = True
    checked = 0
    for position in range(source.ref.data_position, source.ref.size_bytes, 7):
        data = source.damage(position)
        copied = ObjectCopy(source.store, source.target).copy(LAYOUT, source.ref, None)
        assert copied.through_here
        assert source.target.get(source.key).data == data
        checked += bool(copied.damage)
        if source.ref.data_position <= position < source.ref.directory_position - 8:
            assert copied.damage
            assert source.ref.name in copied.damage
    assert checked > 10


def test_what_a_connection_has_garbled_is_read_again(source: Source) -> None:
    source.server.refuses = True
    source.store.garbled_count = 1
    assert ObjectCopy(source.store, source.target).copy(LAYOUT, source.ref, None) == HERE
    assert source.store.garbled_count == 0
    assert source.target.get(source.key).data == source.data


def test_a_lost_object_and_a_store_that_is_away_are_errors(source: Source) -> None:
    source.store.delete_many([source.key])
    for refuses in (False, True):
        source.server.refuses = refuses
        with pytest.raises(ObjectNotFoundError):
            ObjectCopy(source.store, source.target).copy(LAYOUT, source.ref, None)
    assert list(source.target.list("")) == []


@pytest.mark.parametrize("refuses", [False, True])
def test_after_a_death_or_failure_at_any_operation_the_next_attempt_ends(
    source: Source, refuses: bool
) -> None:
    source.server.refuses = refuses
    trace = StoreTrace()
    ObjectCopy(source.store, FaultyObjectStore(source.target, Random(0), trace=trace)).copy(
        LAYOUT, source.ref, None
    )
    assert trace.operation_count == 2
    for number in range(trace.operation_count):
        for fault in (Fault.STOPS_BEFORE, Fault.STOPS_AFTER, Fault.FAILS):
            target = CopyingStore(source.clock, source.server, "target")
            faulty = FaultyObjectStore(target, Random(0), FaultsAt({number: fault}))
            with pytest.raises((ActorStopped, StoreUnavailableError)):
                ObjectCopy(source.store, faulty).copy(LAYOUT, source.ref, None)
            found = next((info.size for info in target.list("")), None)
            ObjectCopy(source.store, target).copy(LAYOUT, source.ref, found)
            assert target.get(source.key).data == source.data


def test_lanes_take_every_item_once_and_no_more_at_a_time_than_there_are_lanes() -> None:
    running, most, done = 0, 0, list[tuple[int, int]]()
    with ThreadPoolExecutor(2 * LANE_COUNT) as pool:

        def items() -> list[int]:
            return list(range(500))

        def work(item: int) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            running -= 1
            return item * item

        in_lanes(
            lambda works: [one.result() for one in [pool.submit(each) for each in works]],
            items(),
            work,
            lambda item, result: done.append((item, result)),
        )
    assert sorted(done) == [(one, one * one) for one in range(500)]
    assert most <= LANE_COUNT


def test_an_error_ends_the_lanes_before_their_next_item() -> None:
    seen: list[int] = []

    def work(item: int) -> None:
        seen.append(item)
        if item == 3:
            raise StoreUnavailableError("away")

    with pytest.raises(StoreUnavailableError):
        in_lanes(lambda works: [one() for one in works], range(100), work, lambda _, __: None)
    assert seen == [0, 1, 2, 3]


def test_an_interrupted_caller_stops_the_lanes() -> None:
    lanes: list[Callable[[], object]] = []
    seen: list[int] = []

    def interrupted(works: Sequence[Callable[[], object]]) -> Sequence[object]:
        lanes.extend(works)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_lanes(interrupted, range(100), seen.append, lambda _, __: None)
    for lane in lanes:
        lane()
    assert seen == []
