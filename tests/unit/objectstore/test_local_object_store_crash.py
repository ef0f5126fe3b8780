"""A local store that dies at every operation of its disk keeps what it acknowledged and shows nothing torn.

The work is a series of states of the whole store, each reached by one call. Wherever the process dies and
whatever the disk made of what was not synced, a new process must find the last acknowledged state or, at
most, the one that was under way, and must be able to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.base.filesystem import FileSystem
from stratalog.objectstore.content_etag import content_etag
from stratalog.objectstore.local import LocalObjectStore
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem, SimulatedCrash
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds

HEAD_1, HEAD_2 = b"head 1" * 100, b"head 2" * 100
Contents = dict[str, bytes]
Step = tuple[Callable[[LocalObjectStore], object], Contents]

STEPS: tuple[Step, ...] = (
    (lambda store: store.put("shards/0/head", HEAD_1, if_absent=True), {"shards/0/head": HEAD_1}),
    (
        lambda store: store.put_parts("shards/0/data/1", [b"one", b"two"]),
        {"shards/0/head": HEAD_1, "shards/0/data/1": b"onetwo"},
    ),
    (
        lambda store: store.put("shards/0/head", HEAD_2, if_match=content_etag([HEAD_1])),
        {"shards/0/head": HEAD_2, "shards/0/data/1": b"onetwo"},
    ),
    (lambda store: store.delete_many(["shards/0/data/1", "missing"]), {"shards/0/head": HEAD_2}),
)


def open_on(disk: FileSystem, seed: int) -> LocalObjectStore:
    return LocalObjectStore(disk, ManualClock(), SequentialIds(seed), "/var/store")


def contents(store: LocalObjectStore) -> Contents:
    return {info.key: store.get(info.key).data for info in store.list("")}


def run(disk: FaultyFileSystem) -> int:
    """How many steps were acknowledged."""
    store = open_on(disk, seed=1)
    done_count = 0
    with suppress(SimulatedCrash):
        for act, _ in STEPS:
            act(store)
            done_count += 1
    return done_count


def operation_count() -> int:
    disk = FaultyFileSystem()
    assert run(disk) == len(STEPS)
    return disk.operation_count


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_it_survives_a_crash_at_every_operation(part: float) -> None:
    states: list[Contents] = [{}, *(state for _, state in STEPS)]
    for operation in range(1, operation_count() + 1):
        disk = FaultyFileSystem()
        disk.crash_at(operation, part=part)
        done_count = run(disk)
        assert done_count < len(STEPS)
        for survival in ALL_SURVIVALS:
            store = open_on(disk.reopened(survival), seed=2)
            found = contents(store)
            assert found in states[done_count : done_count + 2], f"{disk.trace[-1]} {survival}"
            head = found.get("shards/0/head")
            if head is None:
                store.put("shards/0/head", b"new", if_absent=True)
            else:
                store.put("shards/0/head", b"new", if_match=content_etag([head]))
            assert store.get("shards/0/head").data == b"new"


def test_what_a_dead_process_left_unsynced_is_not_built_upon() -> None:
    """The process dies and the machine lives on: what it made is there, and no disk knows of it yet.

    The next process finds it and acknowledges a write, and then the machine dies too.
    """
    for operation in range(1, operation_count() + 1):
        disk = FaultyFileSystem()
        disk.crash_at(operation)
        run(disk)
        next_disk = disk.killed()
        open_on(next_disk, seed=2).put("shards/0/head", b"new")
        for survival in ALL_SURVIVALS:
            survived = open_on(next_disk.reopened(survival), seed=3)
            assert survived.get("shards/0/head").data == b"new", f"{disk.trace[-1]} {survival}"


def test_it_fails_clearly_and_goes_on_where_an_operation_fails() -> None:
    """The disk lives on: an error may hide that the step was done, but never leaves anything in between."""
    states: list[Contents] = [{}, *(state for _, state in STEPS)]
    rehearsal = FaultyFileSystem()
    run(rehearsal)
    # An error after the lock was taken would leave it without a holder, which no operating system does.
    locks = {number for number, line in enumerate(rehearsal.trace, start=1) if line.startswith("try_lock")}
    for operation in range(1, rehearsal.operation_count + 1):
        for part in (0.0, 1.0):
            disk = FaultyFileSystem()
            disk.fail_at(operation, part=0.0 if operation in locks else part)
            store = open_on(disk, seed=1)
            for number, (act, state) in enumerate(STEPS):
                with suppress(LogStoreError):
                    act(store)
                    continue
                assert contents(store) in states[number : number + 2], disk.trace[operation - 1]
                if contents(store) != state:
                    act(store)
            assert contents(store) == STEPS[-1][1]
