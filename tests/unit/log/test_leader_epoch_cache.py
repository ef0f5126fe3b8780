"""The leader epoch cache against a plain list of batches, Kafka's file, crashes, and files that are none."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.log.leader_epoch_cache import (
    EpochEnd,
    EpochEntry,
    LeaderEpochCache,
    format_epochs,
    parse_epochs,
)
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.places import GOLDEN

DATA = GOLDEN / "data"
PATH = "/log/leader-epoch-checkpoint"


def cache_of(*entries: tuple[int, int]) -> LeaderEpochCache:
    return LeaderEpochCache(MemoryFileSystem(), "/log", [EpochEntry(*entry) for entry in entries])


def entries_of(cache: LeaderEpochCache) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in cache.entries]


@st.composite
def epoch_steps(draw: st.DrawFn) -> list[int]:
    """The epoch of each offset of a log."""
    steps = draw(st.lists(st.integers(0, 2), max_size=30))
    return [sum(steps[: count + 1]) for count in range(len(steps))]


def of_log(epochs: list[int], first: int = 0) -> list[tuple[int, int]]:
    """The entries of a log that begins at `first`; `epochs` has the epoch of each offset from 0 on."""
    return [
        (epochs[offset], offset)
        for offset in range(first, len(epochs))
        if offset == first or epochs[offset] != epochs[offset - 1]
    ]


@given(epochs=epoch_steps(), first=st.integers(0, 30), end=st.integers(0, 30), asked=st.integers(0, 70))
def test_the_cache_knows_what_the_batches_know(epochs: list[int], first: int, end: int, asked: int) -> None:
    cache = cache_of()
    for offset, epoch in enumerate(epochs):
        cache.assign(epoch, offset)
        cache.check()
    assert entries_of(cache) == of_log(epochs)
    assert cache.latest_epoch == (epochs[-1] if epochs else None)
    for offset, epoch in enumerate(epochs):
        assert cache.epoch_for_offset(offset) == epoch
    higher = [offset for offset, epoch in enumerate(epochs) if epoch > asked]
    floor = [epoch for epoch in epochs if epoch <= asked]
    if higher:
        assert cache.end_offset_for(asked, len(epochs)) == (floor[-1] if floor else asked, higher[0])
    elif asked in epochs:
        assert cache.end_offset_for(asked, len(epochs)) == EpochEnd(asked, len(epochs))
    else:
        assert cache.end_offset_for(asked, len(epochs)) is None
    end = min(end, len(epochs))
    first = min(first, end)
    if first == end:
        return
    in_range = of_log(epochs[:end], first)
    assert list(cache.entries_in_range(first, end)) == in_range
    cache.truncate_from_end(end)
    cache.truncate_from_start(first)
    cache.check()
    assert entries_of(cache) == in_range
    # What is read again after a crash changes nothing.
    for offset in range(first, end):
        cache.assign(epochs[offset], offset)
    assert entries_of(cache) == in_range


def test_the_epoch_of_an_emptied_log_stays_where_it_begins() -> None:
    cache = cache_of((3, 10), (5, 20))
    cache.truncate_from_start(25)
    assert entries_of(cache) == [(5, 25)]
    cache.truncate_from_start(4)
    assert entries_of(cache) == [(5, 25)]
    cache.clear()
    assert entries_of(cache) == []
    assert cache.latest_epoch is None


def test_an_epoch_without_a_batch_gives_way() -> None:
    cache = cache_of((3, 10), (5, 20))
    cache.assign(4, 20)
    assert entries_of(cache) == [(3, 10), (4, 20)]
    cache.assign(7, 20)
    assert entries_of(cache) == [(3, 10), (7, 20)]
    cache.assign(3, 15)
    assert entries_of(cache) == [(3, 10)]


@pytest.mark.parametrize(("epoch", "offset"), [(4, 21), (2, 11), (-1, 30), (2**31, 30)])
def test_an_epoch_that_goes_back_is_refused_and_changes_nothing(epoch: int, offset: int) -> None:
    cache = cache_of((3, 10), (5, 20))
    with pytest.raises(CorruptRecordError):
        cache.assign(epoch, offset)
    assert entries_of(cache) == [(3, 10), (5, 20)]


@pytest.mark.parametrize("path", sorted(DATA.glob("*/leader-epoch-checkpoint")), ids=str)
def test_kafkas_file_is_read_and_written_alike(path: Path) -> None:
    data = path.read_bytes()
    entries = parse_epochs(data)
    assert format_epochs(entries) == data
    assert entries == ((0, 37 if path.parent.name == "g1-recompressed-0" else 0),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0\n",
        "0\n0",
        "1\n1\n0 0\n",
        "0\n2\n0 0\n",
        "0\n1\n0 0",
        "0\n1\n0 0\n1 5\n",
        "0\n2\n0 0\n1 0\n",
        "0\n2\n1 0\n1 5\n",
        "0\n1\n-1 0\n",
        "0\n1\n0  0\n",
        "0\n1\n2147483648 0\n",
        "0\n1\n0 9223372036854775808\n",
        f"0\n1\n0 {'9' * 5000}\n",
        "0\n1\n\u0661 0\n",
    ],
)
def test_text_that_is_no_epoch_file_is_refused(text: str) -> None:
    with pytest.raises(CorruptRecordError):
        parse_epochs(text.encode())


@given(data=st.binary(max_size=60) | st.text("0123456789 \n", max_size=40).map(str.encode))
def test_garbage_is_an_epoch_file_or_refused(data: bytes) -> None:
    with contextlib.suppress(CorruptRecordError):
        parse_epochs(data)


def on_disk(filesystem: FaultyFileSystem) -> tuple[EpochEntry, ...]:
    return LeaderEpochCache.load(filesystem, "/log").entries


def new_disk() -> FaultyFileSystem:
    filesystem = FaultyFileSystem()
    filesystem.make_directories("/log")
    filesystem.sync_directory("/")
    return filesystem


class Assigning:
    """A log directory that gets two leader epochs, each flushed."""

    def __init__(self) -> None:
        self.disk, self.flushed = new_disk(), list[int]()

    def run(self) -> None:
        cache = LeaderEpochCache.load(self.disk, "/log")
        for epoch in (1, 2):
            cache.assign(epoch, 10 * epoch)
            cache.flush()
            self.flushed.append(epoch)
            before = self.disk.operation_count
            cache.flush()
            assert self.disk.operation_count == before


def test_a_crash_leaves_every_epoch_that_was_flushed() -> None:
    def verify(death: Death[Assigning]) -> None:
        flushed = death.subject.flushed
        for disk in death.disks():
            epochs = [entry.epoch for entry in on_disk(disk)]
            assert epochs in (flushed, [1, 2][: len(flushed) + 1])

    CrashSweep(Assigning, Assigning.run).at_deaths(verify)


def test_a_flush_that_failed_is_tried_again() -> None:
    disk = new_disk()
    cache = LeaderEpochCache.load(disk, "/log")
    cache.assign(1, 0)
    disk.fail_at(disk.operation_count + 3)
    with pytest.raises(OSError) as failure:  # noqa: PT011 - the number says which
        cache.flush()
    assert failure.value.errno == errno.EIO
    cache.flush()
    assert on_disk(disk) == ((1, 0),)


def test_a_damaged_file_differs_from_a_missing_one() -> None:
    disk = new_disk()
    assert on_disk(disk) == ()
    file = disk.open_append(PATH)
    file.append([b"0\n7\n"])
    with pytest.raises(CorruptRecordError):
        on_disk(disk)
