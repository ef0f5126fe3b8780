"""The store in a directory keeps the contract on a real disk and on one in memory, and between processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreAccessDeniedError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.posix_filesystem import PosixAppendFile, PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.objectstore.local import LOCK_TIMEOUT_S, LocalObjectStore
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.protocol import ObjectStore
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.object_store_contract import ConditionalWriteRaces, ObjectStoreContract
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Failure

DAY_MS = 24 * 3600 * 1000


class TestOnDisk(ObjectStoreContract, ConditionalWriteRaces):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalObjectStore(
            PosixFileSystem(), SystemClock(), SystemIdGenerator(), f"{tmp_path}/not-there-yet/store"
        )


class TestInMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        clock = ManualClock()
        return LocalObjectStore(MemoryFileSystem(now_ms=clock.now_ms), clock, SequentialIds(1), "/store")


def test_large_data_objects_pass_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []
    bypass = PosixAppendFile.bypass_cache

    def noting(file: PosixAppendFile) -> None:
        passed.append(file.size())
        bypass(file)

    monkeypatch.setattr(PosixAppendFile, "bypass_cache", noting)
    store = LocalObjectStore(PosixFileSystem(), SystemClock(), SystemIdGenerator(), str(tmp_path))
    large = [b"header", bytes(range(256)) * 10_000, b"footer"]
    # What is read again and again, or is small, is written through it.
    store.put("head", b"".join(large))
    store.put_parts("small", [bytes(1 << 20)])
    assert passed == []
    store.put_parts("large", large)
    assert passed == [0]
    assert store.get("large").data == store.get("head").data == b"".join(large)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def filesystem(clock: ManualClock) -> MemoryFileSystem:
    return MemoryFileSystem(now_ms=clock.now_ms)


@pytest.fixture
def store(filesystem: MemoryFileSystem, clock: ManualClock) -> LocalObjectStore:
    return LocalObjectStore(filesystem, clock, SequentialIds(1), "/store")


def test_a_root_that_is_not_there_reads_as_an_empty_store(
    store: LocalObjectStore, filesystem: MemoryFileSystem
) -> None:
    assert list(store.list("")) == []
    with pytest.raises(ObjectNotFoundError):
        store.get("key")
    store.delete_many(["key"])
    assert not filesystem.exists("/store"), "only a write makes it"


def test_files_of_others_are_neither_listed_nor_reached(
    store: LocalObjectStore, filesystem: MemoryFileSystem
) -> None:
    store.put("key", b"content")
    filesystem.make_directories("/store/.hidden")
    for path in ("/store/.note", "/store/a b", "/store/key~", "/store/.hidden/key"):
        filesystem.open_append(path).close()
    assert [info.key for info in store.list("")] == ["key"]


def test_a_refused_or_failed_write_leaves_nothing_aside(
    store: LocalObjectStore, filesystem: MemoryFileSystem
) -> None:
    store.put("key", b"content")
    with pytest.raises(PreconditionFailedError):
        store.put("key", b"x", if_absent=True)
    with pytest.raises(StoreNotUsableError):
        store.put("key/below", b"x")
    assert filesystem.list_directory("/store/.aside") == []


def test_what_a_dead_process_left_aside_goes_after_a_day(
    store: LocalObjectStore, filesystem: MemoryFileSystem, clock: ManualClock
) -> None:
    filesystem.make_directories("/store/.aside")
    old, new = str(UUID(int=2**64 + 1)), str(UUID(int=2**64 + 2))
    filesystem.open_append(f"/store/.aside/{old}").close()
    filesystem.open_append("/store/.aside/a-strangers").close()
    clock.advance(DAY_MS)
    filesystem.open_append(f"/store/.aside/{new}").close()
    clock.advance(1)
    store.put("key", b"")
    assert sorted(filesystem.list_directory("/store/.aside")) == [new, "a-strangers"]


def test_a_process_that_holds_the_lock_too_long_is_reported(
    store: LocalObjectStore, filesystem: MemoryFileSystem, clock: ManualClock
) -> None:
    etag = store.put("key", b"1")
    lock = filesystem.try_lock("/store/.lock")
    assert lock is not None
    before_s = clock.monotonic_s()
    with pytest.raises(StoreUnavailableError):
        store.put("key", b"2", if_match=etag)
    assert LOCK_TIMEOUT_S <= clock.monotonic_s() - before_s <= LOCK_TIMEOUT_S + 1
    assert store.get("key").data == b"1"
    lock.release()
    store.put("key", b"2", if_match=etag)


def test_a_directory_that_was_removed_is_made_again(
    store: LocalObjectStore, filesystem: MemoryFileSystem
) -> None:
    store.put("dir/key", b"1")
    filesystem.remove_tree("/store")
    with pytest.raises(StoreUnavailableError):
        store.put("dir/key", b"2")
    store.put("dir/key", b"3")
    assert store.get("dir/key").data == b"3"


def test_keys_below_a_key_are_refused_with_a_reason(store: LocalObjectStore) -> None:
    store.put("key", b"")
    with pytest.raises(StoreNotUsableError):
        store.put("key/below", b"")
    with pytest.raises(ObjectNotFoundError):
        store.get("key/below")
    store.put("dir/key", b"")
    with pytest.raises(StoreNotUsableError):
        store.put("dir", b"")
    with pytest.raises(ObjectNotFoundError):
        store.get("dir")


class Stored:
    """A store with one object."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.store = LocalObjectStore(self.disk, ManualClock(), SequentialIds(1), "/store")
        self.store.put("key", b"1")


CALLS: dict[str, Callable[[Stored], object]] = {
    "get": lambda one: one.store.get("key"),
    "get_range": lambda one: one.store.get_range("key", 0, 1),
    "put": lambda one: one.store.put("key", b"2"),
    "delete_many": lambda one: one.store.delete_many(["key"]),
    "list": lambda one: list(one.store.list("")),
}
ERRORS = {
    errno.EACCES: StoreAccessDeniedError,
    errno.EROFS: StoreAccessDeniedError,
    errno.ENOSPC: StoreUnavailableError,
    errno.EIO: StoreUnavailableError,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("number", ERRORS)
def test_errors_of_the_disk_are_the_stores(number: int, call: Callable[[Stored], object]) -> None:
    """Whichever operation of a call it is that fails."""

    def verify(failure: Failure[Stored]) -> None:
        assert isinstance(failure.error, ERRORS[number])
        assert failure.error.fields["reason"] == errno.errorcode[number]

    CrashSweep(Stored, call).at_failures(verify, expected=(StoreError,), errors=(number,))


_INCREMENT = """
import sys
from stratalog.base.errors import PreconditionFailedError
from stratalog.objectstore.open_store import open_store
store = open_store(sys.argv[1])
for _ in range(int(sys.argv[2])):
    while True:
        head = store.get("head")
        try:
            store.put("head", b"%d" % (int(head.data) + 1), if_match=head.etag)
            break
        except PreconditionFailedError:
            pass
"""


def test_processes_do_not_lose_each_others_updates(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    open_store(url).put("head", b"0", if_absent=True)
    command = [sys.executable, "-c", _INCREMENT, url, "25"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0, 0]
    assert open_store(url).get("head").data == b"100"
