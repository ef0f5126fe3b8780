"""The count of request memory is the sum of its leases, whatever they do and in whichever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import LogStoreError, OverloadedError, RecordTooLargeError
from stratalog.server.request_memory import AppendMemory, MemoryLease, RequestMemory

LIMIT_BYTES = 100

actions = st.lists(
    st.tuples(st.sampled_from(["lease", "read", "settle", "close"]), st.integers(0, 6), st.integers(0, 120)),
    max_size=60,
)


def refusal(size_bytes: int) -> type[LogStoreError]:
    """The class of the refusal of a request that needs so much."""
    return OverloadedError if size_bytes <= LIMIT_BYTES else RecordTooLargeError


class Expected:
    """The bytes that a lease must hold, in a dictionary of plain numbers."""

    def __init__(self) -> None:
        self.leases: list[MemoryLease] = []
        self.held: list[int] = []
        self.granted: list[list[int]] = []

    def add(self, lease: MemoryLease, size_bytes: int) -> None:
        self.leases.append(lease)
        self.held.append(size_bytes)
        self.granted.append([])


@given(actions)
def test_what_is_held_is_the_sum_of_what_the_leases_hold(script: list[tuple[str, int, int]]) -> None:
    memory = RequestMemory(LIMIT_BYTES)
    expected = Expected()
    closed: set[int] = set()
    for name, index, size_bytes in script:
        room_bytes = LIMIT_BYTES - sum(expected.held)
        if name == "lease" or index >= len(expected.leases):
            if size_bytes > max(room_bytes, 0):
                with pytest.raises(refusal(size_bytes)):
                    memory.lease(size_bytes)
            else:
                expected.add(memory.lease(size_bytes), size_bytes)
        elif name == "read":
            granted_bytes = expected.leases[index].take_up_to(size_bytes, min(size_bytes, 3))
            wanted_bytes = max(min(size_bytes, room_bytes), min(size_bytes, 3))
            assert granted_bytes == (0 if index in closed else wanted_bytes)
            if index not in closed:
                expected.held[index] += granted_bytes
                expected.granted[index].append(granted_bytes)
        elif name == "settle" and expected.granted[index]:
            granted_bytes = expected.granted[index].pop()
            expected.leases[index].settle(granted_bytes, size_bytes)
            if index not in closed:
                expected.held[index] += size_bytes - granted_bytes
        elif name == "close":
            expected.leases[index].close()
            expected.held[index] = 0
            closed.add(index)
        assert memory.held_bytes == sum(expected.held)
        assert memory.is_scarce == (sum(expected.held) > LIMIT_BYTES / 2)
    for lease in expected.leases:
        lease.close()
    assert memory.held_bytes == 0


def test_a_refusal_says_what_there_is() -> None:
    memory = RequestMemory(LIMIT_BYTES)
    memory.lease(60)
    with pytest.raises(OverloadedError) as caught:
        memory.lease(41)
    assert caught.value.retriable
    assert caught.value.fields == {"size_bytes": 41, "held_bytes": 60, "limit_bytes": 100}
    memory.lease(40)


def test_appends_that_wait_for_the_store_leave_a_quarter_to_the_others() -> None:
    memory = AppendMemory(LIMIT_BYTES)
    # One alone may take all, or a large one would never fit.
    memory.lease_for_commit(LIMIT_BYTES).close()
    waiting = [memory.lease_for_commit(40) for _ in range(2)]
    with pytest.raises(OverloadedError) as caught:
        memory.lease_for_commit(1)
    assert caught.value.retriable
    assert caught.value.fields == {"size_bytes": 1, "held_bytes": 80, "limit_bytes": 75}
    assert memory.refused_count == 1
    other = memory.lease(20)
    waiting[0].close()
    with pytest.raises(OverloadedError):
        memory.lease_for_commit(41)
    waiting[0] = memory.lease_for_commit(30)
    # What a batch becomes counts in both.
    waiting[0].hold(10)
    assert memory.held_bytes == LIMIT_BYTES
    with pytest.raises(OverloadedError):
        waiting[0].hold(11)
    with pytest.raises(RecordTooLargeError):
        memory.lease(5 * LIMIT_BYTES)
    for lease in (*waiting, other):
        lease.close()
    assert memory.held_bytes == 0
    memory.lease_for_commit(LIMIT_BYTES)


def test_a_call_waits_for_memory_that_is_given_back() -> None:
    memory = RequestMemory(LIMIT_BYTES)
    calls: list[str] = []
    memory.call_at_release(lambda: calls.append("at once"))
    assert calls == ["at once"], "there is room"
    lease = memory.lease(LIMIT_BYTES)
    memory.call_at_release(lambda: calls.append("later"))
    memory.add(5)
    assert calls == ["at once"]
    lease.settle(1, 0)
    lease.settle(1, 0)
    assert calls == ["at once", "later"], "once"


def test_refusals_and_smaller_answers_count() -> None:
    memory = RequestMemory(LIMIT_BYTES)
    memory.lease(90)
    for _ in range(2):
        with pytest.raises(OverloadedError):
            memory.lease(20)
    lease = memory.lease()
    assert lease.take_up_to(30, 1) == 10
    assert lease.take_up_to(5, 5) == 5, "the last share is granted always"
    assert (memory.refused_count, memory.reduced_count) == (2, 1)


@given(st.lists(st.integers(0, 120), max_size=20), st.integers(0, LIMIT_BYTES))
def test_a_lease_holds_its_extra_bytes_in_place_of_the_last_ones(sizes: list[int], base_bytes: int) -> None:
    memory = RequestMemory(LIMIT_BYTES)
    lease = memory.lease(base_bytes)
    extra_bytes = 0
    for size_bytes in sizes:
        if size_bytes > max(LIMIT_BYTES - base_bytes, extra_bytes):
            with pytest.raises(refusal(base_bytes + size_bytes)):
                lease.hold(size_bytes)
        else:
            lease.hold(size_bytes)
            extra_bytes = size_bytes
        assert memory.held_bytes == base_bytes + extra_bytes
    assert lease.leased_bytes == base_bytes
    lease.close()
    lease.hold(1)
    assert memory.held_bytes == 0


def test_an_append_that_needs_more_than_all_of_it_is_refused_for_good() -> None:
    """It was retriable, so that clients sent it again for ever."""
    memory = RequestMemory(LIMIT_BYTES)
    with pytest.raises(RecordTooLargeError) as refused:
        memory.lease(LIMIT_BYTES + 1)
    assert refused.value.fields == {"size_bytes": LIMIT_BYTES + 1, "max_bytes": LIMIT_BYTES}
    lease = memory.lease(40)
    with pytest.raises(RecordTooLargeError) as refused:
        lease.hold(LIMIT_BYTES - 39)
    assert refused.value.fields == {"size_bytes": LIMIT_BYTES + 1, "max_bytes": LIMIT_BYTES}
    assert "max-request-memory" in refused.value.message
    other = memory.lease(1)
    with pytest.raises(OverloadedError):
        lease.hold(LIMIT_BYTES - 40)
    other.close()
    lease.hold(LIMIT_BYTES - 40)
    assert memory.held_bytes == LIMIT_BYTES
