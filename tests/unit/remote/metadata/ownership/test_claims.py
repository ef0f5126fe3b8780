"""The claims of a server in several directories: which of them count, and what a failing disk takes away."""

from __future__ import annotations

import errno
import logging
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.remote.metadata.ownership.claims import Claims, ClaimsFile
from stratalog.remote.metadata.ownership.head_witness import HeadWitness
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.crash_sweep import CrashSweep, Death

DIRS = ("/a", "/b", "/c")


def claims(*numbers: int) -> frozenset[UUID]:
    return frozenset(UUID(int=number) for number in numbers)


def break_directories(disk: FaultyFileSystem, *directories: str) -> None:
    disk.fail_where(lambda line: line.partition(" ")[2].startswith(directories))


def fill_directories(disk: FaultyFileSystem, *directories: str) -> None:
    """No file gets its name there."""
    refused = tuple(f"rename {directory}" for directory in directories)
    disk.fail_where(lambda line: line.startswith(refused), number=errno.ENOSPC)


def disk_with(**found: frozenset[UUID]) -> FaultyFileSystem:
    disk = FaultyFileSystem()
    for path in DIRS:
        disk.make_directories(path)
    for name, known in found.items():
        ClaimsFile(disk, f"/{name}", 0).write(known)
    return disk


def test_a_claim_is_in_every_directory() -> None:
    disk = disk_with(a=claims(1))
    assert Claims(disk, DIRS, 0).add(UUID(int=2)) == claims(1)
    for path in DIRS:
        assert ClaimsFile(disk, path, 0).read() == claims(1, 2)
    assert disk.list_directory("/b") == ["claims-0000"]


@pytest.mark.parametrize(
    ("found", "known"),
    [
        ({}, claims()),
        # The first one is new, in the place of a disk that is lost.
        ({"b": claims(1), "c": claims(1, 2)}, claims(1, 2)),
        # It was away while another start was made without it.
        ({"a": claims(1), "b": claims(1, 2), "c": claims(1)}, claims(1, 2)),
        # The others were away, or are named first by a later start.
        ({"a": claims(1, 2), "b": claims(1)}, claims(1, 2)),
        # One comes from another server.
        ({"a": claims(1, 2), "b": claims(7, 8, 9)}, claims(1, 2)),
        ({"a": claims(1, 2), "b": claims(1, 7)}, claims(1, 2)),
    ],
)
def test_what_the_first_directory_knows_counts_and_what_comes_after_it(
    found: dict[str, frozenset[UUID]], known: frozenset[UUID]
) -> None:
    assert Claims(disk_with(**found), DIRS, 0).read() == known


def test_one_that_cannot_be_read_is_done_without_where_another_one_knows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = disk_with(a=claims(1), b=claims(1))
    break_directories(disk, "/a")
    with caplog.at_level(logging.WARNING):
        assert Claims(disk, DIRS, 0).add(UUID(int=2)) == claims(1)
    assert [record.getMessage().count("path=`/a/claims-0000`") for record in caplog.records] == [1, 1]
    assert ClaimsFile(disk, "/b", 0).read() == claims(1, 2)
    break_directories(disk, "/a", "/b")
    # The third one has the claim that was made meanwhile.
    assert Claims(disk, DIRS, 0).read() == claims(1, 2)


def test_where_claims_are_unknown_none_is_made() -> None:
    disk = disk_with(a=claims(1))
    break_directories(disk, "/a")
    with pytest.raises(DataDirectoryError) as failure:
        Claims(disk, DIRS, 0).add(UUID(int=2))
    assert failure.value.fields["path"] == "/a/claims-0000"
    assert "Input/output error" in str(failure.value.fields["reason"])
    assert not disk.exists("/b/claims-0000")


@pytest.mark.parametrize("garbage", [b"\xff", b"no uuid\n", b"0123\n"])
def test_a_damaged_file_counts_for_nothing_where_another_one_is_whole(garbage: bytes) -> None:
    disk = disk_with(b=claims(1))
    disk.open_append("/a/claims-0000").append([garbage])
    Claims(disk, DIRS, 0).add(UUID(int=2))
    assert ClaimsFile(disk, "/a", 0).read() == claims(1, 2)
    alone = disk_with()
    alone.open_append("/a/claims-0000").append([garbage])
    with pytest.raises(DataDirectoryError) as failure:
        Claims(alone, DIRS, 0).add(UUID(int=2))
    assert failure.value.fields == {"path": "/a/claims-0000"}
    assert alone.read_file("/a/claims-0000") == garbage


def test_a_claim_needs_one_directory_that_takes_it() -> None:
    disk = disk_with(a=claims(1))
    fill_directories(disk, "/a", "/b")
    Claims(disk, DIRS, 0).add(UUID(int=2))
    assert (ClaimsFile(disk, "/a", 0).read(), Claims(disk, DIRS, 0).read()) == (claims(1), claims(1, 2))
    fill_directories(disk, *DIRS)
    with pytest.raises(DataDirectoryError) as failure:
        Claims(disk, DIRS, 0).add(UUID(int=3))
    assert "No space left" in str(failure.value.fields["reason"])


def test_a_head_is_witnessed_by_any_directory() -> None:
    disk = disk_with(b=claims(1))
    assert HeadWitness(disk, DIRS).of_catalog == "/b/claims-0000"
    break_directories(disk, "/a")
    assert HeadWitness(disk, DIRS).of_catalog == "/b/claims-0000"
    break_directories(disk, *DIRS)
    with pytest.raises(DataDirectoryError):
        HeadWitness(disk, DIRS)


class Claimed:
    """A directory with one claim, which gets another one."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.disk.make_directories("/data")
        self.disk.sync_directory("/")
        Claims(self.disk, ("/data",), 0).add(UUID(int=1))

    def add(self) -> None:
        Claims(self.disk, ("/data",), 0).add(UUID(int=2))


def test_a_claim_survives_a_crash_at_any_operation_whole_or_not_at_all() -> None:
    def verify(death: Death[Claimed]) -> None:
        for disk in death.disks():
            assert ClaimsFile(disk, "/data", 0).read() in (claims(1), claims(1, 2))
            # The next process adds its own, whatever the last one left.
            Claims(disk, ("/data",), 0).add(UUID(int=2))
            assert ClaimsFile(disk, "/data", 0).read() == claims(1, 2)

    CrashSweep(Claimed, Claimed.add).at_deaths(verify)
