"""Where scratch files go: a full disk refuses them, and not the upload that needs none."""

from __future__ import annotations

import errno

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.remote.objects.spool import Spool
from stratalog.server.partitions.scratch_space import ScratchSpace
from stratalog.testing.full_filesystem import FullFileSystem

LEFT = ("1.data", "1.keys", "1.scratch")


def disk_with(*directories: str, full: str | None = None) -> FullFileSystem:
    disk = FullFileSystem()
    # A file, below which no directory can be made.
    disk.open_append("/forbidden").close()
    for directory in directories:
        disk.make_directories(directory)
    disk.fill(full)
    return disk


def is_full(error: OSError) -> bool:
    return error.errno == errno.ENOSPC


def place(disk: FullFileSystem, *directories: str) -> str:
    return ScratchSpace(disk, lambda: directories).place("0000/upload")


def test_the_first_directory_that_works_is_taken_and_emptied() -> None:
    disk = disk_with("/a/scratch/0000/upload", "/b")
    for name in LEFT:
        disk.open_append(f"/a/scratch/0000/upload/{name}").close()
    assert place(disk, "/a", "/b") == "/a/scratch/0000/upload"
    assert disk.list_directory("/a/scratch/0000/upload") == []
    assert not disk.exists("/b/scratch")


def test_one_that_is_full_is_passed_over_as_long_as_another_has_room() -> None:
    disk = disk_with("/disk/a", "/b", full="/disk")
    assert place(disk, "/disk/a", "/b") == "/b/scratch/0000/upload"
    assert disk.exists("/b/scratch/0000/upload")


def test_where_all_are_full_a_place_is_named_and_made_when_something_has_to_go_there() -> None:
    disk = disk_with("/disk/a", "/disk/b", full="/disk")
    path = place(disk, "/forbidden", "/disk/a", "/disk/b")
    assert path == "/disk/a/scratch/0000/upload"
    assert not disk.exists("/disk/a/scratch")
    in_memory = Spool(disk, f"{path}/1.data", 100)
    in_memory.append(b"x" * 100)
    assert in_memory.parts() == [b"x" * 100]
    in_memory.close()
    too_much = Spool(disk, f"{path}/1.data", 100)
    with pytest.raises(OSError, check=is_full):
        too_much.append(b"x" * 101)


def test_the_directory_is_made_with_the_first_file() -> None:
    disk = disk_with("/disk/a", full="/disk")
    path = place(disk, "/disk/a")
    disk.fill(None)
    spool = Spool(disk, f"{path}/1.data", 0)
    spool.append(b"x")
    assert disk.list_directory(path) == ["1.data"]
    spool.close()
    assert disk.list_directory(path) == []


def test_where_none_may_be_written_to_the_error_says_which_and_why() -> None:
    with pytest.raises(DataDirectoryError) as failure:
        place(disk_with("/disk/a", full="/disk"), "/forbidden")
    assert failure.value.fields["path"] == "/forbidden/scratch/0000/upload"
    assert failure.value.fields["reason"]
