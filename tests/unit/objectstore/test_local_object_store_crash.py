"""A local store that dies at every operation of its disk keeps what it acknowledged and shows nothing torn.

The work is a series of states of the whole store, each reached by one call. Wherever the process dies and
whatever the disk made of what was not synced, a new process must find the last acknowledged state or, at
most, the one that was under way, and must be able to go on.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.errors import LogStoreError
from stratalog.base.filesystem import FileSystem
from stratalog.objectstore.content_digest import content_crc, content_etag
from stratalog.objectstore.local import LocalObjectStore
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Death

HEAD_1, HEAD_2 = b"head 1" * 100, b"head 2" * 100
Contents = dict[str, bytes]
Step = tuple[Callable[[LocalObjectStore], object], Contents]


def upload(store: LocalObjectStore, key: str) -> None:
    parts = store.open_upload(key)
    parts.put_part(1, [HEAD_1])
    parts.put_part(2, [HEAD_2])
    parts.complete(content_crc([HEAD_1, HEAD_2]))


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
    (
        lambda store: upload(store, "shards/1/data/2"),
        {"shards/0/head": HEAD_2, "shards/1/data/2": HEAD_1 + HEAD_2},
    ),
)


STATES: list[Contents] = [{}, *(state for _, state in STEPS)]


def open_on(disk: FileSystem, seed: int) -> LocalObjectStore:
    return LocalObjectStore(disk, ManualClock(), SequentialIds(seed), "/var/store")


def contents(store: LocalObjectStore) -> Contents:
    return {info.key: store.get(info.key).data for info in store.list("")}


class StoreRun:
    """The steps on one disk, and how many of them were acknowledged."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.done_count = 0

    def work(self) -> None:
        store = open_on(self.disk, seed=1)
        for act, _ in STEPS:
            act(store)
            self.done_count += 1

    def work_in_spite_of_errors(self) -> None:
        """The disk lives on: an error may hide that the step was done, but leaves nothing in between."""
        store = open_on(self.disk, seed=1)
        for number, (act, state) in enumerate(STEPS):
            try:
                act(store)
            except LogStoreError:
                assert contents(store) in STATES[number : number + 2]
                if contents(store) != state:
                    act(store)
        assert contents(store) == STEPS[-1][1]


def test_it_survives_a_crash_at_every_operation() -> None:
    def verify(death: Death[StoreRun]) -> None:
        done_count = death.subject.done_count
        for disk in death.disks():
            store = open_on(disk, seed=2)
            found = contents(store)
            assert found in STATES[done_count : done_count + 2]
            head = found.get("shards/0/head")
            if head is None:
                store.put("shards/0/head", b"new", if_absent=True)
            else:
                store.put("shards/0/head", b"new", if_match=content_etag([head]))
            assert store.get("shards/0/head").data == b"new"

    CrashSweep(StoreRun, StoreRun.work, count=200).at_deaths(verify)


def test_what_a_dead_process_left_unsynced_is_not_built_upon() -> None:
    """The process dies and the machine lives on: what it made is there, and no disk knows of it yet.

    The next process finds it and acknowledges a write, and then the machine dies too.
    """

    def verify(death: Death[StoreRun]) -> None:
        disk = death.subject.disk.killed()
        open_on(disk, seed=2).put("shards/0/head", b"new")
        for survival in ALL_SURVIVALS:
            assert open_on(disk.reopened(survival), seed=3).get("shards/0/head").data == b"new", survival

    CrashSweep(StoreRun, StoreRun.work, count=200).at_deaths(verify)


def test_it_fails_clearly_and_goes_on_where_an_operation_fails() -> None:
    CrashSweep(StoreRun, StoreRun.work_in_spite_of_errors, count=200).at_failures(lambda _: None)
