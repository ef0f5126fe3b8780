"""The bounded set of open files."""

from __future__ import annotations

import errno
import threading

import pytest

from stratalog.base.filesystem import AppendFile
from stratalog.segment.open_files import OpenFiles, max_open_below
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.gate import Gate


def make_files(disk: MemoryFileSystem, count: int) -> list[str]:
    for number in range(count):
        file = disk.open_append(f"/{number}")
        file.append([b"%d" % number])
        file.close()
    return [f"/{number}" for number in range(count)]


def test_no_more_than_the_bound_are_open_and_the_oldest_goes_first() -> None:
    disk = MemoryFileSystem()
    paths = make_files(disk, 4)
    counted = FaultyFileSystem(disk)
    files = OpenFiles(counted, max_open=2)
    for path in (paths[0], paths[1], paths[0], paths[2], paths[0]):
        with files.use(path) as file:
            assert file.read_at(0, 9) == path[1:].encode()
    assert files.open_count == 2
    # The first was in use all the time, so it was opened once; the second made room.
    assert counted.trace.count("open_read /0") == 1
    assert counted.trace.count("close /1") == 1
    files.check()


def test_files_in_use_stay_open_beyond_the_bound() -> None:
    disk = MemoryFileSystem()
    paths = make_files(disk, 3)
    files = OpenFiles(disk, max_open=1)
    with files.use(paths[0]) as first, files.use(paths[1]) as second, files.use(paths[2]):
        assert (first.read_at(0, 1), second.read_at(0, 1)) == (b"0", b"1")
        assert files.open_count == 3
        files.check()
    assert files.open_count == 1
    files.check()


def test_a_forgotten_file_serves_its_last_user() -> None:
    disk = MemoryFileSystem()
    (path,) = make_files(disk, 1)
    files = OpenFiles(disk)
    with files.use(path) as file:
        disk.rename(path, "/gone")
        files.forget(path)
        assert file.read_at(0, 1) == b"0"
        with pytest.raises(FileNotFoundError):
            files.use(path)
    with pytest.RaisesExc(OSError, check=lambda error: error.errno == errno.EBADF):
        file.read_at(0, 1)


def test_a_file_that_is_open_for_reading_is_opened_again_for_writing() -> None:
    disk = MemoryFileSystem()
    (path,) = make_files(disk, 1)
    files = OpenFiles(disk)
    with files.use(path) as reader, files.use(path, for_writing=True) as writer:
        writer.append([b"x"])
        assert reader.read_at(0, 2) == b"0x"
    with files.use(path) as reader:
        assert reader is writer
    assert files.open_count == 1


def test_a_file_is_lent_without_the_disk_only_if_it_is_open() -> None:
    disk = MemoryFileSystem()
    (path,) = make_files(disk, 1)
    files = OpenFiles(disk)
    assert files.use_open(path) is None
    with files.use(path):
        pass
    lent = files.use_open(path)
    assert lent is not None
    with lent as file:
        assert file.read_at(0, 1) == b"0"
        files.forget(path)
        assert file.read_at(0, 1) == b"0", "it has a user"
    assert files.use_open(path) is None
    files.check()


def test_a_disk_that_stands_still_holds_up_no_user_of_an_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryFileSystem()
    paths = make_files(disk, 2)
    files = OpenFiles(disk)
    with files.use(paths[0]):
        pass
    gate, open_read = Gate(), disk.open_read

    def open_at_gate(path: str) -> AppendFile:
        found = open_read(path)
        gate.pass_through()
        return found

    monkeypatch.setattr(disk, "open_read", open_at_gate)
    gate.close()
    opened: list[AppendFile] = []

    def open_second() -> None:
        with files.use(paths[1]) as file:
            opened.append(file)

    opening = threading.Thread(target=open_second)
    opening.start()
    assert gate.is_reached.wait(30)
    for use in (files.use, files.use_open):
        lent = use(paths[0])
        assert lent is not None
        with lent as file:
            assert file.read_at(0, 1) == b"0"
    assert files.use_open(paths[1]) is None
    assert not opened
    # The name is about to change: no later user may find the file that is being opened under it.
    forgetting = threading.Thread(target=files.forget, args=(paths[1],))
    forgetting.start()
    gate.open()
    opening.join(30)
    forgetting.join(30)
    assert len(opened) == 1
    assert files.use_open(paths[1]) is None
    files.check()


def test_a_directory_is_forgotten_as_a_whole() -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    disk.make_directories("/dd")
    files = OpenFiles(disk)
    for path in ("/d/1", "/d/2", "/dd/1"):
        with files.use(path, for_writing=True):
            pass
    files.forget_below("/d")
    assert files.open_count == 1
    files.close()
    assert files.open_count == 0


def test_an_error_of_close_is_ignored() -> None:
    disk = FaultyFileSystem()
    files = OpenFiles(disk)
    with files.use("/a", for_writing=True):
        pass
    disk.fail_at(disk.operation_count + 1)
    files.close()
    assert files.open_count == 0


def test_half_of_what_a_process_may_open_is_for_other_things() -> None:
    assert max_open_below(1024) == 512
    assert max_open_below(1) == 1
    assert max_open_below(2**63) == max_open_below(2**20) == 16 * 1024
